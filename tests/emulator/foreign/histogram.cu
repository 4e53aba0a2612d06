// Counts with atomics on shared memory, then on global memory; and atomics of other kinds.

extern "C" __global__ void histogram(const unsigned char* in, unsigned* bins, int n) {
    __shared__ unsigned local[256];
    for (int b = threadIdx.x; b < 256; b += blockDim.x) local[b] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&local[in[i]], 1u);
    __syncthreads();
    for (int b = threadIdx.x; b < 256; b += blockDim.x)
        if (local[b]) atomicAdd(&bins[b], local[b]);
}

// One atomic per group of equal keys in a warp.
extern "C" __global__ void histogram_matched(const int* keys, unsigned* bins, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const unsigned active = __activemask();
    const unsigned same = __match_any_sync(active, keys[i]);
    if ((threadIdx.x & 31) == __ffs(same) - 1) atomicAdd(&bins[keys[i]], __popc(same));
}

// The largest float by compare-and-swap, sums of doubles and of 64-bit integers.
extern "C" __global__ void other_atomics(const float* in, float* largest, double* sum, unsigned long long* total, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int* word = reinterpret_cast<int*>(largest);
    int seen = *word;
    while (__int_as_float(seen) < in[i]) {
        const int before = atomicCAS(word, seen, __float_as_int(in[i]));
        if (before == seen) break;
        seen = before;
    }
    atomicAdd(sum, (double)in[i]);
    atomicAdd(total, (unsigned long long)(i + 1) << 20);
}
