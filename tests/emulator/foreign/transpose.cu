// out[x][y] = in[y][x] for a height x width matrix; blocks of 32 x 8 threads move tiles of 32 x 32.
constexpr int TILE = 32, ROWS = 8;

extern "C" __global__ void transpose_naive(const float* in, float* out, int width, int height) {
    const int x = blockIdx.x * TILE + threadIdx.x;
    for (int y = blockIdx.y * TILE + threadIdx.y; y < (int)(blockIdx.y + 1) * TILE; y += ROWS)
        if (x < width && y < height) out[(long long)x * height + y] = in[(long long)y * width + x];
}

template <int PITCH>
__device__ void transpose_tile(const float* in, float* out, int width, int height, float (*tile)[PITCH]) {
    int x = blockIdx.x * TILE + threadIdx.x;
    int y = blockIdx.y * TILE + threadIdx.y;
#pragma unroll
    for (int j = 0; j < TILE; j += ROWS)
        if (x < width && y + j < height) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * width + x];
    __syncthreads();
    x = blockIdx.y * TILE + threadIdx.x;
    y = blockIdx.x * TILE + threadIdx.y;
#pragma unroll
    for (int j = 0; j < TILE; j += ROWS)
        if (x < height && y + j < width) out[(y + j) * height + x] = tile[threadIdx.x][threadIdx.y + j];
}

extern "C" __global__ void transpose_tiled(const float* in, float* out, int width, int height) {
    __shared__ float tile[TILE][TILE];
    transpose_tile<TILE>(in, out, width, height, tile);
}

extern "C" __global__ void transpose_padded(const float* in, float* out, int width, int height) {
    __shared__ float tile[TILE][TILE + 1];
    transpose_tile<TILE + 1>(in, out, width, height, tile);
}
