// ---- the softmax beside a P V that is under way ---------------------------------------------------------------------------------
/*# region weights #*/
// P as A operands.
__device__ __forceinline__ void pack_weights(const Scores& s, unsigned (&a)[KEY_TILES / 2][4]) {
#pragma unroll
    for (int step = 0; step < KEY_TILES / 2; ++step)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float(&pair)[4] = s[0][2 * step + i / 2];
            a[step][i] = pack_16bit(pair[(i % 2) * 2], pair[(i % 2) * 2 + 1]);
        }
}
/*# endregion #*/

// Ends a basic block after the softmax that made `sum`, which is never negative. Without it, ptxas moves the wait for P V in
// front of the softmax, and nothing overlaps.
__device__ __forceinline__ void keep_before(float sum) {
    if (sum < 0.0f) __nanosleep(1);
}

// Waits for a P V that is under way: then O and the registers of P are free again.
__device__ __forceinline__ void end_values(Accumulators& acc, unsigned (&a)[KEY_TILES / 2][4]) {
    warpgroup_wait<0>();
    pin(acc.o[0]);
    pin(a);
}
