// ---- values: O += P V of one tile ---------------------------------------------------------------------------------------------
/*# region values #*/
// O[WARP_ROWS x HEAD_DIM] += P · V of the tile in slot s_v. Two neighbouring 8-key tiles of P are one 16-deep A operand.
// `before(step)` runs before each 16 keys: exponentials made there overlap with the mma's of the keys before.
template <typename Before>
__device__ __forceinline__ void weighted_values(const Scores& s, Accumulators& acc, unsigned s_v, int lane, Before before) {
    constexpr int PAIRS = FILLED_CHUNKS / 2;  // the second tile of the last pair may be filling only
    const int key = lane & 15;  // matrices: keys 0-7 chunk 0, keys 8-15 chunk 0, keys 0-7 chunk 1 …
    const int chunk = lane >> 4;
#pragma unroll
    for (int step = 0; step < KEY_TILES / 2; ++step) {
        before(step);
        unsigned a[Cfg::M_ATOMS][4];
#pragma unroll
        for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float(&pair)[4] = s[atom][2 * step + i / 2];
                a[atom][i] = pack_16bit(pair[(i % 2) * 2], pair[(i % 2) * 2 + 1]);
            }
        if constexpr (SUM_ON_TENSOR) {  // one more column of V, all ones: the sum of P as it was rounded
#pragma unroll
            for (int atom = 0; atom < Cfg::M_ATOMS; ++atom) mma_16x8x16(acc.sum[atom], a[atom], TWO_ONES, TWO_ONES);
        }
#pragma unroll
        for (int first = 0; first < PAIRS; first += Cfg::LDMATRIX_BATCH) {
            unsigned b[Cfg::LDMATRIX_BATCH][4];  // each: B operands of two 8-column tiles
#pragma unroll
            for (int i = 0; i < Cfg::LDMATRIX_BATCH; ++i)
                if (first + i < PAIRS)
                    load_matrix_x4_transposed(b[i], s_v + tile_offset(step * 16 + key, 2 * (first + i) + chunk));
#pragma unroll
            for (int i = 0; i < Cfg::LDMATRIX_BATCH; ++i) {
                const int pair = first + i;
                if (pair < PAIRS) {
#pragma unroll
                    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom) {
                        mma_16x8x16(acc.o[atom][2 * pair], a[atom], b[i][0], b[i][1]);
                        if (2 * pair + 1 < D_TILES) mma_16x8x16(acc.o[atom][2 * pair + 1], a[atom], b[i][2], b[i][3]);
                    }
                }
            }
        }
    }
}
/*# endregion #*/
