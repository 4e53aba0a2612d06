// ---- packed sequences: copies end with the tensor, not with a sequence -------------------------------------------------------
// Where a piece's rows and keys begin in the tensors. Packed sequences are one sequence of the maps.
struct Place {
    int head;  // of Q and O; with PACK_GQA, the group's
    int sequence;
    int first_query = 0;
    int first_key = 0;

    __device__ __forceinline__ Place(const AttentionParams& p, const Work& work) : head(work.head), sequence(work.sequence) {
        if constexpr (Cfg::PACKED) {
            first_query = p.cu_seqlens_q[sequence];
            first_key = p.cu_seqlens_kv[sequence];
            sequence = 0;
        }
    }
};

// Zeros rows [first, end) of a tile in shared memory, whose panels lie `panel_bytes` apart; `count` threads, of which this is one.
__device__ __forceinline__ void clear_rows(unsigned s_tile, int panel_bytes, int first, int end, int thread, int count) {
    constexpr int CHUNK = 16;
#pragma unroll 1
    for (int panel = 0; panel < PANELS; ++panel)
#pragma unroll 1
        for (int offset = first * PANEL_ROW_BYTES + thread * CHUNK; offset < end * PANEL_ROW_BYTES; offset += count * CHUNK)
            asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(s_tile + panel * panel_bytes + offset), "r"(0)
                         : "memory");
}

// Zeros what a tile of V has past the sequence's end: rows of another sequence, whose weights are zero, but 0 · NaN is not. Only
// the first tile can have any. All consumers read the tile, and clear it together before any of them starts P V.
__device__ __forceinline__ void clear_values_past_end(const KeySlots& v_slots, ConsumerBarrier& cleared, const Rows& rows,
                                                      int first_key, unsigned s_v) {
    const int inside = rows.keys - first_key;
    if (inside >= Cfg::BLOCK_N) return;
    v_slots.wait_full();
    clear_rows(s_v, KEYS_PANEL_BYTES, inside, Cfg::BLOCK_N, threadIdx.x - WARPGROUP, Cfg::CONSUMERS * WARPGROUP);
    fence_async_proxy();
    cleared.wait(threadIdx.x % WARP);  // the zeros are visible to the wgmma's of all consumers
}

// Stores one consumer's rows of O that belong to the sequence; the threads of its warpgroup. TMA would write the others too.
__device__ __forceinline__ void copy_rows_inside(const Rows& rows, int first_row, const unsigned char* s_rows, int thread) {
    constexpr int CHUNKS = Cfg::HEAD_DIM / 8;
    const int count = min(rows.count() - first_row, consumer_rows(rows.p));
#pragma unroll 1
    for (int index = thread; index < count * CHUNKS; index += WARPGROUP) {
        const int row = index / CHUNKS, chunk = index % CHUNKS;
        store_values(rows.o(first_row + row) + chunk * 8, *reinterpret_cast<const uint4*>(s_rows + rows_offset(row, chunk)));
    }
}
