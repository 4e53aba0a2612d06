// ---- logits: what becomes of the scores S = Q Kᵀ before the softmax ------------------------------------------------------------
using Scores = float[Cfg::M_ATOMS][KEY_TILES][4];

// What turns S into logits in base 2: the softmax scale, or nothing more where the softcap has scaled already.
__device__ __forceinline__ float logit_scale(const AttentionParams& p) { return Cfg::HAS_SOFTCAP ? 1.0f : p.positive_scale; }

// Whether Q must be negated: the factor above has no sign.
__device__ __forceinline__ bool negates_queries(const AttentionParams& p) { return !Cfg::HAS_SOFTCAP && scale_is_negative(p); }

/*# region softcap #*/
__device__ __forceinline__ void cap_scores(Scores& s, const AttentionParams& p) {
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int tile = 0; tile < KEY_TILES; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i) s[atom][tile][i] = softcap(s[atom][tile][i], p.softcap_scale, p.softcap_log2);
}
/*# endregion #*/

// Keys that a row must not see become -inf.
__device__ __forceinline__ void mask_scores(Scores& s, const Rows& rows, int first_row, int first_key, int lane) {
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int query = rows.query(first_row + atom * 16 + half * 8 + (lane >> 2));
            const int begin = rows.begin_of(query);
            const int end = rows.end_of(query);
#pragma unroll
            for (int tile = 0; tile < KEY_TILES; ++tile)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int key = first_key + tile * 8 + (lane & 3) * 2 + i;
                    if (key >= end || (Cfg::HAS_WINDOW_LEFT && key < begin)) s[atom][tile][2 * half + i] = negative_infinity();
                }
        }
}
