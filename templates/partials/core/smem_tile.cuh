// ---- shared-memory tiles: [rows][HEAD_DIM] of 16-bit values, read by ldmatrix eight rows at a time -------------------------

constexpr int CHUNK_BYTES = 16;                        // what one ldmatrix row and one cp.async move
constexpr int CHUNKS = Cfg::HEAD_DIM / 8;              // chunks in a row of the tensor
constexpr int FILLED_CHUNKS = (CHUNKS + 1) / 2 * 2;    // the same with zeros up to a whole mma step of 16 columns
constexpr int ROW_BYTES = Cfg::ROW_HALVES * 2;         // row pitch, padding included

// Byte offset of a chunk. ldmatrix reads the same chunk of eight consecutive rows; they must fall into different banks.
// Swizzle: the chunk's number is XORed with bits of the row, so that the eight land in the eight 16-byte columns of the
// 128-byte bank line. Over 128 bytes, three bits serve rows of a multiple of 128 bytes. Over 64 bytes, two bits serve rows
// of an odd multiple of 64 bytes, which alternate by row % 2 already; others keep two rows in each column.
// Padding instead shifts each row by the padding.
__device__ __forceinline__ int tile_offset(int row, int chunk) {
    if constexpr (Cfg::SMEM_LAYOUT == Cfg::SMEM_LAYOUT_SWIZZLE128) {
        return row * ROW_BYTES + (chunk ^ (row & 7)) * CHUNK_BYTES;
    } else if constexpr (Cfg::SMEM_LAYOUT == Cfg::SMEM_LAYOUT_SWIZZLE64) {
        return row * ROW_BYTES + (chunk ^ (ROW_BYTES % 128 == 0 ? row & 3 : (row >> 1) & 3)) * CHUNK_BYTES;
    } else {
        return row * ROW_BYTES + chunk * CHUNK_BYTES;
    }
}

static_assert(FILLED_CHUNKS * CHUNK_BYTES <= ROW_BYTES && ROW_BYTES % CHUNK_BYTES == 0, "a row holds its chunks");
static_assert(Cfg::SMEM_LAYOUT != Cfg::SMEM_LAYOUT_SWIZZLE128 || ROW_BYTES % 128 == 0, "XOR over 8 chunks stays inside the row");
static_assert(Cfg::SMEM_LAYOUT != Cfg::SMEM_LAYOUT_SWIZZLE64 || ROW_BYTES % 64 == 0, "XOR over 4 chunks stays inside the row");
