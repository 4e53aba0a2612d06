// ---- schedule: which piece of work a CTA computes, and in which order ----------------------------------------------------------
// A piece of work is a query tile of one head of one sequence. Pieces are numbered.
//   static      one CTA a piece
//   persistent  a CTA takes every gridDim.x-th piece; where tiles differ in length, every second round in opposite order
//   dynamic     a CTA takes the next piece that none has taken: a counter in global memory
// Tiles that see the most keys come first, where tiles differ. Heads then come in groups whose K and V stay in the L2 cache.
constexpr bool UNEQUAL_TILES = (Cfg::CAUSAL || Cfg::HAS_WINDOW_RIGHT) && !Cfg::HAS_WINDOW_LEFT;

struct Schedule {
    int tiles;       // query tiles of one head
    int heads;       // of all sequences
    int group_size;  // heads whose tiles of one length follow each other

    __device__ __forceinline__ explicit Schedule(const AttentionParams& p)
        : tiles((p.seq_q + Cfg::BLOCK_M - 1) / Cfg::BLOCK_M), heads(p.heads * p.batch), group_size(heads) {
        if constexpr (UNEQUAL_TILES && Cfg::HEAD_GROUP > 0) {
            const long long kv_head_bytes = static_cast<long long>(p.seq_kv) * Cfg::HEAD_DIM * 4;
            const long long fitting = (static_cast<long long>(Cfg::HEAD_GROUP) << 20) / kv_head_bytes * p.heads_per_kv_head;
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
        return {tile, static_cast<unsigned>(head % p.heads), static_cast<unsigned>(head / p.heads), 0};
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

// The key tiles that some row of a query tile sees: keys [begin, …), the last tile first, where a mask's edge lies.
struct KeyTiles {
    int begin;
    int count;

    __device__ __forceinline__ KeyTiles(const Rows& rows, int cta_row) {
        const int last_row = min(cta_row + Cfg::BLOCK_M, rows.count()) - 1;
        begin = rows.begin_of(cta_row);
        const int visible_keys = rows.end_of(last_row) - begin;
        count = visible_keys > 0 ? (visible_keys + Cfg::BLOCK_N - 1) / Cfg::BLOCK_N : 0;
    }

    __device__ __forceinline__ int first_key(int index) const { return begin + (count - 1 - index) * Cfg::BLOCK_N; }
};
