// ---- scores: S = Q Kᵀ of one tile, from shared memory ------------------------------------------------------------------------
/*# region scores #*/
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
/*# endregion #*/
