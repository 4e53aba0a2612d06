// Prefix sums of one block's elements.

extern "C" __global__ void scan_hillis_steele(const int* in, int* out, int n) {
    extern __shared__ int buffers[];  // 2 n
    const int i = threadIdx.x;
    int from = 0, to = 1;
    buffers[i] = in[i];
    __syncthreads();
    for (int offset = 1; offset < n; offset <<= 1) {
        from ^= 1;
        to ^= 1;
        const int* old = buffers + to * n;
        buffers[from * n + i] = i >= offset ? old[i] + old[i - offset] : old[i];
        __syncthreads();
    }
    out[i] = buffers[from * n + i];
}

#define PADDED(i) ((i) + ((i) >> 5))

// Exclusive, work-efficient, two elements per thread, one word of padding per 32.
extern "C" __global__ void scan_blelloch(const int* in, int* out, int n) {
    extern __shared__ int data[];
    const int t = threadIdx.x;
    data[PADDED(t)] = in[t];
    data[PADDED(t + n / 2)] = in[t + n / 2];
    int offset = 1;
    for (int d = n >> 1; d > 0; d >>= 1, offset <<= 1) {
        __syncthreads();
        if (t < d) data[PADDED(offset * (2 * t + 2) - 1)] += data[PADDED(offset * (2 * t + 1) - 1)];
    }
    if (t == 0) data[PADDED(n - 1)] = 0;
    for (int d = 1; d < n; d <<= 1) {
        offset >>= 1;
        __syncthreads();
        if (t < d) {
            const int left = PADDED(offset * (2 * t + 1) - 1), right = PADDED(offset * (2 * t + 2) - 1);
            const int held = data[left];
            data[left] = data[right];
            data[right] += held;
        }
    }
    __syncthreads();
    out[t] = data[PADDED(t)];
    out[t + n / 2] = data[PADDED(t + n / 2)];
}

// Inclusive, by shuffles within warps, then over the warps' sums.
extern "C" __global__ void scan_warp(const float* in, float* out) {
    __shared__ float sums[32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, i = blockIdx.x * blockDim.x + threadIdx.x;
    float value = in[i];
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
        const float below = __shfl_up_sync(0xffffffffu, value, d);
        if (lane >= d) value += below;
    }
    if (lane == 31) sums[warp] = value;
    __syncthreads();
    if (warp == 0) {
        float sum = lane < (int)blockDim.x / 32 ? sums[lane] : 0.0f;
        for (int d = 1; d < 32; d <<= 1) {
            const float below = __shfl_up_sync(0xffffffffu, sum, d);
            if (lane >= d) sum += below;
        }
        sums[lane] = sum;
    }
    __syncthreads();
    out[i] = warp > 0 ? value + sums[warp - 1] : value;
}

// Keeps the elements that are positive, in order within a warp, by ballots.
extern "C" __global__ void compact(const int* in, int* out, unsigned* count, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31;
    const int value = i < n ? in[i] : 0;
    const unsigned keep = __ballot_sync(0xffffffffu, value > 0);
    unsigned base = 0;
    if (lane == 0) base = atomicAdd(count, __popc(keep));
    base = __shfl_sync(0xffffffffu, base, 0);
    if (value > 0) out[base + __popc(keep & ((1u << lane) - 1))] = value;
}
