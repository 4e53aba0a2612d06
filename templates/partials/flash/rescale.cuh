// ---- rescale: what was summed under older, smaller maxima follows them -------------------------------------------------------
// raise_maxima() does all at once; these split it, for an O that is under way, and for one that is hardly ever rescaled.
struct Raised {
    Subtrahends subtrahends;
    float rescale[Cfg::M_ATOMS][2];  // of what was summed before, O too
};

/*# region rescale #*/
// As raise_maxima, but O is scaled down later.
__device__ __forceinline__ Raised raise_maxima_only(const Scores& s, Accumulators& acc, float scale) {
    Raised raised;
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float highest = acc.maximum[atom][half];
#pragma unroll
            for (int tile = 0; tile < KEY_TILES; ++tile)
                highest = fmaxf(highest, fmaxf(s[atom][tile][2 * half], s[atom][tile][2 * half + 1]));
            highest = quad_max(highest);
            const float taken_off = finite_max(highest) * scale;
            raised.rescale[atom][half] = exp2_approx(fmaf(acc.maximum[atom][half], scale, -taken_off));
            acc.sum[atom][2 * half] *= raised.rescale[atom][half];
            acc.maximum[atom][half] = highest;
            raised.subtrahends.r[atom][half] = taken_off;
        }
    return raised;
}
__device__ __forceinline__ void rescale_output(Accumulators& acc, const Raised& raised) {
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int tile = 0; tile < D_TILES; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i) acc.o[atom][tile][i] *= raised.rescale[atom][i / 2];
}
/*# endregion #*/

// Lazy rescale (FlashAttention-4, Zadouri et al. 2026): the maximum that is subtracted may be too small. P is then above 1, but its
// quotient by the sum is the same. It is raised only where P would exceed 2^8, so that most tiles need no rescale of O.
/*# region lazy rescale #*/
__device__ __forceinline__ Raised raise_lazily(const Scores& s, Accumulators& acc, float scale) {
    constexpr float TOLERATED = 8.0f;  // in base 2: P · 2^8 is far from fp16's 2^16
    Raised raised;
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float highest = negative_infinity();
#pragma unroll
            for (int tile = 0; tile < KEY_TILES; ++tile)
                highest = fmaxf(highest, fmaxf(s[atom][tile][2 * half], s[atom][tile][2 * half + 1]));
            highest = quad_max(highest);
            const float before = acc.maximum[atom][half];
            const bool raises = (highest - before) * scale > TOLERATED;  // also from -inf; false where both are
            acc.maximum[atom][half] = raises ? highest : before;
            raised.rescale[atom][half] = raises ? exp2_approx((before - highest) * scale) : 1.0f;
            acc.sum[atom][2 * half] *= raised.rescale[atom][half];
            raised.subtrahends.r[atom][half] = finite_max(acc.maximum[atom][half]) * scale;
        }
    return raised;
}

// The warp's rows are rescaled together, or not at all.
__device__ __forceinline__ void rescale_where_raised(Accumulators& acc, const Raised& raised) {
    bool raises = false;
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
        raises |= raised.rescale[atom][0] != 1.0f || raised.rescale[atom][1] != 1.0f;
    if (__any_sync(0xffffffffu, raises)) rescale_output(acc, raised);
}
/*# endregion #*/

// The maxima as the config wants them, and O, once it is not under way any more.
__device__ __forceinline__ Raised raise(const Scores& s, Accumulators& acc, float scale) {
    if constexpr (Cfg::LAZY_RESCALE) return raise_lazily(s, acc, scale);
    return raise_maxima_only(s, acc, scale);
}
__device__ __forceinline__ void rescale(Accumulators& acc, const Raised& raised) {
    if constexpr (Cfg::LAZY_RESCALE) {
        rescale_where_raised(acc, raised);
    } else {
        rescale_output(acc, raised);
    }
}
// Both at once.
template <bool FIRST>
__device__ __forceinline__ Subtrahends raise_and_rescale(const Scores& s, Accumulators& acc, float scale) {
    if constexpr (FIRST || !Cfg::LAZY_RESCALE) return raise_maxima<FIRST>(s, acc, scale);
    const Raised raised = raise_lazily(s, acc, scale);
    rescale_where_raised(acc, raised);
    return raised.subtrahends;
}
