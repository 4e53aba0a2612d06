// ---- one step of the online softmax ----------------------------------------------------------------------------------------
struct Accumulators {
    float o[Cfg::M_ATOMS][D_TILES][4];   // unnormalised output
    float maximum[Cfg::M_ATOMS][2];      // running row maximum of S, the same in the four lanes of a row
    float sum[Cfg::M_ATOMS][4];          // running row sums of P: D fragment of P · ones, or this lane's share in [0] and [2]

    __device__ __forceinline__ Accumulators() {
#pragma unroll
        for (int atom = 0; atom < Cfg::M_ATOMS; ++atom) {
            maximum[atom][0] = maximum[atom][1] = negative_infinity();
            sum[atom][0] = sum[atom][1] = sum[atom][2] = sum[atom][3] = 0.0f;
#pragma unroll
            for (int tile = 0; tile < D_TILES; ++tile)
#pragma unroll
                for (int i = 0; i < 4; ++i) o[atom][tile][i] = 0.0f;
        }
    }
};

// The running row sum of P of rows g (half 0) and g + 8, the same in the four lanes of a row.
__device__ __forceinline__ float row_sum(const Accumulators& acc, int atom, int half) {
    return SUM_ON_TENSOR ? acc.sum[atom][2 * half] : quad_sum(acc.sum[atom][2 * half]);
}

struct Subtrahends {
    float r[Cfg::M_ATOMS][2];  // each row's running maximum, scaled: what is taken off before 2^
};

/*# region rescale #*/
// Raises the running maxima to those of S, and scales down what was summed under the older, smaller ones. Before a peeled
// first tile nothing was summed.
template <bool FIRST>
__device__ __forceinline__ Subtrahends raise_maxima(const Scores& s, Accumulators& acc, float scale) {
    Subtrahends subtrahends;
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float maximum = FIRST ? negative_infinity() : acc.maximum[atom][half];
#pragma unroll
            for (int tile = 0; tile < KEY_TILES; ++tile)
                maximum = fmaxf(maximum, fmaxf(s[atom][tile][2 * half], s[atom][tile][2 * half + 1]));
            maximum = quad_max(maximum);
            const float subtrahend = finite_max(maximum) * scale;
            if constexpr (!FIRST) {
                const float rescale = exp2_approx(fmaf(acc.maximum[atom][half], scale, -subtrahend));
                acc.sum[atom][2 * half] *= rescale;
#pragma unroll
                for (int tile = 0; tile < D_TILES; ++tile)
#pragma unroll
                    for (int i = 0; i < 2; ++i) acc.o[atom][tile][2 * half + i] *= rescale;
            }
            acc.maximum[atom][half] = maximum;
            subtrahends.r[atom][half] = subtrahend;
        }
    return subtrahends;
}
/*# endregion #*/

/*# region exponentials #*/
// 2^x for x <= 0 on the FMA pipe, relative error 3e-6: x = n + f with |f| <= 1/2, 2^f by a polynomial (minimax, exact at
// 0), n added to its exponent. Below -127 it yields 0, as 2^-127 does.
__device__ __forceinline__ float exp2_polynomial(float x) {
    constexpr float SHIFTER = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer, held in the low bits
    const float clamped = fmaxf(x, -127.0f);
    const float shifted = clamped + SHIFTER;
    const float f = clamped - (shifted - SHIFTER);
    float y = fmaf(f, 0.009582853235f, 0.055906425943f);
    y = fmaf(f, y, 0.240240986158f);
    y = fmaf(f, y, 0.693124193260f);
    y = fmaf(f, y, 1.0f);
    return __int_as_float(__float_as_int(y) + (__float_as_int(shifted) << 23));
}

// S becomes P = 2^(S · scale - subtrahend), for the 16 keys that one mma step over keys takes. The polynomial
// computes none, one or two of a lane's four keys in a row, to share the work between the special-function unit and the FMA pipe.
__device__ __forceinline__ void exponentiate(Scores& s, Accumulators& acc, const Subtrahends& subtrahends, float scale,
                                             int step) {
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float& score = s[atom][2 * step + i / 2][2 * half + i % 2];
                const float x = fmaf(score, scale, -subtrahends.r[atom][half]);
                score = i < Cfg::EXP2_POLY / 25 ? exp2_polynomial(x) : exp2_approx(x);
                if constexpr (!SUM_ON_TENSOR) acc.sum[atom][2 * half] += score;
            }
}
/*# endregion #*/
