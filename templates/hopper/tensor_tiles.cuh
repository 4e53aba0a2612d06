// ---- products of tiles by wgmma -------------------------------------------------------------------------------------------------
// Descriptor of a tile: 128-byte swizzle, groups of eight rows side by side; PANEL_BYTES from one panel to the next, which
// matters where wgmma's columns run over panels (V). Its lower half is made once a tile: a step further in the tile adds a
// constant to it.
template <int PANEL_BYTES>
struct TileDescriptor {
    static constexpr unsigned HIGH = 1u << 30 | EIGHT_ROWS_BYTES / 16;

    unsigned low;

    __device__ __forceinline__ explicit TileDescriptor(unsigned smem_address) : low((PANEL_BYTES / 16) << 16 | smem_address / 16) {}
    __device__ __forceinline__ unsigned long long at(int offset_bytes) const {
        return static_cast<unsigned long long>(HIGH) << 32 | (low + offset_bytes / 16);
    }
};

// Byte offset of a 16-byte chunk in one consumer's rows of Q or O.
__device__ __forceinline__ int rows_offset(int row, int chunk) {
    return chunk / 8 * ROWS_PANEL_BYTES + row * PANEL_ROW_BYTES + ((chunk ^ row) & 7) * 16;
}

// Q of one consumer: an address in shared memory, or all A operands of this lane.
struct Queries {
    unsigned s_rows;
    unsigned r[Q_IN_REGISTERS ? K_STEPS : 1][4];

    __device__ __forceinline__ void load(int warp, int lane) {
#pragma unroll
        for (int step = 0; step < K_STEPS; ++step)
            load_matrix_x4(r[step], s_rows + rows_offset(warp * WARP_ROWS + (lane & 15), 2 * step + (lane >> 4)));
    }
    __device__ __forceinline__ void negate_registers() {
#pragma unroll
        for (int step = 0; step < K_STEPS; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) r[step][i] ^= TWO_SIGNS;
    }
};

// Negates one consumer's rows of Q where they lie; all its threads.
__device__ __forceinline__ void negate_rows(unsigned char* rows, int thread) {
#pragma unroll 1
    for (int offset = thread * 16; offset < ROWS_BYTES; offset += WARPGROUP * 16)
        negate_16bit(*reinterpret_cast<uint4*>(rows + offset));
}

// Starts S[64 x BLOCK_N] = Q · Kᵀ of the tile at s_k.
__device__ __forceinline__ void start_scores(Scores& s, Queries& q, unsigned s_k) {
    if constexpr (Q_IN_REGISTERS) pin(q.r);
    const TileDescriptor<KEYS_PANEL_BYTES> keys(s_k);
    // Descriptors of each step; a panel holds four steps of 32 bytes.
    unsigned long long b[K_STEPS];
#pragma unroll
    for (int step = 0; step < K_STEPS; ++step) b[step] = keys.at(step / 4 * KEYS_PANEL_BYTES + step % 4 * 32);
//% if Q_SOURCE == "registers"
    warpgroup_fence();
    wgmma_scores(s[0], q.r, b);
//% else
    const TileDescriptor<ROWS_PANEL_BYTES> rows(q.s_rows);
    unsigned long long a[K_STEPS];
#pragma unroll
    for (int step = 0; step < K_STEPS; ++step) a[step] = rows.at(step / 4 * ROWS_PANEL_BYTES + step % 4 * 32);
    warpgroup_fence();
    wgmma_scores(s[0], a, b);
//% endif
    warpgroup_commit();
}

// Starts O += P · V of the tile at s_v.
__device__ __forceinline__ void start_values(Accumulators& acc, unsigned (&weights)[KEY_TILES / 2][4], unsigned s_v) {
    const TileDescriptor<KEYS_PANEL_BYTES> values(s_v);
    unsigned long long b[KEY_TILES / 2];
#pragma unroll
    for (int step = 0; step < KEY_TILES / 2; ++step) b[step] = values.at(step * 2 * EIGHT_ROWS_BYTES);
    pin(acc.o[0]);
    pin(weights);
    warpgroup_fence();
    wgmma_values(acc.o[0], weights, b);
    warpgroup_commit();
}
