// ---- split-KV: CTAs that share the keys of a query tile leave partial results in the workspace, and one step combines them ----
constexpr long long PARTIAL_FLOATS = Cfg::BLOCK_M * (Cfg::HEAD_DIM + 2);

// Number of a work's query tile among those of all sequences and heads.
__device__ __forceinline__ int tile_number(const AttentionParams& p, const Work& work) {
    return (work.sequence * work_heads(p) + work.head) * query_tiles(p) + work.tile;
}

__device__ __forceinline__ Partial<Cfg::HEAD_DIM> split_partial(const AttentionParams& p, const Work& work, int split) {
    return {static_cast<float*>(p.workspace) +
            (static_cast<long long>(tile_number(p, work)) * Cfg::SPLITS + split) * PARTIAL_FLOATS};
}

// Merges rows [first, end) of a tile over all splits and stores them. Reads past L1, which may hold older bytes.
template <int THREADS>
__device__ __forceinline__ void combine_splits(const Rows& rows, const Work& work, int first, int end, int thread) {
    constexpr int ROW_THREADS = Cfg::HEAD_DIM > 64 ? 32 : Cfg::HEAD_DIM > 32 ? 16 : 8;  // four columns each
    using Row = MergedRow<ROW_THREADS>;
    const float scale = logit_scale(rows.p);
#pragma unroll 1
    for (int row = first + thread / ROW_THREADS; row < end; row += THREADS / ROW_THREADS) {
        Row merged;
#pragma unroll 8
        for (int split = 0; split < Cfg::SPLITS; ++split)
            merged.maximum = fmaxf(merged.maximum, __ldcg(split_partial(rows.p, work, split).stats(row)).x);
        const float subtrahend = finite_max(merged.maximum) * scale;
#pragma unroll 4
        for (int split = 0; split < Cfg::SPLITS; ++split) {
            const Partial<Cfg::HEAD_DIM> partial = split_partial(rows.p, work, split);
            const float2 stats = __ldcg(partial.stats(row));
            const float weight = exp2_approx(fmaf(stats.x, scale, -subtrahend));
            merged.add_sum(stats.y, weight);
#pragma unroll
            for (int piece = 0; piece < Row::PIECES; ++piece)
                if (Row::has(piece, thread))
                    merged.add(piece, __ldcg(reinterpret_cast<const float4*>(partial.at(row, Row::column(piece, thread)))),
                               weight);
        }
        merged.store(rows, work.tile * Cfg::BLOCK_M + row, thread);
    }
}

// Whether this CTA is the last of its tile's splits to get here. Then all their partial results are visible to it, and the
// tile's counter is back at zero.
__device__ __forceinline__ bool last_split(const AttentionParams& p, const Work& work, unsigned char* smem, int thread) {
    bool& s_last = *reinterpret_cast<bool*>(smem);
    __syncthreads();  // the CTA's partial result is written, and nobody reads shared memory any more
    if (thread == 0) {
        __threadfence();  // what the barrier made visible to this thread comes before the count, for the whole GPU
        s_last = atomicInc(p.counters + tile_number(p, work), Cfg::SPLITS - 1) == Cfg::SPLITS - 1;  // wraps to 0
        __threadfence();  // and what the others counted comes before what is read now
    }
    __syncthreads();  // s_last is visible to all threads
    return s_last;
}
