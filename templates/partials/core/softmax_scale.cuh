// ---- the softmax scale: any finite number ------------------------------------------------------------------------------------
// The running maximum is taken over unscaled scores, and hidden keys score -inf: both need a positive factor. The factor is
// p.positive_scale; for a negative scale, Q is negated once. The host computes |scale|, because an operand in constant
// memory takes no register in the loop. It is never 0: a scale of 0 becomes 1e-38, which makes all logits equal, but keeps -inf.
// With a softcap none of this applies: the scale is applied before the mask.

__device__ __forceinline__ bool scale_is_negative(const AttentionParams& p) { return p.scale_log2 < 0.0f; }

constexpr unsigned TWO_SIGNS = 0x80008000u;  // the signs of two 16-bit values that share a register

__device__ __forceinline__ void negate_16bit(uint4& values) {
    values = make_uint4(values.x ^ TWO_SIGNS, values.y ^ TWO_SIGNS, values.z ^ TWO_SIGNS, values.w ^ TWO_SIGNS);
}
