// ---- rows: the queries of one piece of work, where they lie, and which keys they see ------------------------------------------
// Work is cut into (query tile, head, sequence, split). Rows are queries of one head; with PACK_GQA a tile belongs to a K/V
// head and the query heads that share it take turns: row = query · group + head of the group. Neighbouring rows then see
// (almost) the same keys, and few queries still fill a tile.
// Counts are unsigned where they are divided, or multiplied by 64-bit strides, because that is cheaper.
struct Work {
    int tile;
    unsigned head;      // query head; with PACK_GQA, K/V head
    unsigned sequence;
    unsigned split;     // which share of the tile's keys
};

__device__ __forceinline__ int rows_per_query(const AttentionParams& p) { return Cfg::PACK_GQA ? p.heads_per_kv_head : 1; }
__device__ __forceinline__ int work_heads(const AttentionParams& p) { return p.heads / rows_per_query(p); }

// The rows of one sequence and head (or group of heads), where they lie, and what each of them sees.
struct Rows {
    const AttentionParams& p;
    unsigned sequence;
    unsigned head;    // first query head
    unsigned kv_head;
    int group;        // heads that take turns in the rows
    unsigned inverse; // (2^32 - 1) / group
    int queries;      // of this sequence
    int keys;
    int first_query;  // where the sequence starts in memory
    const unsigned short* g_q;  // first query of the first head; strides are in elements
    const unsigned short* g_k;  // first key
    const unsigned short* g_v;
    unsigned short* g_o;

    __device__ __forceinline__ Rows(const AttentionParams& p, const Work& work)
        : p(p), sequence(work.sequence), group(rows_per_query(p)), inverse(0xffffffffu / group), queries(p.seq_q), keys(p.seq_kv),
          first_query(0) {
        head = work.head * group;
        const bool alone = Cfg::PACK_GQA || p.heads_per_kv_head == 1;  // a division takes longer than this test
        kv_head = alone ? work.head : work.head / p.heads_per_kv_head;
        g_q = static_cast<const unsigned short*>(p.q) + sequence * p.q_batch_stride + head * p.q_head_stride;
        g_k = static_cast<const unsigned short*>(p.k) + sequence * p.k_batch_stride + kv_head * p.k_head_stride;
        g_v = static_cast<const unsigned short*>(p.v) + sequence * p.v_batch_stride + kv_head * p.v_head_stride;
        g_o = static_cast<unsigned short*>(p.o) + sequence * p.o_batch_stride + head * p.o_head_stride;
        if constexpr (Cfg::PACKED) {
            first_query = p.cu_seqlens_q[sequence];
            queries = p.cu_seqlens_q[sequence + 1] - first_query;
            const int first_key = p.cu_seqlens_kv[sequence];
            keys = p.cu_seqlens_kv[sequence + 1] - first_key;
            g_q += static_cast<long long>(first_query) * p.q_row_stride;
            g_k += static_cast<long long>(first_key) * p.k_row_stride;
            g_v += static_cast<long long>(first_key) * p.v_row_stride;
            g_o += static_cast<long long>(first_query) * p.o_row_stride;
        }
    }

    __device__ __forceinline__ int count() const { return queries * group; }
    // row / group, exact while (row + 1) · group is at most 2^32: A. D. Robison, N-bit unsigned division via N-bit multiply-add,
    // ARITH 2005. A division takes some twenty instructions, and a mask needs the query of each row in each tile.
    // Not mul.hi: ptxas 13.0 fuses it with the additions in begin_of and end_of, and once used one sum in place of the other.
    __device__ __forceinline__ int query(int row) const {
        if constexpr (!Cfg::PACK_GQA) return row;
        int quotient;
        asm("{\n.reg .b32 low;\n.reg .b64 product;\nmul.wide.u32 product, %1, %2;\nmov.b64 {low, %0}, product;\n}"
            : "=r"(quotient)
            : "r"(row + 1), "r"(inverse));
        return quotient;
    }
    __device__ __forceinline__ int turn(int row) const { return Cfg::PACK_GQA ? row - query(row) * group : 0; }  // row % group

    // A query sees the keys [begin_of, end_of); none where end_of <= begin_of.
    __device__ __forceinline__ int begin_of(int query) const {
        return Cfg::HAS_WINDOW_LEFT ? max(0, query + keys - queries - p.window_left) : 0;
    }
    __device__ __forceinline__ int end_of(int query) const {
        if constexpr (Cfg::CAUSAL) return min(keys, query + 1 + keys - queries);
        if constexpr (Cfg::HAS_WINDOW_RIGHT) return min(keys, query + 1 + keys - queries + p.window_right);
        return keys;
    }

    __device__ __forceinline__ const unsigned short* q(int row) const {
        return g_q + turn(row) * p.q_head_stride + static_cast<long long>(query(row)) * p.q_row_stride;
    }
    __device__ __forceinline__ unsigned short* o(int row) const {
        return g_o + turn(row) * p.o_head_stride + static_cast<long long>(query(row)) * p.o_row_stride;
    }
    __device__ __forceinline__ float* lse(int row) const {
        return p.lse + sequence * p.lse_batch_stride + (head + turn(row)) * p.lse_head_stride + first_query + query(row);
    }
    __device__ __forceinline__ float sink(int row) const { return p.sink[head + turn(row)]; }
};
