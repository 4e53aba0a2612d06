// ---- tensor cores: fragments of m16n8k16 and the loads that fill them --------------------------------------------------
// A lane is (g, t) = (lane / 4, lane % 4). Two 16-bit values share a register, the lower column in the lower half.
//   A[16x16]: a[0] = (row g, cols 2t..)   a[1] = (row g+8, cols 2t..)   a[2], a[3] = the same rows, cols 2t+8..
//   B[16x8]:  b[0] = (rows 2t.., col g)   b[1] = (rows 2t+8.., col g)
//   D[16x8]:  d[0], d[1] = (row g, cols 2t, 2t+1)   d[2], d[3] = (row g+8, the same cols)

// D[16x8] = A[16x16] · B[16x8] + C[16x8], products exact, sums in f32.
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, float c0,
                                            float c1, float c2, float c3) {
#define EVO_MMA(TYPE)                                                                                            \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
        "{%10, %11, %12, %13};"                                                                                  \
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])                                                         \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c0), "f"(c1), "f"(c2), "f"(c3))
    if constexpr (Cfg::IS_BF16) {
        EVO_MMA("bf16");
    } else {
        EVO_MMA("f16");
    }
#undef EVO_MMA
}

// D += A · B.
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    mma_16x8x16(d, a, b0, b1, d[0], d[1], d[2], d[3]);
}

// D = A · B: the zeros come with the instruction and need not be written into D before.
__device__ __forceinline__ void mma_16x8x16_first(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    mma_16x8x16(d, a, b0, b1, 0.0f, 0.0f, 0.0f, 0.0f);
}

// Loads four 8x8 matrices of 16-bit values; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void load_matrix_x4(unsigned (&r)[4], unsigned smem_address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(smem_address)
                 : "memory");
}

// The same, each matrix transposed on the way.
__device__ __forceinline__ void load_matrix_x4_transposed(unsigned (&r)[4], unsigned smem_address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(smem_address)
                 : "memory");
}
