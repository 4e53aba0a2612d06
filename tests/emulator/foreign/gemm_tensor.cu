// C[m x n] = A[m x k] · B[k x n] on tensor cores. All sizes are multiples of 16.
#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda;

// One warp per 16 x 16 tile of C; A and B row-major halves.
extern "C" __global__ void gemm_wmma(const half* a, const half* b, float* c, int m, int n, int k) {
    const int row = blockIdx.y * 16, col = blockIdx.x * 16;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc;
    wmma::fill_fragment(acc, 0.0f);
    for (int i = 0; i < k; i += 16) {
        wmma::load_matrix_sync(fa, a + row * k + i, k);
        wmma::load_matrix_sync(fb, b + i * n + col, n);
        wmma::mma_sync(acc, fa, fb, acc);
    }
    wmma::store_matrix_sync(c + row * n + col, acc, n, wmma::mem_row_major);
}

// The same with an f16 accumulator and f16 output.
extern "C" __global__ void gemm_wmma_half(const half* a, const half* b, half* c, int m, int n, int k) {
    const int row = blockIdx.y * 16, col = blockIdx.x * 16;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, half> acc;
    wmma::fill_fragment(acc, __float2half(0.0f));
    for (int i = 0; i < k; i += 16) {
        wmma::load_matrix_sync(fa, a + row * k + i, k);
        wmma::load_matrix_sync(fb, b + i * n + col, n);
        wmma::mma_sync(acc, fa, fb, acc);
    }
    wmma::store_matrix_sync(c + row * n + col, acc, n, wmma::mem_row_major);
}

__device__ __forceinline__ void mma_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// One warp per 16 x 8 tile; tiles go through shared memory by cp.async and ldmatrix.
extern "C" __global__ void gemm_mma(const half* a, const half* b, float* c, int m, int n, int k) {
    __shared__ __align__(16) half tile_a[16][24], tile_b[16][8];
    const int lane = threadIdx.x, row = blockIdx.y * 16, col = blockIdx.x * 8;
    float acc[4] = {};
    for (int i = 0; i < k; i += 16) {
        const unsigned to_a = (unsigned)__cvta_generic_to_shared(&tile_a[lane / 2][lane % 2 * 8]);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to_a), "l"(a + (row + lane / 2) * k + i + lane % 2 * 8));
        if (lane < 16) {
            const unsigned to_b = (unsigned)__cvta_generic_to_shared(&tile_b[lane][0]);
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to_b), "l"(b + (i + lane) * n + col));
        }
        asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;\n" ::);
        __syncthreads();
        unsigned fa[4], fb[2];
        const unsigned from_a = (unsigned)__cvta_generic_to_shared(&tile_a[lane % 16][lane / 16 * 8]);
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                     : "=r"(fa[0]), "=r"(fa[1]), "=r"(fa[2]), "=r"(fa[3]) : "r"(from_a));
        const unsigned from_b = (unsigned)__cvta_generic_to_shared(&tile_b[lane % 16][0]);
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];\n" : "=r"(fb[0]), "=r"(fb[1]) : "r"(from_b));
        mma_f16(acc, fa, fb);
        __syncthreads();
    }
    float2* out = reinterpret_cast<float2*>(c + (row + lane / 4) * n + col + lane % 4 * 2);
    out[0] = make_float2(acc[0], acc[1]);
    out[4 * n] = make_float2(acc[2], acc[3]);
}

// Floats, rounded to tf32: one warp per 16 x 8 tile, fragments straight from global memory.
extern "C" __global__ void gemm_tf32(const float* a, const float* b, float* c, int m, int n, int k) {
    const int g = threadIdx.x / 4, t = threadIdx.x % 4, row = blockIdx.y * 16, col = blockIdx.x * 8;
    float acc[4] = {};
    auto tf32 = [](float x) { unsigned r; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x)); return r; };
    for (int i = 0; i < k; i += 8) {
        const unsigned a0 = tf32(a[(row + g) * k + i + t]), a1 = tf32(a[(row + g + 8) * k + i + t]);
        const unsigned a2 = tf32(a[(row + g) * k + i + t + 4]), a3 = tf32(a[(row + g + 8) * k + i + t + 4]);
        const unsigned b0 = tf32(b[(i + t) * n + col + g]), b1 = tf32(b[(i + t + 4) * n + col + g]);
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                     : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
    float* out = c + (row + g) * n + col + t * 2;
    out[0] = acc[0]; out[1] = acc[1]; out[8 * n] = acc[2]; out[8 * n + 1] = acc[3];
}

// Bytes: A row-major, B given as its transpose [n x k]; k a multiple of 32.
extern "C" __global__ void gemm_s8(const signed char* a, const signed char* bt, int* c, int m, int n, int k) {
    const int g = threadIdx.x / 4, t = threadIdx.x % 4, row = blockIdx.y * 16, col = blockIdx.x * 8;
    int acc[4] = {};
    for (int i = 0; i < k; i += 32) {
        const int* a_top = reinterpret_cast<const int*>(a + (row + g) * k + i);
        const int* a_low = reinterpret_cast<const int*>(a + (row + g + 8) * k + i);
        const int* b_col = reinterpret_cast<const int*>(bt + (col + g) * k + i);
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                     : "+r"(acc[0]), "+r"(acc[1]), "+r"(acc[2]), "+r"(acc[3])
                     : "r"(a_top[t]), "r"(a_low[t]), "r"(a_top[t + 4]), "r"(a_low[t + 4]), "r"(b_col[t]), "r"(b_col[t + 4]));
    }
    int* out = c + (row + g) * n + col + t * 2;
    out[0] = acc[0]; out[1] = acc[1]; out[8 * n] = acc[2]; out[8 * n + 1] = acc[3];
}
