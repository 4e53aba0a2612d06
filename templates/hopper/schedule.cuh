// ---- schedule: which piece of work a CTA computes, and in which order ----------------------------------------------------------
// A piece of work is a query tile of one head (with PACK_GQA: of the heads that share a K/V head) of one sequence. Pieces are
// numbered. With splits, a piece has as many CTAs as fill the config's number of waves, each with a share of the keys.
//   static      one CTA a piece; the grid has an axis each for tiles, heads and sequences where the order allows it
//   persistent  a CTA takes every gridDim.x-th piece; where tiles differ in length, every second round in opposite order; with
//               SHARE_LAST_ROUND, the pieces that do not fill a round are shared by all CTAs
//   dynamic     a CTA takes the next piece by a counter in global memory
// Tiles that see the most keys come first, where tiles differ. Heads then come in groups whose K and V stay in the L2 cache.
constexpr bool UNEQUAL_TILES = (Cfg::CAUSAL || Cfg::HAS_WINDOW_RIGHT) && !Cfg::HAS_WINDOW_LEFT;
// Divisions take long, and the first copies wait for them: a CTA with one piece reads its place from its block index instead.
constexpr bool THREE_AXES = !STAYS && !SPLIT && !(UNEQUAL_TILES && Cfg::HEAD_GROUP > 0);
// Finding a piece takes divisions, which would delay the consumers at the end of each piece: the producer finds it for them while
// they compute. On a persistent grid of equal tiles it takes one division, and each consumer finds its next piece itself.
constexpr bool PIECES_SENT = Cfg::SCHEDULE == Cfg::SCHEDULE_DYNAMIC || (STAYS && UNEQUAL_TILES);

// The key tiles that some row of a query tile sees, or a share of them: keys [begin, …), the last tile first, where a mask's edge
// lies.
struct KeyTiles {
    int begin;
    int count;

    __device__ __forceinline__ KeyTiles(const Rows& rows, int cta_row) {
        const int last_row = min(cta_row + cta_rows(rows.p), rows.count()) - 1;
        begin = rows.begin_of(rows.query(cta_row));
        const int visible_keys = rows.end_of(rows.query(last_row)) - begin;
        count = visible_keys > 0 ? (visible_keys + Cfg::BLOCK_N - 1) / Cfg::BLOCK_N : 0;
    }

    __device__ __forceinline__ void keep(int first, int end) {
        begin += first * Cfg::BLOCK_N;
        count = end - first;
    }
    __device__ __forceinline__ int first_key(int index) const { return begin + (count - 1 - index) * Cfg::BLOCK_N; }
};

// Piece of work that a CTA computes next.
struct Piece {
    int number;  // among all pieces; from the schedule's count on there is none
    Work work;

    // Packs it into 16 bytes. The split is left out: a CTA with several pieces computes whole ones.
    __device__ __forceinline__ int4 packed() const {
        return make_int4(number, work.tile, static_cast<int>(work.head), static_cast<int>(work.sequence));
    }
    // Unpacks bytes that are the same in all lanes of a warp; the shuffles make them uniform for the compiler.
    __device__ __forceinline__ static Piece unpacked(const int4& bytes) {
        auto same = [](int value) { return __shfl_sync(0xffffffffu, value, 0); };
        return {same(bytes.x), {same(bytes.y), static_cast<unsigned>(same(bytes.z)), static_cast<unsigned>(same(bytes.w)), 0}};
    }
};

// Divides by multiplying: a division takes some twenty instructions, one after the other.
struct Divisor {
    unsigned value;
    unsigned inverse;

    __device__ __forceinline__ explicit Divisor(unsigned value) : value(value), inverse(0xffffffffu / value) {}

    // n / value for all n: the product is less than one below it, so that the whole part is right or one too small.
    __device__ __forceinline__ unsigned quotient(unsigned n) const {
        const unsigned whole = static_cast<unsigned>(static_cast<unsigned long long>(n) * inverse >> 32);
        return whole + (n - whole * value >= value);
    }
};

struct Schedule {
    Divisor tiles;        // query tiles of one head
    Divisor of_sequence;  // heads of one sequence
    unsigned heads;       // of all sequences
    unsigned group_size;  // heads whose tiles of one length follow each other
    int whole;  // pieces of complete rounds; the numbers after them are those of the last round's key tiles, if it is shared
    LastRound last_round;

