// ---- logits: softcap, mask and scale of the scores S = Q Kᵀ before the softmax -----------------------------------------------------
using Scores = float[Cfg::M_ATOMS][KEY_TILES][4];

// Factor from S to logits in base 2: the softmax scale, or 1 where the softcap has scaled already.
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

// A mask compares each key with the bounds of its row or, where that takes longer, tests a word with a bit for each key: seven
// bits become predicates in one instruction.
constexpr int WORD_TILES = 16;  // eights of keys in a word, two keys of a lane in each
constexpr int COMPARISONS = KEY_TILES * (Cfg::CAUSAL + Cfg::HAS_WINDOW_RIGHT + Cfg::HAS_WINDOW_LEFT);  // for one key of each two
constexpr bool MASK_BY_WORDS = COMPARISONS > 12;

// The keys before `end` among those of a lane in WORD_TILES eights: bit 2 · tile + i stands for key 8 · tile + i.
__device__ __forceinline__ unsigned keys_before(int end) {
    const int count = max((end >> 3) * 2 + min(end & 7, 2), 0);
    unsigned next;
    asm("shl.b32 %0, 1, %1;" : "=r"(next) : "r"(count));  // 0 where the count is 32 or more, which C++ leaves open
    return next - 1;
}

// Whether all rows see the same keys: no mask but the end of the keys.
constexpr bool ONLY_END = !(Cfg::CAUSAL || Cfg::HAS_WINDOW_LEFT || Cfg::HAS_WINDOW_RIGHT);

// Keys past the end become -inf: from the tile's last eight of keys down to those that lie before the end.
__device__ __forceinline__ void mask_past_end(Scores& s, int keys_left, int lane) {
    const int lane_keys_left = keys_left - (lane & 3) * 2;
#pragma unroll
    for (int tile = KEY_TILES - 1; tile >= 0; --tile) {
        if (8 * tile + 8 <= keys_left) break;
#pragma unroll
        for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (8 * tile + i % 2 >= lane_keys_left) s[atom][tile][i] = negative_infinity();
    }
}

// Keys that a row must not see become -inf. Keys are counted from the lane's first one: they are constants then.
__device__ __forceinline__ void mask_scores(Scores& s, const Rows& rows, int first_row, int first_key, int lane) {
    if constexpr (ONLY_END) return mask_past_end(s, rows.keys - first_key, lane);
    const int lane_key = first_key + (lane & 3) * 2;
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int query = rows.query(first_row + atom * 16 + half * 8 + (lane >> 2));
            const int begin = rows.begin_of(query) - lane_key;
            const int end = rows.end_of(query) - lane_key;
            unsigned seen = 0;
#pragma unroll
            for (int tile = 0; tile < KEY_TILES; ++tile) {
                if (MASK_BY_WORDS && tile % WORD_TILES == 0) {
                    seen = keys_before(end - 8 * tile);
                    if constexpr (Cfg::HAS_WINDOW_LEFT) seen &= ~keys_before(begin - 8 * tile);
                }
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int key = tile * 8 + i;
                    const bool sees = MASK_BY_WORDS ? seen >> (tile % WORD_TILES * 2 + i) & 1
                                                    : key < end && (!Cfg::HAS_WINDOW_LEFT || key >= begin);
                    if (!sees) s[atom][tile][2 * half + i] = negative_infinity();
                }
            }
        }
}
