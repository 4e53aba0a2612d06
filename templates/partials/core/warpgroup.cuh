//% set wg_type = "f16" if dtype == "fp16" else "bf16"
// ---- warpgroup tensor cores: wgmma.m64nNk16 of 128 threads --------------------------------------------------------------------
// Accumulators lie as those of mma.m16n8k16: warp w of the warpgroup holds rows 16 w to 16 w + 15, four values for each eight
// columns. B, and A where it is not in registers, are read from shared memory through descriptors, by the asynchronous proxy.
// All 16-deep steps of a product are one statement: NVRTC's time grows with the statements that name all accumulators.
// The first instruction of a statement writes accumulators before the last one reads its operands; operands have other types than
// accumulators, so that they share no PTX register.
/*% macro wgmma(columns, steps, a, transposed, first) %*/
/*% set count = columns // 2 %*/
/*% set from = count + steps * (4 if a == "registers" else 1) %*/
    asm volatile("{\n.reg .pred more;\n"
/*% for step in range(steps) %*/
                 "setp.ne.b32 more, @{ 0 if first and step == 0 else 1 }@, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n@{ columns }@k16.f32.@{ wg_type }@.@{ wg_type }@ "
                 "{/*% for i in range(count) %*/%@{ i }@/*% if not loop.last %*/, /*% endif %*//*% endfor %*/}, "
/*% if a == "registers" %*/
/*% set r = count + 4 * step %*/
                 "{%@{ r }@, %@{ r + 1 }@, %@{ r + 2 }@, %@{ r + 3 }@}, %@{ from + step }@, more, 1, 1, @{ transposed }@;\n"
/*% else %*/
                 "%@{ count + step }@, %@{ from + step }@, more, 1, 1, 0, @{ transposed }@;\n"
/*% endif %*/
/*% endfor %*/
                 "}"
                 : /*% for i in range(count) %*/"@{ "=" if first else "+" }@f"(d[@{ i // 4 }@][@{ i % 4 }@])/*% if not loop.last %*/, /*% endif %*//*% endfor %*/

                 : /*% for step in range(steps) %*//*% if a == "registers" %*/"r"(a[@{ step }@][0]), "r"(a[@{ step }@][1]), "r"(a[@{ step }@][2]), "r"(a[@{ step }@][3]), /*% else %*/"l"(a[@{ step }@]), /*% endif %*//*% endfor %*/

                   /*% for step in range(steps) %*/"l"(b[@{ step }@])/*% if not loop.last %*/, /*% endif %*//*% endfor %*/);
/*% endmacro %*/

// Orders register and shared-memory accesses before the wgmma's that follow.
__device__ __forceinline__ void warpgroup_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void warpgroup_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// After the next barrier, wgmma sees what this thread wrote, or copied with cp.async and waited for.
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

// S[64 x BLOCK_N] = A[64 x HEAD_DIM] · B[BLOCK_N x HEAD_DIM]ᵀ; each step has a descriptor of B, and a descriptor or registers of A
//% if Q_SOURCE is defined and Q_SOURCE == "registers"
__device__ __forceinline__ void wgmma_scores(float (&d)[KEY_TILES][4], const unsigned (&a)[K_STEPS][4],
                                             const unsigned long long (&b)[K_STEPS]) {
@{ wgmma(BLOCK_N, (head_dim + 15) // 16, "registers", 0, true) }@
}
//% else
__device__ __forceinline__ void wgmma_scores(float (&d)[KEY_TILES][4], const unsigned long long (&a)[K_STEPS],
                                             const unsigned long long (&b)[K_STEPS]) {
@{ wgmma(BLOCK_N, (head_dim + 15) // 16, "smem", 0, true) }@
}
//% endif

// O[64 x HEAD_DIM] += A[64 x BLOCK_N] · B[BLOCK_N x HEAD_DIM], A in registers
__device__ __forceinline__ void wgmma_values(float (&d)[D_TILES][4], const unsigned (&a)[KEY_TILES / 2][4],
                                             const unsigned long long (&b)[KEY_TILES / 2]) {
@{ wgmma(head_dim, BLOCK_N // 16, "registers", 1, false) }@
}
//% if PV_KEYS is defined

// The same for one step.
__device__ __forceinline__ void wgmma_values(float (&d)[D_TILES][4], const unsigned (&registers)[4], unsigned long long descriptor) {
    const unsigned a[1][4] = {{registers[0], registers[1], registers[2], registers[3]}};
    const unsigned long long b[1] = {descriptor};
@{ wgmma(head_dim, 1, "registers", 1, false) }@
}
//% endif
