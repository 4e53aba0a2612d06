// ---- the end of a row: normaliser, log-sum-exp, store ---------------------------------------------------------------------------
/*# region row end #*/
struct RowEnd {
    float factor;  // on the unnormalised output
    float lse;     // natural logarithm of the sum of exponentials of all logits
};

__device__ __forceinline__ float log2_approx(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float reciprocal_or_zero(float sum) { return sum > 0.0f ? reciprocal_approx(sum) : 0.0f; }

// From a row's maximum of S and its sum of P under that maximum. A row that saw no key has sum 0 and yields zeros, and -inf.
// The sink is one more logit, which adds to the sum only.
__device__ __forceinline__ RowEnd end_row(const Rows& rows, int row, float maximum, float sum) {
    constexpr float LN_2 = 0.693147180560f, LOG2_E = 1.442695040889f;
    float weight = 1.0f;
    float top = finite_max(maximum) * logit_scale(rows.p);  // in base 2
    if constexpr (Cfg::HAS_SINK) {
        const float sink = rows.sink(row) * LOG2_E;
        const float logit = maximum * logit_scale(rows.p);  // -inf where no key was seen
        top = finite_max(fmaxf(logit, sink));
        weight = exp2_approx(logit - top);
        sum = fmaf(sum, weight, exp2_approx(sink - top));
    }
    return {weight * reciprocal_or_zero(sum), (top + log2_approx(sum)) * LN_2};
}

// O is not read again: streaming stores let what is read again keep its place in the caches. Both name global memory, which the
// compiler does not see in a settled address.
template <typename Vector>
__device__ __forceinline__ void store_values(unsigned short* target, Vector values) {
    if constexpr (Cfg::STORE_OP == Cfg::STORE_OP_STREAMING) {
        __stcs(reinterpret_cast<Vector*>(target), values);
    } else {
        __stwb(reinterpret_cast<Vector*>(target), values);
    }
}
/*# endregion #*/
