// ---- merge of the key groups, row by row -------------------------------------------------------------------------------------
/*# region merge #*/
// Merges the key groups of the CTA, after its barrier: eight threads take a row and hand what they made to `finish(row, …)`.
template <typename Finish>
__device__ __forceinline__ void merge_groups(unsigned char* s_groups, float scale, int rows_left, int thread, Finish finish) {
    constexpr int ROW_THREADS = 8;  // a 16-byte read each covers all banks
    using Row = MergedRow<ROW_THREADS>;
#pragma unroll 1
    for (int row = thread / ROW_THREADS; row < rows_left; row += Cfg::LAUNCH_THREADS / ROW_THREADS) {
        auto partial_of = [&](int group) {
            return Partial<MERGE_PITCH>{reinterpret_cast<float*>(s_groups + group * GROUP_BYTES)};
        };
        Row merged;
        float2 stats[Cfg::WARPS_N];
#pragma unroll
        for (int group = 0; group < Cfg::WARPS_N; ++group) {
            stats[group] = *partial_of(group).stats(row);
            merged.maximum = fmaxf(merged.maximum, stats[group].x);
        }
        const float subtrahend = finite_max(merged.maximum) * scale;
#pragma unroll
        for (int group = 0; group < Cfg::WARPS_N; ++group) {
            const float weight = exp2_approx(fmaf(stats[group].x, scale, -subtrahend));
            merged.add_sum(stats[group].y, weight);
#pragma unroll
            for (int piece = 0; piece < Row::PIECES; ++piece)
                if (Row::has(piece, thread))
                    merged.add(piece, *reinterpret_cast<const float4*>(partial_of(group).at(row, Row::column(piece, thread))),
                               weight);
        }
        finish(row, merged);
    }
}
/*# endregion #*/
