// ---- key groups: consumers that share the rows of a query group and take its key tiles in turn -----------------------------
// Group g has the tiles g, g + KEY_GROUPS, … from rings that all groups share. Each group has its own O, sums and maxima.
struct GroupTiles {
    KeyTiles all;
    int group;
    int count;  // of the group

    __device__ __forceinline__ GroupTiles(const KeyTiles& all, int group)
        : all(all), group(group),
          count(Cfg::KEY_GROUPS == 1 ? all.count : (all.count - group + Cfg::KEY_GROUPS - 1) / Cfg::KEY_GROUPS) {}

    __device__ __forceinline__ int first_key(int index) const { return all.first_key(group + index * Cfg::KEY_GROUPS); }
    // Whether the group has tiles, but one fewer than the first group.
    __device__ __forceinline__ bool one_fewer() const { return count > 0 && count * Cfg::KEY_GROUPS < all.count; }
};

// From the slot of a group's tile to that of its next one.
__device__ __forceinline__ void next_tile(KeySlots& slots) {
    if constexpr (Cfg::KEY_GROUPS == 1) {
        slots.advance();
    } else {
        slots.skip<Cfg::KEY_GROUPS>();
    }
}

// Loads one tile for each group, from tile `first` on: K of all groups, which they need first, then V. A slot is waited for only
// after all copies without which its readers would not release it: the rings have a slot for each group.
template <typename LoadK, typename LoadV>
__device__ __forceinline__ void load_round(int first, int count, LoadK load_k, LoadV load_v) {
    const int end = min(first + Cfg::KEY_GROUPS, count);
#pragma unroll 1
    for (int index = first; index < end; ++index) load_k(index);
#pragma unroll 1
    for (int index = first; index < end; ++index) load_v(index);
}
