// ---- the last round of a persistent grid, shared (a hybrid of Stream-K, Osama et al. 2023, section 4.3) ---------------------------
// Pieces that are too few for a round of their own would leave CTAs idle. Their key tiles, laid one after the other, are dealt out
// in equal runs instead. A run may cross from one piece to the next; CTAs that share a piece leave partial results, as splits do.
//
//   3 pieces of 4 key tiles, 5 CTAs:   | 0 0 1 1 | 2 2 2 3 | 3 4 4 4 |   (the CTA of each tile; the run of CTA c begins at 12 · c / 5)
struct LastRound {
    int pieces;
    int length;  // key tiles of a piece: all pieces have as many
    int tiles;   // of all these pieces
    int ctas;    // that take tiles

    __device__ __forceinline__ LastRound(int pieces, int length)
        : pieces(pieces), length(length), tiles(pieces * length), ctas(min(static_cast<int>(gridDim.x), tiles)) {}

    // The run of a CTA begins here, and ends where the next one's begins.
    __device__ __forceinline__ int begin(int cta) const {
        const int first = min(cta, ctas), each = tiles / ctas, left = tiles % ctas;
        return each * first + left * first / ctas;  // tiles · first / ctas, which could pass 2^31
    }
    __device__ __forceinline__ int cta_of(int tile) const {
        return static_cast<int>((static_cast<long long>(tile + 1) * ctas - 1) / tiles);
    }
    // End of this CTA's share of the piece that `tile` belongs to.
    __device__ __forceinline__ int end_of_share(int tile) const {
        return min((tile / length + 1) * length, begin(blockIdx.x + 1));
    }

    // The piece that `tile` belongs to. Counted along the row of tiles, CTA and piece go up in turn or together, so that their sum
    // numbers the partial results.
    __device__ __forceinline__ SplitTile split_tile(int tile) const {
        const int piece = tile / length, first = cta_of(piece * length), last = cta_of((piece + 1) * length - 1);
        return {piece, last - first + 1, static_cast<int>(blockIdx.x) - first, static_cast<long long>(first) + piece};
    }
};
