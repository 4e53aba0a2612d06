//% set wg_type = "f16" if dtype == "fp16" else "bf16"
// ---- warpgroup tensor cores: wgmma.m64nNk16 of 128 threads --------------------------------------------------------------------
// Accumulators lie as those of mma.m16n8k16: warp w of the warpgroup holds rows 16 w to 16 w + 15, four values for each eight
// columns. B, and A where it is not in registers, are read from shared memory through descriptors, by the asynchronous proxy.
/*% macro wgmma(columns, a, transposed, first) %*/
/*% set count = columns // 2 %*/
/*% set from = 4 if a == "registers" else 1 %*/
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %@{ count + from + 1 }@, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n@{ columns }@k16.f32.@{ wg_type }@.@{ wg_type }@ "
                 "{/*% for i in range(count) %*/%@{ i }@/*% if not loop.last %*/, /*% endif %*//*% endfor %*/}, "
/*% if a == "registers" %*/
                 "{%@{ count }@, %@{ count + 1 }@, %@{ count + 2 }@, %@{ count + 3 }@}, %@{ count + 4 }@, p, 1, 1, @{ transposed }@;\n}"
/*% else %*/
                 "%@{ count }@, %@{ count + 1 }@, p, 1, 1, 0, @{ transposed }@;\n}"
/*% endif %*/
                 : /*% for i in range(count) %*/"@{ "=" if first else "+" }@f"(d[@{ i // 4 }@][@{ i % 4 }@])/*% if not loop.last %*/, /*% endif %*//*% endfor %*/

                 : /*% if a == "registers" %*/"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])/*% else %*/"l"(a)/*% endif %*/, "l"(b), "n"(@{ 0 if first else 1 }@));
/*% endmacro %*/

// Orders register and shared-memory accesses before the wgmma's that follow.
__device__ __forceinline__ void warpgroup_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void warpgroup_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// What this thread wrote, or copied with cp.async and waited for, is visible to the wgmma's after the next barrier.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Keeps the compiler from moving accesses to accumulators, or to operands in registers, across a point where the tensor
// cores may be at them, and from giving an operand's registers to something else until then.
template <int TILES>
__device__ __forceinline__ void pin(float (&d)[TILES][4]) {
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(d[tile][i])::"memory");
}
template <int STEPS>
__device__ __forceinline__ void pin(unsigned (&a)[STEPS][4]) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(a[step][i])::"memory");
}

// S[64 x BLOCK_N] (+)= A[64 x 16] · B[BLOCK_N x 16]ᵀ, both in shared memory
template <bool FIRST>
__device__ __forceinline__ void wgmma_scores(float (&d)[KEY_TILES][4], unsigned long long a, unsigned long long b) {
    if constexpr (FIRST) {
@{ wgmma(BLOCK_N, "smem", 0, true) }@
    } else {
@{ wgmma(BLOCK_N, "smem", 0, false) }@
    }
}

//% if Q_SOURCE is defined and Q_SOURCE == "registers"
// The same, A in registers
template <bool FIRST>
__device__ __forceinline__ void wgmma_scores(float (&d)[KEY_TILES][4], const unsigned (&a)[4], unsigned long long b) {
    if constexpr (FIRST) {
@{ wgmma(BLOCK_N, "registers", 0, true) }@
    } else {
@{ wgmma(BLOCK_N, "registers", 0, false) }@
    }
}
//% endif

// O[64 x HEAD_DIM] += A[64 x 16] · B[16 x HEAD_DIM], A in registers
__device__ __forceinline__ void wgmma_values(float (&d)[D_TILES][4], const unsigned (&a)[4], unsigned long long b) {
@{ wgmma(head_dim, "registers", 1, false) }@
}
