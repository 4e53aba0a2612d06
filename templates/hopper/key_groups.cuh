// ---- key groups: consumers that share the rows of a query group and take its key tiles in turn -----------------------------
// Group g has the tiles g, g + KEY_GROUPS, … from rings that all groups share. Each group has its own O, sums and maxima.
struct GroupTiles {
    KeyTiles all;
    int group;
    int count;  // of the group

    __device__ __forceinline__ GroupTiles(const KeyTiles& all, int group)
        : all(all), group(group), count(of_group(all.count)) {}

    // How many of the first `tiles` of all tiles are the group's.
    __device__ __forceinline__ int of_group(int tiles) const {
        return Cfg::KEY_GROUPS == 1 ? max(tiles, 0) : max(tiles - group + Cfg::KEY_GROUPS - 1, 0) / Cfg::KEY_GROUPS;
    }

    __device__ __forceinline__ int first_key(int index) const { return all.first_key(group + index * Cfg::KEY_GROUPS); }
    // Whether the group has one tile fewer than the first group.
    __device__ __forceinline__ bool one_fewer() const { return count * Cfg::KEY_GROUPS < all.count; }
};

// The tiles of a group, [first, end) in their order, in which one consumer's rows see a key. A mask's edge leaves some of the CTA's
// tiles to other consumers; rows past the last one see nothing.
struct SeenTiles {
    int first;
    int end;

    __device__ __forceinline__ SeenTiles(const Rows& rows, const GroupTiles& tiles, int first_row) : first(0), end(tiles.count) {
        if constexpr (QUERY_GROUPS > 1) {
            const int last_row = min(first_row + consumer_rows(rows.p), rows.count()) - 1;
            const int seen_keys = rows.end_of(rows.query(max(last_row, 0))) - tiles.all.begin;
            const int hidden_keys = rows.begin_of(rows.query(first_row)) - tiles.all.begin;
            const int seen = last_row < first_row ? 0 : max(seen_keys + Cfg::BLOCK_N - 1, 0) / Cfg::BLOCK_N;
            first = min(tiles.of_group(tiles.all.count - seen), tiles.count);
            end = min(tiles.of_group(tiles.all.count - max(hidden_keys, 0) / Cfg::BLOCK_N), tiles.count);
        }
    }

    __device__ __forceinline__ int count() const { return end - first; }
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
