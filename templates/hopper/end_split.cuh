// ---- the end of a split's CTA ---------------------------------------------------------------------------------------------------
// Loads under way at once in the merge: splits have few rows, a shared last round has few splits of a piece.
constexpr int SPLITS_TOGETHER = SPLIT ? 8 : 2;
constexpr int ROWS_TOGETHER = SPLIT ? 1 : 4;

// Leaves the partial results of all consumers in the workspace, their rows side by side; the last CTA of a tile merges them.
__device__ __forceinline__ void end_split(const Rows& rows, const Work& work, const SplitTile& tile, const Accumulators& acc,
                                          unsigned char* smem) {
    constexpr int THREADS = Cfg::CONSUMERS * WARPGROUP;
    const int thread = threadIdx.x - WARPGROUP;  // among the consumers'
    const int first_row = thread / WARPGROUP * consumer_rows(rows.p);
    const int cta_row = work.tile * cta_rows(rows.p);
    const int rows_left = min(cta_rows(rows.p), rows.count() - cta_row);
    leave_partial(acc, split_partial(rows.p, tile, tile.split), min(rows_left, first_row + consumer_rows(rows.p)),
                  first_row + thread % WARPGROUP / WARP * WARP_ROWS, thread % WARP);
    bool& s_last = *reinterpret_cast<bool*>(smem + BARRIERS_OFFSET + LAST_SPLIT);
    if (last_split(rows.p, tile, s_last, thread, [] { consumers_barrier(); }))
        combine_splits<THREADS, SPLITS_TOGETHER, ROWS_TOGETHER>(rows, tile, cta_row, 0, rows_left, thread);
}
