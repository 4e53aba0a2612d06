// ---- schedule: which piece of work a CTA computes, and in which order ----------------------------------------------------------
// A piece of work is a query tile of one head (with PACK_GQA: of the heads that share a K/V head) of one sequence. Pieces are
// numbered. With splits, as many CTAs as fill the waves that the config asks for take a share of a piece's keys each.
//   static      one CTA a piece
//   persistent  a CTA takes every gridDim.x-th piece; where tiles differ in length, every second round in opposite order
//   dynamic     a CTA takes the next piece that none has taken: a counter in global memory
// Tiles that see the most keys come first, where tiles differ. Heads then come in groups whose K and V stay in the L2 cache.
constexpr bool UNEQUAL_TILES = (Cfg::CAUSAL || Cfg::HAS_WINDOW_RIGHT) && !Cfg::HAS_WINDOW_LEFT;

__device__ __forceinline__ int query_tiles(const AttentionParams& p) {  // of the longest sequence
    return (p.seq_q * rows_per_query(p) + cta_rows(p) - 1) / cta_rows(p);
}
// The grid has a CTA for each split of each piece.
__device__ __forceinline__ int split_count(const AttentionParams& p) {
    return gridDim.x / (query_tiles(p) * work_heads(p) * p.batch);
}
// This CTA's first piece, and its share of the piece's keys. The splits of a piece start together, so that they end together.
__device__ __forceinline__ int first_number(const AttentionParams& p) {
    return SPLIT ? blockIdx.x / split_count(p) : blockIdx.x;
}
__device__ __forceinline__ unsigned own_split(const AttentionParams& p) { return SPLIT ? blockIdx.x % split_count(p) : 0; }

struct Schedule {
    int tiles;       // query tiles of one head
    int heads;       // of all sequences
    int group_size;  // heads whose tiles of one length follow each other

    __device__ __forceinline__ explicit Schedule(const AttentionParams& p)
        : tiles(query_tiles(p)), heads(work_heads(p) * p.batch), group_size(heads) {
        if constexpr (UNEQUAL_TILES && Cfg::HEAD_GROUP > 0) {
            const long long kv_head_bytes = static_cast<long long>(p.seq_kv) * Cfg::HEAD_DIM * 4;
            const long long fitting = (static_cast<long long>(Cfg::HEAD_GROUP) << 20) / kv_head_bytes * (p.heads_per_kv_head / rows_per_query(p));
            group_size = static_cast<int>(min(max(fitting, 1ll), static_cast<long long>(heads)));
        }
    }

    __device__ __forceinline__ int count() const { return tiles * heads; }

    __device__ __forceinline__ Work work(const AttentionParams& p, int number) const {
        int tile = number % tiles, head = number / tiles;
        if constexpr (UNEQUAL_TILES) {
            const int group = number / (group_size * tiles);
            const int place = number - group * group_size * tiles;
            const int size = min(group_size, heads - group * group_size);  // the last group may be smaller
            tile = tiles - 1 - place / size;
            head = group * group_size + place % size;
        }
        const int of_sequence = work_heads(p);
        return {tile, static_cast<unsigned>(head % of_sequence), static_cast<unsigned>(head / of_sequence), own_split(p)};
    }

    // This CTA's piece in a round of a persistent grid.
    __device__ __forceinline__ static int number_in_round(int round) {
        if (UNEQUAL_TILES && round % 2 == 1) return (round + 1) * gridDim.x - 1 - blockIdx.x;
        return round * gridDim.x + blockIdx.x;
    }

    // The next piece of a dynamic schedule. The last of all questions leaves the counter at zero for the next launch.
    __device__ __forceinline__ int draw(const AttentionParams& p) const {
        const unsigned ticket = atomicAdd(p.counters, 1u);
        if (ticket + 1 == static_cast<unsigned>(count())) atomicExch(p.counters, 0u);
        return gridDim.x + ticket;
    }
};

// The key tiles that some row of a query tile sees: keys [begin, …), the last tile first, where a mask's edge lies. Splits take
// runs of them, as even as can be; some are empty where tiles are few.
struct KeyTiles {
    int begin;
    int count;

    __device__ __forceinline__ KeyTiles(const Rows& rows, int cta_row, unsigned split) {
        const int last_row = min(cta_row + cta_rows(rows.p), rows.count()) - 1;
        begin = rows.begin_of(rows.query(cta_row));
        const int visible_keys = rows.end_of(rows.query(last_row)) - begin;
        count = visible_keys > 0 ? (visible_keys + Cfg::BLOCK_N - 1) / Cfg::BLOCK_N : 0;
        if constexpr (SPLIT) {
            const int splits = split_count(rows.p), before = count * split / splits;
            begin += before * Cfg::BLOCK_N;
            count = count * (split + 1) / splits - before;
        }
    }

    __device__ __forceinline__ int first_key(int index) const { return begin + (count - 1 - index) * Cfg::BLOCK_N; }
};
