// ---- asynchronous copies: global memory to shared memory, 16 bytes a thread, past the registers ------------------------

// Starts copying 16 bytes. `bytes` below 16 copies that many and fills the rest with zeros; nothing is read for 0.
// The data may be read only after the copy's group has been waited for, and by other threads only after a barrier.
__device__ __forceinline__ void copy_async_16(unsigned smem_address, const void* global, int bytes) {
#define EVO_CP_ASYNC(CACHE_AND_PREFETCH)                                                                  \
    asm volatile("cp.async." CACHE_AND_PREFETCH " [%0], [%1], 16, %2;" ::"r"(smem_address), "l"(global), \
                 "r"(bytes)                                                                               \
                 : "memory")
    if constexpr (Cfg::CACHE_OP == Cfg::CACHE_OP_CG) {
        if constexpr (Cfg::L2_PREFETCH_BYTES == 0) EVO_CP_ASYNC("cg.shared.global");
        if constexpr (Cfg::L2_PREFETCH_BYTES == 128) EVO_CP_ASYNC("cg.shared.global.L2::128B");
        if constexpr (Cfg::L2_PREFETCH_BYTES == 256) EVO_CP_ASYNC("cg.shared.global.L2::256B");
    } else {
        if constexpr (Cfg::L2_PREFETCH_BYTES == 0) EVO_CP_ASYNC("ca.shared.global");
        if constexpr (Cfg::L2_PREFETCH_BYTES == 128) EVO_CP_ASYNC("ca.shared.global.L2::128B");
        if constexpr (Cfg::L2_PREFETCH_BYTES == 256) EVO_CP_ASYNC("ca.shared.global.L2::256B");
    }
#undef EVO_CP_ASYNC
}

// Closes the group of copies that this thread has started since the last commit; an empty group counts as one too.
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most PENDING of this thread's latest groups are still under way.
template <int PENDING>
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
