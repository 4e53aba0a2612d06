// ---- shared-memory tiles as wgmma reads them: [rows][HEAD_DIM] of 16-bit values ---------------------------------------------

constexpr int CHUNK_BYTES = 16;                        // what one cp.async moves
constexpr int CHUNKS = Cfg::HEAD_DIM / 8;              // chunks in a row of the tensor
constexpr int FILLED_CHUNKS = (CHUNKS + 1) / 2 * 2;    // the same with zeros up to a whole tensor-core step of 16 columns
constexpr int ROW_BYTES = Cfg::ROW_HALVES * 2;         // bytes of a row, whole panels
constexpr int PANELS = ROW_BYTES / 128;                // of 64 columns
constexpr int ATOM_BYTES = 8 * 128;                    // eight rows of one panel
constexpr int EIGHT_ROWS_BYTES = PANELS * ATOM_BYTES;  // from one group of eight rows to the next

// Byte offset of a chunk. wgmma's 128-byte swizzle works on blocks of eight rows of 128 bytes, whose 16-byte chunks are XORed
// with the row; a wider row has one block for each of its panels, side by side.
__device__ __forceinline__ int tile_offset(int row, int chunk) {
    return row / 8 * EIGHT_ROWS_BYTES + chunk / 8 * ATOM_BYTES + row % 8 * 128 + ((chunk ^ row) & 7) * CHUNK_BYTES;
}

static_assert(FILLED_CHUNKS * CHUNK_BYTES <= ROW_BYTES && ROW_BYTES % 128 == 0, "a row is whole panels and holds its chunks");

// Descriptor of a tile from an address in it: 128-byte swizzle, groups of eight rows EIGHT_ROWS_BYTES apart, panels ATOM_BYTES.
__device__ __forceinline__ unsigned long long tile_descriptor(unsigned smem_address) {
    constexpr unsigned long long FIXED = 1ull << 62 | static_cast<unsigned long long>(EIGHT_ROWS_BYTES / 16) << 32 |
                                         static_cast<unsigned long long>(ATOM_BYTES / 16) << 16;
    return FIXED | (smem_address & 0x3ffff) >> 4;
}
