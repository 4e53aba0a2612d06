// ---- lazy rescale (FlashAttention-4, Zadouri et al. 2026) ----------------------------------------------------------------------
// The maximum that is subtracted may be too small: P is then above 1, but its quotient by the sum is the same. It is raised only
// where P would exceed 2^8, so that most tiles need no rescale of O.
/*# region lazy rescale #*/
__device__ __forceinline__ Raised raise_lazily(const Scores& s, Accumulators& acc, float scale) {
    constexpr float TOLERATED = 8.0f;  // in base 2: P · 2^8 is far from fp16's 2^16
    Raised raised;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float maximum = negative_infinity();
#pragma unroll
        for (int tile = 0; tile < KEY_TILES; ++tile)
            maximum = fmaxf(maximum, fmaxf(s[0][tile][2 * half], s[0][tile][2 * half + 1]));
        maximum = quad_max(maximum);
        const float before = acc.maximum[0][half];
        const bool raises = (maximum - before) * scale > TOLERATED;  // also from -inf; false where both are
        acc.maximum[0][half] = raises ? maximum : before;
        raised.rescale[half] = raises ? exp2_approx((before - maximum) * scale) : 1.0f;
        acc.sum[0][2 * half] *= raised.rescale[half];
        raised.subtrahends.r[0][half] = finite_max(acc.maximum[0][half]) * scale;
    }
    return raised;
}

// The warp's rows are rescaled together, or not at all.
__device__ __forceinline__ void rescale_where_raised(Accumulators& acc, const Raised& raised) {
    if (__any_sync(0xffffffffu, raised.rescale[0] != 1.0f || raised.rescale[1] != 1.0f)) rescale_output(acc, raised);
}
/*# endregion #*/
