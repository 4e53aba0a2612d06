// ---- merge of the key groups, thread to thread -------------------------------------------------------------------------------
// The same thread of every group holds the same rows and columns. Each group finishes a share of the columns: a thread sends to
// each other group its part of that group's columns, and its rows' maxima and sums, through a slot in its own group's bytes:
//   for each atom, float4 [1 + SHARE][GROUP_THREADS]: (maximum, sum, maximum, sum), then the tiles of the share
// The parts are added in the groups' order, so that the sums come out the same in every run. `wait_for_groups` is a barrier of
// all threads of all groups.
__device__ __forceinline__ float4* exchange_slot(unsigned char* smem_groups, int from, int to, int atom, int group_thread) {
    return reinterpret_cast<float4*>(smem_groups + from * GROUP_BYTES) +
           (to * Cfg::M_ATOMS + atom) * (1 + SHARE) * GROUP_THREADS + group_thread;
}

template <typename WaitForGroups>
__device__ __forceinline__ void exchange_and_store(const Accumulators& acc, const Rows& rows, unsigned char* smem_groups, int group,
                                                   int cta_row, int warp_row, int group_thread, WaitForGroups wait_for_groups) {
    const int lane = group_thread % WARP;
    float4 stats[Cfg::M_ATOMS];
    float4 share[Cfg::M_ATOMS][SHARE] = {};
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom) {
        stats[atom] = make_float4(acc.maximum[atom][0], acc.sum[atom][0], acc.maximum[atom][1], acc.sum[atom][2]);
#pragma unroll
        for (int to = 0; to < Cfg::WARPS_N; ++to) {
            float4* slot = exchange_slot(smem_groups, group, to, atom, group_thread);
            if (to != group) slot[0] = stats[atom];
#pragma unroll
            for (int i = 0; i < SHARE; ++i) {
                if (to * SHARE + i >= D_TILES) continue;
                const float(&o)[4] = acc.o[atom][to * SHARE + i];
                const float4 part = make_float4(o[0], o[1], o[2], o[3]);
                if (to == group) {
                    share[atom][i] = part;
                } else {
                    slot[(i + 1) * GROUP_THREADS] = part;
                }
            }
        }
    }
    wait_for_groups();  // what the groups sent each other is visible

    const float scale = logit_scale(rows.p);
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom) {
        float4 parts[Cfg::WARPS_N];
        float top[2] = {negative_infinity(), negative_infinity()};
#pragma unroll
        for (int from = 0; from < Cfg::WARPS_N; ++from) {
            parts[from] = from == group ? stats[atom] : *exchange_slot(smem_groups, from, group, atom, group_thread);
            top[0] = fmaxf(top[0], parts[from].x);
            top[1] = fmaxf(top[1], parts[from].z);
        }
        const float subtrahends[2] = {finite_max(top[0]) * scale, finite_max(top[1]) * scale};
        float sum[2] = {};
        float4 o[SHARE] = {};
#pragma unroll
        for (int from = 0; from < Cfg::WARPS_N; ++from) {
            const float4* slot = exchange_slot(smem_groups, from, group, atom, group_thread);
            const float weights[2] = {exp2_approx(fmaf(parts[from].x, scale, -subtrahends[0])),
                                      exp2_approx(fmaf(parts[from].z, scale, -subtrahends[1]))};
            sum[0] = fmaf(parts[from].y, weights[0], sum[0]);
            sum[1] = fmaf(parts[from].w, weights[1], sum[1]);
#pragma unroll
            for (int i = 0; i < SHARE; ++i) {
                if (SHARE * Cfg::WARPS_N > D_TILES && group * SHARE + i >= D_TILES) continue;  // the last shares may be shorter
                const float4 part = from == group ? share[atom][i] : slot[(i + 1) * GROUP_THREADS];
                o[i].x = fmaf(part.x, weights[0], o[i].x);
                o[i].y = fmaf(part.y, weights[0], o[i].y);
                o[i].z = fmaf(part.z, weights[1], o[i].z);
                o[i].w = fmaf(part.w, weights[1], o[i].w);
            }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = cta_row + warp_row + atom * 16 + half * 8 + (lane >> 2);
            const bool inside = row < rows.count();
            const float whole = SUM_ON_TENSOR ? sum[half] : quad_sum(sum[half]);
            const RowEnd end = end_row(rows, inside ? row : 0, top[half], whole);
            if (Cfg::HAS_LSE && inside && group == 0 && (lane & 3) == 0) *rows.lse(row) = end.lse;
            unsigned short* target = settled(rows.o(row) + group * SHARE * 8 + (lane & 3) * 2);
#pragma unroll
            for (int i = 0; i < SHARE; ++i)
                if (inside && (SHARE * Cfg::WARPS_N == D_TILES || group * SHARE + i < D_TILES))
                    store_values(target + i * 8, half == 0 ? pack_16bit(o[i].x * end.factor, o[i].y * end.factor)
                                                           : pack_16bit(o[i].z * end.factor, o[i].w * end.factor));
        }
    }
}
