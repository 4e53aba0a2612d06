// C[m x n] = A[m x k] · B[k x n], row-major floats.

extern "C" __global__ void gemm_naive(const float* a, const float* b, float* c, int m, int n, int k) {
    const int col = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= m || col >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) sum += a[row * k + i] * b[i * n + col];
    c[row * n + col] = sum;
}

extern "C" __global__ void gemm_tiled(const float* a, const float* b, float* c, int m, int n, int k) {
    constexpr int T = 16;
    __shared__ float tile_a[T][T], tile_b[T][T];
    const int row = blockIdx.y * T + threadIdx.y, col = blockIdx.x * T + threadIdx.x;
    float sum = 0.0f;
    for (int start = 0; start < k; start += T) {
        tile_a[threadIdx.y][threadIdx.x] = row < m && start + threadIdx.x < k ? a[row * k + start + threadIdx.x] : 0.0f;
        tile_b[threadIdx.y][threadIdx.x] = col < n && start + threadIdx.y < k ? b[(start + threadIdx.y) * n + col] : 0.0f;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < T; ++i) sum += tile_a[threadIdx.y][i] * tile_b[i][threadIdx.x];
        __syncthreads();
    }
    if (row < m && col < n) c[row * n + col] = sum;
}

// 64 x 64 tiles, 4 x 4 outputs per thread of 16 x 16, float4 loads, two buffers in shared memory.
// m and n are multiples of 64, k of 16.
extern "C" __global__ void __launch_bounds__(256) gemm_buffered(const float* a, const float* b, float* c, int m, int n, int k) {
    constexpr int BM = 64, BN = 64, BK = 16;
    __shared__ __align__(16) float tile_a[2][BK][BM], tile_b[2][BK][BN];
    const int tid = threadIdx.y * 16 + threadIdx.x;
    const int a_row = tid / 4, a_col = tid % 4 * 4;
    const int b_row = tid / 16, b_col = tid % 16 * 4;
    const float* a_at = a + (blockIdx.y * BM + a_row) * k + a_col;
    const float* b_at = b + b_row * n + blockIdx.x * BN + b_col;
    float acc[4][4] = {};
    float4 next_a = *reinterpret_cast<const float4*>(a_at);
    float4 next_b = *reinterpret_cast<const float4*>(b_at);
    int buffer = 0;
    for (int start = 0;; start += BK) {
        tile_a[buffer][a_col + 0][a_row] = next_a.x;
        tile_a[buffer][a_col + 1][a_row] = next_a.y;
        tile_a[buffer][a_col + 2][a_row] = next_a.z;
        tile_a[buffer][a_col + 3][a_row] = next_a.w;
        *reinterpret_cast<float4*>(&tile_b[buffer][b_row][b_col]) = next_b;
        __syncthreads();
        const bool more = start + BK < k;
        if (more) {
            next_a = *reinterpret_cast<const float4*>(a_at + start + BK);
            next_b = *reinterpret_cast<const float4*>(b_at + (long long)(start + BK) * n);
        }
#pragma unroll
        for (int i = 0; i < BK; ++i) {
            const float4 x = *reinterpret_cast<const float4*>(&tile_a[buffer][i][threadIdx.y * 4]);
            const float4 y = *reinterpret_cast<const float4*>(&tile_b[buffer][i][threadIdx.x * 4]);
            const float xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
            for (int r = 0; r < 4; ++r)
#pragma unroll
                for (int s = 0; s < 4; ++s) acc[r][s] = fmaf(xs[r], ys[s], acc[r][s]);
        }
        if (!more) break;
        buffer ^= 1;
    }
#pragma unroll
    for (int r = 0; r < 4; ++r)
        *reinterpret_cast<float4*>(&c[(blockIdx.y * BM + threadIdx.y * 4 + r) * n + blockIdx.x * BN + threadIdx.x * 4]) =
            make_float4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
}
