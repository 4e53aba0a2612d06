// ---- softcap: logits bounded by a tanh, in base 2 ----------------------------------------------------------------------------

__device__ __forceinline__ float reciprocal_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// cap · tanh(argument_scale · s), with tanh(x) = 1 - 2 / (2^(2x·log2 e) + 1): absolute error 3e-7 · cap, where tanh.approx has
// 5e-4. The exponential overflows to infinity or vanishes where tanh is 1 or -1.
__device__ __forceinline__ float softcap(float s, float argument_scale, float cap) {
    const float reciprocal = reciprocal_approx(exp2_approx(s * (argument_scale * 2.885390082f)) + 1.0f);
    return fmaf(-2.0f * cap, reciprocal, cap);
}
