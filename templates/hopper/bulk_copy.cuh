// ---- bulk copies of tiles by TMA: [rows][64 columns] panels with 128-byte swizzle ---------------------------------------------
// A map holds address, sizes and strides of its tensor, and the size of the box that one copy moves. Rows past the end and
// columns past head_dim are read as zeros, and not written.

// Starts the copy of one tile, a panel at a time; it reports its bytes to the barrier.
template <int PANEL_BYTES>
__device__ __forceinline__ void load_tile(unsigned s_tile, const TensorMap& map, unsigned barrier, int row, int head,
                                          int sequence) {
#pragma unroll
    for (int panel = 0; panel < PANELS; ++panel)
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(
                s_tile + panel * PANEL_BYTES),
            "l"(&map), "r"(barrier), "r"(panel * PANEL_COLUMNS), "r"(row), "r"(head), "r"(sequence)
            : "memory");
}

// The same for one consumer's rows of Q. With PACK_GQA a box holds all heads of a group, a query at a time, and `head` is the
// group's.
__device__ __forceinline__ void load_queries(unsigned s_rows, const TensorMap& map, unsigned barrier, int query, int head,
                                             int sequence) {
    if constexpr (Cfg::PACK_GQA) {
#pragma unroll
        for (int panel = 0; panel < PANELS; ++panel)
            asm volatile(
                "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, 0, %4, %5, %6}], "
                "[%2];" ::"r"(s_rows + panel * ROWS_PANEL_BYTES),
                "l"(&map), "r"(barrier), "r"(panel * PANEL_COLUMNS), "r"(query), "r"(head), "r"(sequence)
                : "memory");
    } else {
        load_tile<ROWS_PANEL_BYTES>(s_rows, map, barrier, query, head, sequence);
    }
}

// Starts the copy of one consumer's rows of O to global memory, as one group.
__device__ __forceinline__ void store_rows(const TensorMap& map, unsigned s_rows, int query, int head, int sequence) {
#pragma unroll
    for (int panel = 0; panel < PANELS; ++panel)
        if constexpr (Cfg::PACK_GQA) {
            asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, 0, %3, %4, %5}], [%1];" ::"l"(&map),
                         "r"(s_rows + panel * ROWS_PANEL_BYTES), "r"(panel * PANEL_COLUMNS), "r"(query), "r"(head),
                         "r"(sequence)
                         : "memory");
        } else {
            asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
                         "r"(s_rows + panel * ROWS_PANEL_BYTES), "r"(panel * PANEL_COLUMNS), "r"(query), "r"(head),
                         "r"(sequence)
                         : "memory");
        }
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until this thread's stores have read their bytes in shared memory.
__device__ __forceinline__ void wait_stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// Waits until they are done.
__device__ __forceinline__ void wait_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Fetches a map, which lies in the kernel's parameters, before the first copy needs it.
__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
