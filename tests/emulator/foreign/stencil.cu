// Stencils whose blocks load a halo, and a grid-stride loop.

extern "C" __global__ void stencil_1d(const float* in, float* out, int n) {
    constexpr int R = 3;
    extern __shared__ float line[];  // blockDim.x + 2 R
    const int i = blockIdx.x * blockDim.x + threadIdx.x, at = threadIdx.x + R;
    line[at] = i < n ? in[i] : 0.0f;
    if (threadIdx.x < R) {
        line[at - R] = i >= R ? in[i - R] : 0.0f;
        line[at + blockDim.x] = i + (int)blockDim.x < n ? in[i + blockDim.x] : 0.0f;
    }
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int d = -R; d <= R; ++d) sum += line[at + d];
    if (i < n) out[i] = sum;
}

extern "C" __global__ void stencil_2d(const double* in, double* out, int width, int height) {
    constexpr int T = 16;
    __shared__ double tile[T + 2][T + 2];
    const int x = blockIdx.x * T + threadIdx.x, y = blockIdx.y * T + threadIdx.y;
    auto at = [&](int yy, int xx) { return xx >= 0 && xx < width && yy >= 0 && yy < height ? in[yy * width + xx] : 0.0; };
    const int tx = threadIdx.x + 1, ty = threadIdx.y + 1;
    tile[ty][tx] = at(y, x);
    if (threadIdx.x == 0) tile[ty][0] = at(y, x - 1);
    if (threadIdx.x == T - 1) tile[ty][T + 1] = at(y, x + 1);
    if (threadIdx.y == 0) tile[0][tx] = at(y - 1, x);
    if (threadIdx.y == T - 1) tile[T + 1][tx] = at(y + 1, x);
    __syncthreads();
    if (x < width && y < height)
        out[y * width + x] = 0.5 * tile[ty][tx] + 0.125 * (tile[ty][tx - 1] + tile[ty][tx + 1] + tile[ty - 1][tx] + tile[ty + 1][tx]);
}

extern "C" __global__ void saxpy(int n, double a, const double* x, double* y) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) y[i] = a * x[i] + y[i];
}