    __device__ __forceinline__ explicit Schedule(const AttentionParams& p)
        : tiles(query_tiles(p)), of_sequence(work_heads(p)), heads(work_heads(p) * p.batch), group_size(heads),
          whole(pieces() / gridDim.x * gridDim.x),
          last_round(pieces() - whole, (p.seq_kv + Cfg::BLOCK_N - 1) / Cfg::BLOCK_N) {
        if constexpr (UNEQUAL_TILES && Cfg::HEAD_GROUP > 0) {
            constexpr unsigned MIB = 1u << 20, KEY_BYTES = 2 * 2 * Cfg::HEAD_DIM;  // of K and V
            constexpr unsigned FITTING_KEYS = Cfg::HEAD_GROUP * MIB / KEY_BYTES;
            const unsigned fitting = FITTING_KEYS / p.seq_kv * (p.heads_per_kv_head / rows_per_query(p));
            group_size = min(max(fitting, 1u), heads);
        }
    }

    __device__ __forceinline__ int pieces() const { return tiles.value * heads; }

    __device__ __forceinline__ int count() const {
        if constexpr (THREE_AXES) return 1;
        return Cfg::SHARE_LAST_ROUND ? whole + last_round.tiles : pieces();
    }
    __device__ __forceinline__ bool shares(int number) const { return Cfg::SHARE_LAST_ROUND && number >= whole; }

    __device__ __forceinline__ Work work(const AttentionParams& p, int number) const {
        if constexpr (THREE_AXES && UNEQUAL_TILES)
            return {static_cast<int>(gridDim.z - 1 - blockIdx.z), blockIdx.x, blockIdx.y, 0};
        if constexpr (THREE_AXES) return {static_cast<int>(blockIdx.x), blockIdx.y, blockIdx.z, 0};
        if (shares(number)) number = whole + (number - whole) / last_round.length;
        unsigned head = tiles.quotient(number), tile = number - head * tiles.value;
        if constexpr (UNEQUAL_TILES) {
            const unsigned first_head = Cfg::HEAD_GROUP > 0 ? number / (group_size * tiles.value) * group_size : 0;
            const unsigned place = number - first_head * tiles.value;
            const unsigned size = min(group_size, heads - first_head);  // the last group may be smaller
            const unsigned longer = place / size;                       // tiles that come before
            tile = tiles.value - 1 - longer;
            head = first_head + place - longer * size;
        }
        const unsigned sequence = of_sequence.quotient(head);
        return {static_cast<int>(tile), head - sequence * of_sequence.value, sequence, own_split(p)};
    }

    // The key tiles of a piece that this CTA takes. Splits are as even as can be; some are empty where tiles are few.
    __device__ __forceinline__ KeyTiles key_tiles(const Rows& rows, const Work& work, int number) const {
        KeyTiles all(rows, work.tile * cta_rows(rows.p));
        if constexpr (SPLIT) {
            const int splits = split_count(rows.p);
            const int split = work.split;
            all.keep(all.count * split / splits, all.count * (split + 1) / splits);
        }
        if (shares(number)) {
            const int first_tile = (number - whole) / last_round.length * last_round.length;
            all.keep(number - whole - first_tile, last_round.end_of_share(number - whole) - first_tile);
        }
        return all;
    }

    __device__ __forceinline__ SplitTile split_tile(const AttentionParams& p, const Work& work, int number) const {
        if constexpr (SPLIT) return ::split_tile(p, work, split_count(p));
        if (shares(number)) return last_round.split_tile(number - whole);
        return {0, 1, 0, 0};
    }

    // This CTA's piece after `number`; `round` is that of the piece asked for.
    __device__ __forceinline__ Piece next(const AttentionParams& p, int number, int round) const {
        const int following = Cfg::SCHEDULE == Cfg::SCHEDULE_DYNAMIC ? draw(p) : in_round(number, round);
        return {following, work(p, following)};
    }
    __device__ __forceinline__ int in_round(int number, int round) const {
        if (shares(number)) {
            const int end = last_round.end_of_share(number - whole);
            return end < last_round.begin(blockIdx.x + 1) ? whole + end : count();
        }
        const bool backward = UNEQUAL_TILES && round % 2 == 1;
        const int following = backward ? (round + 1) * gridDim.x - 1 - blockIdx.x : round * gridDim.x + blockIdx.x;
        return shares(following) ? first_in_last_round() : following;
    }
    __device__ __forceinline__ Piece first(const AttentionParams& p) const {
        int number = THREE_AXES ? 0 : SPLIT ? blockIdx.x / split_count(p) : blockIdx.x;
        if (shares(number)) number = first_in_last_round();
        return {number, work(p, number)};
    }
    __device__ __forceinline__ int first_in_last_round() const {
        return static_cast<int>(blockIdx.x) < last_round.ctas ? whole + last_round.begin(blockIdx.x) : count();
    }

    // Draws the next piece of a dynamic schedule. The last draw of all resets the counter to zero for the next launch.
    __device__ __forceinline__ int draw(const AttentionParams& p) const {
        const unsigned ticket = atomicAdd(p.counters, 1u);
        if (ticket + 1 == static_cast<unsigned>(count())) atomicExch(p.counters, 0u);
        return gridDim.x + ticket;
    }
};
