// Halves: vector arithmetic, conversions, comparisons, atomics.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void half_ops(const __half2* a, const __half2* b, __half2* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const __half2 x = a[i], y = b[i];
    int op = 0;
    auto put = [&](__half2 value) { out[op++ * n + i] = value; };
    put(__hadd2(x, y));
    put(__hmul2(x, y));
    put(__hfma2(x, y, __float2half2_rn(0.5f)));
    put(__hsub2(x, y));
    put(__h2div(x, __hadd2(__habs2(y), __float2half2_rn(1.0f))));
    put(__hmax2(x, y));
    put(__hmin2(x, __hneg2(y)));
    put(h2exp2(x));
    put(h2sqrt(__habs2(x)));
    put(__hgt2(x, y));
    put(__lowhigh2highlow(x));
    put(__floats2half2_rn(__low2float(x) * 3.0f, __high2float(y) * 0.5f));
    put(__half2half2(__int2half_rn(__half2int_rn(__low2half(x)))));
    put(h2floor(x));
}

extern "C" __global__ void bf16_axpy(const __nv_bfloat162* x, __nv_bfloat162* y, float a, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    y[i] = __hfma2(__float2bfloat162_rn(a), x[i], y[i]);
}

extern "C" __global__ void half_sum(const __half* in, __half* out, float* wide, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    atomicAdd(out, in[i]);
    atomicAdd(wide, __half2float(in[i]));
    atomicAdd(reinterpret_cast<__half2*>(out) + 1, __half2half2(in[i]));
}
