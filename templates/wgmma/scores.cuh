// ---- scores: S = Q Kᵀ of one tile, from shared memory ------------------------------------------------------------------------
// S[64 x BLOCK_N] = Q · Kᵀ of the tile in slot s_k, for the rows of this warpgroup. Returns while it is under way.
__device__ __forceinline__ void start_scores(Scores& s, unsigned s_q, unsigned s_k, int warp_row) {
    const unsigned s_rows = s_q + warp_row / WARPGROUP_ROWS * (WARPGROUP_ROWS / 8 * EIGHT_ROWS_BYTES);
    unsigned long long a[K_STEPS], b[K_STEPS];
#pragma unroll
    for (int step = 0; step < K_STEPS; ++step) {
        const int offset = step / 4 * ATOM_BYTES + step % 4 * 32;  // a panel holds four steps of 32 bytes
        a[step] = tile_descriptor(s_rows + offset);
        b[step] = tile_descriptor(s_k + offset);
    }
    warpgroup_fence();
    wgmma_scores(s[0], a, b);
    warpgroup_commit();
}
