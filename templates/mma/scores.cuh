// ---- scores: S = Q Kᵀ of one tile, capped and masked --------------------------------------------------------------------------
using Scores = float[Cfg::M_ATOMS][KEY_TILES][4];

// S[WARP_ROWS x BLOCK_N] = Q · Kᵀ of the tile in slot s_k. LDMATRIX_BATCH fragments of K are loaded before their mma's.
__device__ __forceinline__ void scores(Scores& s, QueryFragments& q, unsigned s_q, unsigned s_k, int warp_row, int lane) {
    constexpr int PAIRS = KEY_TILES / 2;
    const int key = (lane & 7) + ((lane >> 4) << 3);  // matrices: keys 0-7 chunk 0, keys 0-7 chunk 1, keys 8-15 …
    const int chunk = (lane >> 3) & 1;
#pragma unroll
    for (int step = 0; step < K_STEPS; ++step) {
        if constexpr (Q_STAYS_SHARED) {
#pragma unroll
            for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
                load_matrix_x4(q.r[atom][step], query_address(s_q, warp_row, atom, step, lane));
        }
#pragma unroll
        for (int first = 0; first < PAIRS; first += Cfg::LDMATRIX_BATCH) {
            unsigned b[Cfg::LDMATRIX_BATCH][4];  // each: B operands of two 8-key tiles
#pragma unroll
            for (int i = 0; i < Cfg::LDMATRIX_BATCH; ++i)
                if (first + i < PAIRS) load_matrix_x4(b[i], s_k + tile_offset((first + i) * 16 + key, 2 * step + chunk));
#pragma unroll
            for (int i = 0; i < Cfg::LDMATRIX_BATCH; ++i) {
                const int pair = first + i;
                if (pair < PAIRS) {
#pragma unroll
                    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom) {
                        if (step == 0) {
                            mma_16x8x16_first(s[atom][2 * pair], q.r[atom][step], b[i][0], b[i][1]);
                            mma_16x8x16_first(s[atom][2 * pair + 1], q.r[atom][step], b[i][2], b[i][3]);
                        } else {
                            mma_16x8x16(s[atom][2 * pair], q.r[atom][step], b[i][0], b[i][1]);
                            mma_16x8x16(s[atom][2 * pair + 1], q.r[atom][step], b[i][2], b[i][3]);
                        }
                    }
                }
            }
        }
    }
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
