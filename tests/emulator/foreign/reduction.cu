// Sums of n floats by common reduction patterns: out[0] += sum(in).

extern "C" __global__ void sum_tree(const float* in, float* out, int n) {
    __shared__ float partial[256];
    const unsigned tid = threadIdx.x;
    const int i = blockIdx.x * blockDim.x * 2 + threadIdx.x;
    float value = i < n ? in[i] : 0.0f;
    if (i + (int)blockDim.x < n) value += in[i + blockDim.x];
    partial[tid] = value;
    __syncthreads();
    for (unsigned s = blockDim.x / 2; s > 32; s >>= 1) {
        if (tid < s) partial[tid] = value = value + partial[tid + s];
        __syncthreads();
    }
    if (tid < 32) {
        value += partial[tid + 32];
        for (int offset = 16; offset > 0; offset /= 2) value += __shfl_down_sync(0xffffffffu, value, offset);
    }
    if (tid == 0) out[blockIdx.x] = value;
}

__device__ __forceinline__ float warp_sum(float value) {
    for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

extern "C" __global__ void sum_shuffle(const float* in, float* out, int n) {
    __shared__ float warps[32];
    float value = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) value += in[i];
    value = warp_sum(value);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (lane == 0) warps[warp] = value;
    __syncthreads();
    if (warp == 0) {
        value = lane < (int)(blockDim.x + 31) / 32 ? warps[lane] : 0.0f;
        value = warp_sum(value);
        if (lane == 0) atomicAdd(out, value);
    }
}

extern "C" __global__ void sum_atomic(const float* in, float* out, int n) {
    __shared__ float total;
    if (threadIdx.x == 0) total = 0.0f;
    __syncthreads();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&total, in[i]);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(out, total);
}

__device__ unsigned arrived = 0;

// The last block to finish adds up the partial sums of all blocks.
extern "C" __global__ void sum_last_block(const float* in, float* partial, float* out, int n) {
    __shared__ float scratch[128];
    __shared__ bool last;
    const int tid = threadIdx.x;
    float value = 0.0f;
    for (int i = blockIdx.x * 128 + tid; i < n; i += gridDim.x * 128) value += in[i];
    scratch[tid] = value;
    __syncthreads();
    for (int s = 64; s > 0; s >>= 1) {
        if (tid < s) scratch[tid] += scratch[tid + s];
        __syncthreads();
    }
    if (tid == 0) {
        partial[blockIdx.x] = scratch[0];
        __threadfence();
        last = atomicInc(&arrived, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && tid == 0) {
        float total = 0.0f;
        for (int b = 0; b < (int)gridDim.x; ++b) total += ((volatile float*)partial)[b];
        *out = total;
    }
}

// Sums of integers by the reduction instructions of a warp.
extern "C" __global__ void extremes(const int* in, int* low, int* high, unsigned* any_bits, int n) {
    int smallest = 0x7fffffff, largest = (int)0x80000000;
    unsigned bits = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        smallest = min(smallest, in[i]);
        largest = max(largest, in[i]);
        bits |= (unsigned)in[i];
    }
    smallest = __reduce_min_sync(0xffffffffu, smallest);
    largest = __reduce_max_sync(0xffffffffu, largest);
    bits = __reduce_or_sync(0xffffffffu, bits);
    if ((threadIdx.x & 31) == 0) {
        atomicMin(low, smallest);
        atomicMax(high, largest);
        atomicOr(any_bits, bits);
    }
}

// Barrier reductions: how many are positive, whether all are, whether any is large; twice, to check that votes are reset.
extern "C" __global__ void votes(const int* in, int* count, int* all, int* any) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int positive = __syncthreads_count(in[i] > 0);
    const int every = __syncthreads_and(in[i] > -50);
    const int large = __syncthreads_or(in[i] > 95);
    const int again = __syncthreads_count(in[i] <= 0);
    if (threadIdx.x == 0) {
        count[blockIdx.x] = positive * 1000 + again;
        all[blockIdx.x] = every != 0;
        any[blockIdx.x] = large != 0;
    }
}
