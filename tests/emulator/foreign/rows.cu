// One block per row: softmax and layer norm; and matrix-vector products.

constexpr float LARGEST = 3.402823466e38f;

template <class Op>
__device__ float block_reduce(float value, float* scratch, Op op) {
    for (int offset = 16; offset > 0; offset >>= 1) value = op(value, __shfl_xor_sync(0xffffffffu, value, offset));
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    value = scratch[0];
    for (int w = 1; w < (int)blockDim.x / 32; ++w) value = op(value, scratch[w]);
    __syncthreads();
    return value;
}

extern "C" __global__ void softmax(const float* in, float* out, int width) {
    __shared__ float scratch[32];
    in += (long long)blockIdx.x * width;
    out += (long long)blockIdx.x * width;
    float largest = -LARGEST;
    for (int i = threadIdx.x; i < width; i += blockDim.x) largest = fmaxf(largest, in[i]);
    largest = block_reduce(largest, scratch, [](float a, float b) { return fmaxf(a, b); });
    float sum = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        const float e = __expf(in[i] - largest);
        out[i] = e;
        sum += e;
    }
    sum = block_reduce(sum, scratch, [](float a, float b) { return a + b; });
    const float scale = __fdividef(1.0f, sum);
    for (int i = threadIdx.x; i < width; i += blockDim.x) out[i] *= scale;
}

// Accurate library functions, one thread per row: online maximum and sum.
extern "C" __global__ void softmax_online(const float* in, float* out, int width, int rows) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float largest = -LARGEST, sum = 0.0f;
    for (int i = 0; i < width; ++i) {
        const float x = in[row * width + i], before = largest;
        largest = fmaxf(largest, x);
        sum = sum * expf(before - largest) + expf(x - largest);
    }
    for (int i = 0; i < width; ++i) out[row * width + i] = expf(in[row * width + i] - largest) / sum;
}

// Welford's mean and variance per thread, merged by shuffles; one warp per row.
extern "C" __global__ void layernorm(const float* in, const float* gamma, const float* beta, float* out, int width, float eps) {
    const int row = blockIdx.x * blockDim.y + threadIdx.y, lane = threadIdx.x;
    in += row * width;
    out += row * width;
    float mean = 0.0f, m2 = 0.0f, count = 0.0f;
    for (int i = lane; i < width; i += 32) {
        count += 1.0f;
        const float delta = in[i] - mean;
        mean += delta / count;
        m2 += delta * (in[i] - mean);
    }
    for (int offset = 16; offset > 0; offset >>= 1) {
        const float other_mean = __shfl_xor_sync(0xffffffffu, mean, offset);
        const float other_m2 = __shfl_xor_sync(0xffffffffu, m2, offset);
        const float other = __shfl_xor_sync(0xffffffffu, count, offset);
        const float total = count + other, delta = other_mean - mean;
        if (total > 0.0f) {
            mean = (mean * count + other_mean * other) / total;
            m2 += other_m2 + delta * delta * count * other / total;
        }
        count = total;
    }
    const float scale = rsqrtf(m2 / width + eps);
    for (int i = lane; i < width; i += 32) out[i] = (in[i] - mean) * scale * gamma[i] + beta[i];
}

extern "C" __global__ void matvec(const float* a, const float* x, float* y, int rows, int width) {
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const float4* line = reinterpret_cast<const float4*>(a + (long long)row * width);
    const float4* vector = reinterpret_cast<const float4*>(x);
    float sum = 0.0f;
    for (int i = lane; i < width / 4; i += 32) {
        const float4 p = __ldg(line + i), q = __ldg(vector + i);
        sum += p.x * q.x + p.y * q.y + p.z * q.z + p.w * q.w;
    }
    for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if (lane == 0) y[row] = sum;
}
