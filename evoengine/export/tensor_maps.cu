namespace evo_host {
// Geometry of a tensor map. All members have 8 bytes, so that keys can be compared as bytes.
struct MapKey {
    const void* address;
    long long rows, heads, batch;                     // sizes of the axes besides head_dim
    long long row_stride, head_stride, batch_stride;  // in elements
    long long box_rows, box_columns, swizzle_bytes;
    long long group;  // query heads that share a box, an axis before that of the rows; 0 for boxes of one head
};

// Returns the driver's cuTensorMapEncodeTiled, so that nothing must be linked with -lcuda; null for a driver before CUDA 12.0.
inline PFN_cuTensorMapEncodeTiled_v12000 map_encoder() {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
#else
    const cudaError_t error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found);
#endif
    const bool usable = error == cudaSuccess && found == cudaDriverEntryPointSuccess;
    return usable ? reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function) : nullptr;
}

// Elements outside the tensor are read as zero and not written. The stride of a single entry is never used, but must be valid.
inline cudaError_t encode_map(const MapKey& key, CUtensorMap& map) {
    static const PFN_cuTensorMapEncodeTiled_v12000 encode = map_encoder();
    if (encode == nullptr) return cudaErrorNotSupported;
    cuuint64_t sizes[5] = {EvoProblem::HEAD_DIM}, strides[4] = {};
    cuuint32_t box[5] = {static_cast<cuuint32_t>(key.box_columns)}, rank = 1;
    const auto add_axis = [&](long long size, long long stride, long long box_size) {
        strides[rank - 1] = static_cast<cuuint64_t>(size == 1 ? 16 : 2 * stride);
        box[rank] = static_cast<cuuint32_t>(box_size);
        sizes[rank++] = static_cast<cuuint64_t>(size);
    };
    const long long group = key.group == 0 ? 1 : key.group;
    if (key.group != 0) add_axis(group, key.head_stride, group);
    add_axis(key.rows, key.row_stride, key.box_rows / group);
    add_axis(key.heads / group, group * key.head_stride, 1);
    add_axis(key.batch, key.batch_stride, 1);
    const cuuint32_t element_strides[] = {1, 1, 1, 1, 1};
    const CUtensorMapSwizzle swizzle = key.swizzle_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                       : key.swizzle_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                       : key.swizzle_bytes == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                                 : CU_TENSOR_MAP_SWIZZLE_NONE;
    const CUresult result =
        encode(&map, EvoProblem::IS_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, rank,
               const_cast<void*>(key.address), sizes, strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
               CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

// Sets the map with number MAP. Each thread keeps the maps that it encoded last, because a call with the same tensors needs the
// same maps. Each number has slots of its own, so that maps of one call do not replace each other.
template <int MAP>
cudaError_t set_map(TensorMap& map, const MapKey& key) {
    struct Kept {
        MapKey key;
        CUtensorMap map;
    };
    constexpr int KEPT_BITS = 5, WORDS = sizeof(MapKey) / 8;
    static thread_local Kept kept[1 << KEPT_BITS] = {};
    unsigned long long words[WORDS], hash = 0;
    std::memcpy(words, &key, sizeof(key));
    for (const unsigned long long word : words) hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
    Kept& slot = kept[hash >> (64 - KEPT_BITS)];
    if (std::memcmp(&slot.key, &key, sizeof(key)) != 0) {
        slot.key = {};  // no tensor has this key
        const cudaError_t error = encode_map(key, slot.map);
        if (error != cudaSuccess) return error;
        slot.key = key;
    }
    static_assert(sizeof(TensorMap) == sizeof(CUtensorMap), "TensorMap is an opaque CUtensorMap");
    std::memcpy(&map, &slot.map, sizeof(map));
    return cudaSuccess;
}
}  // namespace evo_host
