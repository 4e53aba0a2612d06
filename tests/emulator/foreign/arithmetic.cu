// Integer and floating-point operations, one output column each: out[op * n + i].

extern "C" __global__ void int32_ops(const int* a, const int* b, int* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int x = a[i], y = b[i];
    const unsigned u = x, v = y;
    int op = 0;
    auto put = [&](int value) { out[op++ * n + i] = value; };
    put(x / y);
    put(x % y);
    put(u / v);
    put(u % v);
    put(__popc(x));
    put(__clz(x));
    put(__brev(x));
    put(__ffs(x));
    put(__byte_perm(x, y, 0x3715));
    put(__mulhi(x, y));
    put(__umulhi(u, v));
    put(__sad(x, y, 5u));
    put(__hadd(x, y));
    put(__urhadd(u, v));
    put(__mul24(x, y));
    put(__funnelshift_l(u, v, y));
    put(__funnelshift_r(u, v, y));
    put(__dp4a(x, y, 3));
    put((short)x * (short)y);
    put((u >> 5) & 0x3ff);
    put(abs(x) + min(x, y) - max(x, 17));
    put(x > y ? x : ~y);
    put(x / 7 + x % 10);
    put(u / 641u);
}

extern "C" __global__ void int64_ops(const long long* a, const long long* b, long long* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const long long x = a[i], y = b[i];
    const unsigned long long u = x, v = y;
    int op = 0;
    auto put = [&](long long value) { out[op++ * n + i] = value; };
    put(x / y);
    put(x % y);
    put(u / v);
    put(u % v);
    put(__popcll(x));
    put(__clzll(x));
    put(__brevll(x));
    put(__ffsll(x));
    put(__mul64hi(x, y));
    put(__umul64hi(u, v));
    put(x << (y & 63));
    put(x >> (y & 63));
    put(u >> (y & 63));
    put(x * y + 12345678901LL);
    put((u >> 20) & 0xffffffffffULL);
    put(llabs(x) ^ y);
    put((long long)(double)x);
    put((long long)(float)(int)x);
}

extern "C" __global__ void double_ops(const double* a, const double* b, double* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const double x = a[i], y = b[i];
    int op = 0;
    auto put = [&](double value) { out[op++ * n + i] = value; };
    put(x + y);
    put(x * y - 1.0);
    put(x / y);
    put(sqrt(fabs(x)));
    put(fma(x, y, 3.0));
    put(exp(x * 0.001));
    put(log(fabs(x) + 1.0));
    put(sin(x));
    put(cos(x));
    put(pow(fabs(x) + 0.5, 1.75));
    put(floor(x) + ceil(y) + trunc(x) + rint(y));
    put(fmod(x, 3.0));
    put(fmin(x, y) + fmax(x, 0.0));
    put((double)(float)x + (double)(int)y);
    put(tanh(x));
    put(cbrt(x));
    put(rsqrt(fabs(x) + 1.0));
    put(copysign(x, y));
}

extern "C" __global__ void float_ops(const float* a, const float* b, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float x = a[i], y = b[i];
    int op = 0;
    auto put = [&](float value) { out[op++ * n + i] = value; };
    put(x / y);
    put(sqrtf(fabsf(x)));
    put(expf(x));
    put(logf(fabsf(x) + 1.0f));
    put(sinf(x));
    put(cosf(x));
    put(tanhf(x));
    put(powf(fabsf(x) + 0.5f, 1.5f));
    put(erff(x));
    put(atan2f(x, y));
    put(floorf(x) + roundf(y));
    put(fmodf(x, 0.75f));
    put(__frcp_rn(y) + __fsqrt_rn(fabsf(y)));
    put(exp2f(x) + log2f(fabsf(y) + 1.0f));
    put(__saturatef(x) + fminf(x, y));
    put((float)(int)x + (float)(unsigned)fabsf(y));
    put(rsqrtf(fabsf(x) + 1.0f));
    put(__sinf(x) + __cosf(y));
    put(isnan(x) || isinf(y) ? 1.0f : __int_as_float(__float_as_int(x) & 0x7fffffff));
    put(hypotf(x, y));
}
