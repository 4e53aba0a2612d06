// ---- work: which rows and keys a CTA computes ------------------------------------------------------------------------------
__device__ __forceinline__ int query_tiles(const AttentionParams& p) {  // of the longest sequence
    return (p.seq_q * rows_per_query(p) + Cfg::BLOCK_M - 1) / Cfg::BLOCK_M;
}

// Under a causal mask, tiles near the end see the most keys. "Longest first" reverses their order. "Folded" reverses the order of
// the longer half, and continues with the shortest of the others, so that the two CTAs that an SM runs one after the other see
// about the same number of keys together.
__device__ __forceinline__ int tile_in_order(int place, int count) {
    if constexpr (Cfg::TILE_ORDER == Cfg::TILE_ORDER_NATURAL) return place;
    const int longer = (count + 1) / 2;
    if (Cfg::TILE_ORDER == Cfg::TILE_ORDER_FOLDED && place >= longer) return place - longer;
    return count - 1 - place;
}

// One CTA for each piece of work. Blocks start in the order of x, then y, then z. Orders other than "natural" have the tiles on
// the last axis, so that the long tiles of all heads start before any short one.
__device__ __forceinline__ Work work_of_block() {
    if constexpr (Cfg::TILE_ORDER != Cfg::TILE_ORDER_NATURAL)
        return {tile_in_order(blockIdx.z, gridDim.z), blockIdx.x / Cfg::SPLITS, blockIdx.y, blockIdx.x % Cfg::SPLITS};
    return {static_cast<int>(blockIdx.x), blockIdx.y / Cfg::SPLITS, blockIdx.z, blockIdx.y % Cfg::SPLITS};
}

// The same orders, for a grid that walks over all work.
__device__ __forceinline__ int work_count(const AttentionParams& p) {
    return query_tiles(p) * work_heads(p) * p.batch * Cfg::SPLITS;
}
__device__ __forceinline__ Work work_of_number(const AttentionParams& p, unsigned number) {
    const unsigned tiles = query_tiles(p), columns = work_heads(p) * Cfg::SPLITS;
    const bool tiles_last = Cfg::TILE_ORDER != Cfg::TILE_ORDER_NATURAL;
    const unsigned place = tiles_last ? number / (columns * p.batch) : number % tiles;
    const unsigned rest = tiles_last ? number % (columns * p.batch) : number / tiles;
    const unsigned column = rest % columns;
    return {tile_in_order(place, tiles), column / Cfg::SPLITS, rest / columns, column % Cfg::SPLITS};
}

// The key tiles of one key group of one CTA. All rows of the CTA together see keys [begin, …); tiles start at `begin`, a
// split takes a run of them, and its groups take them in turn.
struct KeyTiles {
    int begin;  // first key of the split's first tile
    int tiles;  // of the split
    int group;
    int count;  // of the group

    __device__ __forceinline__ KeyTiles(const Rows& rows, int cta_row, int split, int group) : group(group) {
        const int last_row = min(cta_row + Cfg::BLOCK_M, rows.count()) - 1;
        begin = rows.begin_of(rows.query(cta_row));
        const int visible_keys = rows.end_of(rows.query(last_row)) - begin;
        tiles = visible_keys > 0 ? (visible_keys + Cfg::BLOCK_N - 1) / Cfg::BLOCK_N : 0;
        if constexpr (SPLIT) {  // as even as can be; some are empty where tiles are few
            const int first = tiles * split / Cfg::SPLITS;
            begin += first * Cfg::BLOCK_N;
            tiles = tiles * (split + 1) / Cfg::SPLITS - first;
        }
        count = tiles > group ? (tiles - group + Cfg::WARPS_N - 1) / Cfg::WARPS_N : 0;
    }

    // Backward begins with the tiles that the mask's edge crosses.
    __device__ __forceinline__ int first_key(int index) const {
        const int place = group + index * Cfg::WARPS_N;
        return begin + (Cfg::KEY_ORDER == Cfg::KEY_ORDER_BACKWARD ? tiles - 1 - place : place) * Cfg::BLOCK_N;
    }
};
