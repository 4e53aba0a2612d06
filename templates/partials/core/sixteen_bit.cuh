// ---- the problem's 16-bit type, without headers: two values share a register, the first in the lower half ----------------

__device__ __forceinline__ float2 unpack_16bit(unsigned packed) {
    float2 values;
    if constexpr (Cfg::IS_BF16) {  // bf16 is the upper half of an f32
        values.x = __uint_as_float(packed << 16);
        values.y = __uint_as_float(packed & 0xffff0000u);
    } else {
        asm("{\n\t.reg .b16 low, high;\n\tmov.b32 {low, high}, %2;\n\tcvt.f32.f16 %0, low;\n\tcvt.f32.f16 %1, high;\n\t}"
            : "=f"(values.x), "=f"(values.y)
            : "r"(packed));
    }
    return values;
}

// Rounds to nearest even.
__device__ __forceinline__ unsigned pack_16bit(float low, float high) {
    unsigned packed;
    if constexpr (Cfg::IS_BF16) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    }
    return packed;
}
