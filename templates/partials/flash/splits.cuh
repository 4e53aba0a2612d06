// ---- split-KV: CTAs that share the keys of a query tile leave partial results in the workspace, and one step combines them ----
constexpr long long PARTIAL_FLOATS = Cfg::BLOCK_M * (Cfg::HEAD_DIM + 2);

// One query tile whose keys several CTAs share.
struct SplitTile {
    int counter;              // index of the tile's counter
    int splits;               // CTAs that share it
    int split;                // number of this one
    long long first_partial;  // where the partial results of its splits begin in the workspace, in their order
};

// Number of a work's query tile among those of all sequences and heads.
__device__ __forceinline__ int tile_number(const AttentionParams& p, const Work& work) {
    return (work.sequence * work_heads(p) + work.head) * query_tiles(p) + work.tile;
}

// Where every tile has the same number of splits.
__device__ __forceinline__ SplitTile split_tile(const AttentionParams& p, const Work& work, int splits) {
    const int number = tile_number(p, work);
    return {number, splits, static_cast<int>(work.split), static_cast<long long>(number) * splits};
}

__device__ __forceinline__ Partial<Cfg::HEAD_DIM> split_partial(const AttentionParams& p, const SplitTile& tile, int split) {
    return {static_cast<float*>(p.workspace) + (tile.first_partial + split) * PARTIAL_FLOATS};
}

// Merges rows [first, end) of a tile over all splits and stores them. Reads bypass L1, which may hold older bytes. A read
// has a long latency, so the reads of TOGETHER splits of ROWS rows are under way at once.
template <int THREADS, int TOGETHER, int ROWS = 1>
__device__ __forceinline__ void combine_splits(const Rows& rows, const SplitTile& tile, int cta_row, int first, int end, int thread) {
    constexpr int ROW_THREADS = Cfg::HEAD_DIM > 64 ? 32 : Cfg::HEAD_DIM > 32 ? 16 : 8;  // four columns each
    constexpr int APART = THREADS / ROW_THREADS;                                        // one thread's rows
    using Row = MergedRow<ROW_THREADS>;
    const int splits = tile.splits;
    const float scale = logit_scale(rows.p);
#pragma unroll 1
    for (int top = first + thread / ROW_THREADS; top < end; top += ROWS * APART) {
        Row merged[ROWS];
#pragma unroll 1
        for (int from = 0; from < splits; from += TOGETHER) {
            float2 parts[ROWS][TOGETHER];
            float4 o[ROWS][TOGETHER][Row::PIECES];
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
#pragma unroll
                for (int i = 0; i < TOGETHER; ++i) {
                    const int row = ROWS == 1 ? top : min(top + r * APART, end - 1);
                    const Partial<Cfg::HEAD_DIM> partial = split_partial(rows.p, tile, min(from + i, splits - 1));
                    parts[r][i] = __ldcg(partial.stats(row));
#pragma unroll
                    for (int piece = 0; piece < Row::PIECES; ++piece)
                        if (Row::has(piece, thread))
                            o[r][i][piece] = __ldcg(reinterpret_cast<const float4*>(partial.at(row, Row::column(piece, thread))));
                }
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                float maximum = merged[r].maximum;
#pragma unroll
                for (int i = 0; i < TOGETHER; ++i) maximum = fmaxf(maximum, parts[r][i].x);
                const float subtrahend = finite_max(maximum) * scale;
                if (from > 0) merged[r].scale_down(exp2_approx(fmaf(merged[r].maximum, scale, -subtrahend)));
                merged[r].maximum = maximum;
#pragma unroll
                for (int i = 0; i < TOGETHER; ++i) {
                    if (from + i >= splits) continue;
                    const float weight = exp2_approx(fmaf(parts[r][i].x, scale, -subtrahend));
                    merged[r].add_sum(parts[r][i].y, weight);
#pragma unroll
                    for (int piece = 0; piece < Row::PIECES; ++piece)
                        if (Row::has(piece, thread)) merged[r].add(piece, o[r][i][piece], weight);
                }
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            if (ROWS == 1 || top + r * APART < end) merged[r].store(rows, cta_row + top + r * APART, thread);
    }
}

// Increments a counter, which wraps to 0 after `last`; returns the value before. Releases the writes that this thread sees to the
// whole GPU, and acquires those that other threads released by their increments.
__device__ __forceinline__ unsigned count_up(unsigned* counter, unsigned last) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(last) : "memory");
    return before;
}

// Whether this CTA is the last of its tile's splits to get here. Then all their partial results are visible to it, and the
// tile's counter is back at zero. `barrier` waits for all threads that call this.
template <typename Barrier>
__device__ __forceinline__ bool last_split(const AttentionParams& p, const SplitTile& tile, bool& s_last, int thread, Barrier barrier) {
    barrier();  // the CTA's partial result is written, and no thread reads shared memory any more
    if (thread == 0) {
        const unsigned last = tile.splits - 1;
        s_last = count_up(p.counters + tile.counter, last) == last;
    }
    barrier();  // s_last is visible to all threads
    return s_last;
}
