// ---- scores: S = Q Kᵀ of one tile, capped and masked --------------------------------------------------------------------------
using Scores = float[Cfg::M_ATOMS][KEY_TILES][4];

// S[64 x BLOCK_N] = Q · Kᵀ of the tile in slot s_k, for the rows of this warpgroup. Returns while it is under way.
__device__ __forceinline__ void start_scores(Scores& s, unsigned s_q, unsigned s_k, int warp_row) {
    warpgroup_fence();
    const unsigned s_rows = s_q + warp_row / WARPGROUP_ROWS * (WARPGROUP_ROWS / 8 * EIGHT_ROWS_BYTES);
#pragma unroll
    for (int step = 0; step < K_STEPS; ++step) {
        const int offset = step / 4 * ATOM_BYTES + step % 4 * 32;  // a panel holds four steps of 32 bytes
        const unsigned long long q = tile_descriptor(s_rows + offset);
        const unsigned long long k = tile_descriptor(s_k + offset);
        if (step == 0) {
            wgmma_scores<true>(s[0], q, k);
        } else {
            wgmma_scores<false>(s[0], q, k);
        }
    }
    warpgroup_commit();
}

// What turns S into logits in base 2: the softmax scale, or nothing more where the softcap has scaled already.
__device__ __forceinline__ float logit_scale(const AttentionParams& p) { return Cfg::HAS_SOFTCAP ? 1.0f : p.positive_scale; }

// Whether Q must be negated: the factor above has no sign.
__device__ __forceinline__ bool negates_queries(const AttentionParams& p) { return !Cfg::HAS_SOFTCAP && scale_is_negative(p); }

__device__ __forceinline__ void cap_scores(Scores& s, const AttentionParams& p) {
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int tile = 0; tile < KEY_TILES; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i) s[atom][tile][i] = softcap(s[atom][tile][i], p.softcap_scale, p.softcap_log2);
}

// Keys that a row must not see become -inf.
__device__ __forceinline__ void mask_scores(Scores& s, const Rows& rows, int first_row, int first_key, int lane) {
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int query = rows.query(first_row + atom * 16 + half * 8 + (lane >> 2));
            const int begin = rows.begin_of(query);
            const int end = rows.end_of(query);
#pragma unroll
            for (int tile = 0; tile < KEY_TILES; ++tile)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int key = first_key + tile * 8 + (lane & 3) * 2 + i;
                    if (key >= end || (Cfg::HAS_WINDOW_LEFT && key < begin)) s[atom][tile][2 * half + i] = negative_infinity();
                }
        }
}
