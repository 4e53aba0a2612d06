// ---- addresses -------------------------------------------------------------------------------------------------------------

// An address to which others add constants, which then are part of their instructions. Without this the compiler computes each
// of them anew from pointer and strides, in up to six instructions.
template <typename T>
__device__ __forceinline__ T* settled(T* address) {
    asm("" : "+l"(address));
    return address;
}
