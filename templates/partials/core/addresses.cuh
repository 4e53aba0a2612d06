// ---- addresses -------------------------------------------------------------------------------------------------------------

// Hides from the compiler how an address was computed, so that addresses at constant distances from it become offsets of
// instructions. Without this, the compiler computes each of them from pointer and strides, in up to six instructions.
template <typename T>
__device__ __forceinline__ T* settled(T* address) {
    asm("" : "+l"(address));
    return address;
}
