// ---- lazy rescale: what was summed under older, smaller maxima follows them where it must -------------------------------------
// FlashAttention-4 (Zadouri et al. 2026): the maximum that is subtracted may be too small. P is then above 1, but its quotient by
// the sum is the same. It is raised only where P would exceed 2^8. So most tiles need no rescale of O, nor the maxima of their
// rows: each lane compares its own scores with the row's limit, and the warp votes.
/*# region lazy rescale #*/
constexpr float TOLERATED = 8.0f;  // in base 2: P · 2^8 is far from fp16's 2^16

// What the rows of a lane tolerate, and take off, as long as their maxima stay.
struct Limits {
    float highest[Cfg::M_ATOMS][2];  // a score above it raises the row's maximum
    Subtrahends subtrahends;
    bool below_zero;  // whether one of the warp's limits is, or is not known yet

    __device__ __forceinline__ void follow(const Accumulators& acc, float scale) {
        bool below = false;
#pragma unroll
        for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                highest[atom][half] = acc.maximum[atom][half] + __fdividef(TOLERATED, scale);
                subtrahends.r[atom][half] = finite_max(acc.maximum[atom][half]) * scale;
                below |= !(highest[atom][half] >= 0.0f);
            }
        if constexpr (MAXIMA_OF_THREE) below_zero = __any_sync(0xffffffffu, below);
    }
};

// The highest score of one row in this lane.
__device__ __forceinline__ float lane_max(const Scores& s, int atom, int half) {
    float highest = negative_infinity();
#pragma unroll
    for (int tile = 0; tile < KEY_TILES; ++tile)
        highest = fmaxf(highest, fmaxf(s[atom][tile][2 * half], s[atom][tile][2 * half + 1]));
    return highest;
}

// The same if it is not negative; if it is, any of the scores. The bits of floats from 0 on order as integers do, above those of
// all negative ones, and Hopper compares three integers at once, but two floats. Two chains, so that neither waits for itself.
__device__ __forceinline__ float lane_max_from_zero(const Scores& s, int atom, int half) {
    int highest[2] = {__float_as_int(s[atom][0][2 * half]), __float_as_int(s[atom][0][2 * half + 1])};
#pragma unroll
    for (int tile = 1; tile < KEY_TILES; ++tile) {
        int& chain = highest[tile % 2];
        chain = max(max(chain, __float_as_int(s[atom][tile][2 * half])), __float_as_int(s[atom][tile][2 * half + 1]));
    }
    return __int_as_float(max(highest[0], highest[1]));
}

struct Raised {
    bool any;                       // whether a row of the warp was raised
    float factor[Cfg::M_ATOMS][2];  // of what was summed before, if one was
};

// Raises the maxima of rows with a score above their limit. O is scaled down later: it may be under way. `after_vote` runs before
// anything is raised, in all warps.
template <class AfterVote>
__device__ __forceinline__ Raised raise_where_needed(const Scores& s, Accumulators& acc, Limits& limits, float scale,
                                                     AfterVote after_vote) {
    float highest[Cfg::M_ATOMS][2];
    bool above = false;
    if (MAXIMA_OF_THREE && !limits.below_zero) {
#pragma unroll
        for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
            for (int half = 0; half < 2; ++half) highest[atom][half] = lane_max_from_zero(s, atom, half);
    } else {
#pragma unroll
        for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
            for (int half = 0; half < 2; ++half) highest[atom][half] = lane_max(s, atom, half);
    }
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int half = 0; half < 2; ++half) above |= !(highest[atom][half] <= limits.highest[atom][half]);
    Raised raised;
    raised.any = __any_sync(0xffffffffu, above);
    after_vote();
    if (!raised.any) return raised;
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float before = acc.maximum[atom][half], now = quad_max(highest[atom][half]);
            const bool raises = (now - before) * scale > TOLERATED;  // also from -inf; false where both are
            raised.factor[atom][half] = raises ? exp2_approx((before - now) * scale) : 1.0f;
            acc.maximum[atom][half] = raises ? now : before;
            acc.sum[atom][2 * half] *= raised.factor[atom][half];
        }
    limits.follow(acc, scale);
    return raised;
}

__device__ __forceinline__ void rescale_output(Accumulators& acc, const Raised& raised) {
    if (!raised.any) return;
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int tile = 0; tile < D_TILES; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i) acc.o[atom][tile][i] *= raised.factor[atom][i / 2];
}
/*# endregion #*/

// Raises the maxima, lazily if the config says so, and scales down what was summed.
template <bool FIRST>
__device__ __forceinline__ Subtrahends raise_and_rescale(const Scores& s, Accumulators& acc, Limits& limits, float scale) {
    if constexpr (!LAZY_RESCALE) return raise_maxima<FIRST>(s, acc, scale);
    if constexpr (FIRST) {
        raise_maxima<true>(s, acc, scale);
        limits.follow(acc, scale);
    } else {
        rescale_output(acc, raise_where_needed(s, acc, limits, scale, [] {}));
    }
    return limits.subtrahends;
}
