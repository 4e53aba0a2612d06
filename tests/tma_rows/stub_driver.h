// cuTensorMapEncodeTiled with the prototype of cuda.h, which writes its arguments instead of a map. Only a GPU's driver encodes.
#include <cuda.h>

#include <cstdint>
#include <cstring>

struct StubMap {
    uint8_t data_type, rank, interleave, swizzle, l2_promotion, oob_fill, unused[2];
    uint64_t address, sizes[5], strides[4];
    uint32_t box[5], element_strides[5];
};

extern "C" inline int stub_calls(int more) {
    static int calls = 0;
    return calls += more;
}

extern "C" inline CUresult stub_encode(CUtensorMap* map, CUtensorMapDataType data_type, cuuint32_t rank, void* address,
                                       const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                                       const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2_promotion,
                                       CUtensorMapFloatOOBfill oob_fill) {
    if (reinterpret_cast<uintptr_t>(map) % alignof(CUtensorMap) != 0 || rank < 4 || rank > 5 || address == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    StubMap found{};
    found.data_type = data_type;
    found.rank = rank;
    found.interleave = interleave;
    found.swizzle = swizzle;
    found.l2_promotion = l2_promotion;
    found.oob_fill = oob_fill;
    found.address = reinterpret_cast<uintptr_t>(address);
    std::memcpy(found.sizes, sizes, rank * sizeof *sizes);
    std::memcpy(found.strides, strides, (rank - 1) * sizeof *strides);
    std::memcpy(found.box, box, rank * sizeof *box);
    std::memcpy(found.element_strides, element_strides, rank * sizeof *element_strides);
    std::memset(map, 0, sizeof *map);
    std::memcpy(map, &found, sizeof found);
    stub_calls(1);
    return CUDA_SUCCESS;
}
