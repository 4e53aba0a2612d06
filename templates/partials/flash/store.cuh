// ---- stores of finished rows ---------------------------------------------------------------------------------------------------
// One key group: straight from the fragments (4 bytes a lane) or through shared memory (16 bytes).
__device__ __forceinline__ void store_output(const Accumulators& acc, const Rows& rows, unsigned char* s_stage, int cta_row,
                                             int warp_row, int lane) {
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int tile_row = warp_row + atom * 16 + half * 8 + (lane >> 2);
            const int row = cta_row + tile_row;
            const bool inside = row < rows.count();
            const RowEnd end = end_row(rows, inside ? row : 0, acc.maximum[atom][half], row_sum(acc, atom, half));
            if (Cfg::HAS_LSE && inside && (lane & 3) == 0) *rows.lse(row) = end.lse;
            unsigned short* target = settled(rows.o(row) + (lane & 3) * 2);
#pragma unroll
            for (int tile = 0; tile < D_TILES; ++tile) {
                const unsigned packed = pack_16bit(acc.o[atom][tile][2 * half] * end.factor,
                                                   acc.o[atom][tile][2 * half + 1] * end.factor);
                if constexpr (STAGED) {
                    *reinterpret_cast<unsigned*>(s_stage + tile_offset(tile_row, tile) + (lane & 3) * 4) = packed;
                } else if (inside) {
                    store_values(target + tile * 8, packed);
                }
            }
        }
    if constexpr (STAGED) {
        __syncwarp();  // the warp's rows are written by all its lanes and now read by others of them
#pragma unroll
        for (int first = 0; first < WARP_ROWS * CHUNKS; first += WARP) {
            const int row = warp_row + (first + lane) / CHUNKS;
            const int chunk = (first + lane) % CHUNKS;
            if (first + lane < WARP_ROWS * CHUNKS && cta_row + row < rows.count())
                store_values(rows.o(cta_row + row) + chunk * 8,
                             *reinterpret_cast<const uint4*>(s_stage + tile_offset(row, chunk)));
        }
    }
}
