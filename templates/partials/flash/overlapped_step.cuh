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

/*# region rescale #*/
// As raise_maxima, but O, which is under way, is scaled down later.
struct Raised {
    Subtrahends subtrahends;
    float rescale[2];
};
__device__ __forceinline__ Raised raise_maxima_only(const Scores& s, Accumulators& acc, float scale) {
    Raised raised;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float maximum = acc.maximum[0][half];
#pragma unroll
        for (int tile = 0; tile < KEY_TILES; ++tile)
            maximum = fmaxf(maximum, fmaxf(s[0][tile][2 * half], s[0][tile][2 * half + 1]));
        maximum = quad_max(maximum);
        const float subtrahend = finite_max(maximum) * scale;
        raised.rescale[half] = exp2_approx(fmaf(acc.maximum[0][half], scale, -subtrahend));
        acc.sum[0][2 * half] *= raised.rescale[half];
        acc.maximum[0][half] = maximum;
        raised.subtrahends.r[0][half] = subtrahend;
    }
    return raised;
}
__device__ __forceinline__ void rescale_output(Accumulators& acc, const Raised& raised) {
#pragma unroll
    for (int tile = 0; tile < D_TILES; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) acc.o[0][tile][i] *= raised.rescale[i / 2];
}
/*# endregion #*/
