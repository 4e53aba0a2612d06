// The second argument of kernels that copy with TMA, mirrored from evoengine/kernel/tensor_maps.py: one tensor map for each
// [[maps]] table of template.toml, in their order. The axes of a map are head_dim, rows, heads, sequences; of packed sequences,
// all rows are one sequence. Elements outside the tensor are read as zero and not written.
struct __align__(128) TensorMap {
    unsigned char opaque[128];
};
struct TensorMaps {
//% for map in maps
    TensorMap @{ map.tensor }@;  // boxes of @{ map.box_rows }@ rows and @{ map.box_columns }@ columns, swizzle @{ map.swizzle_bytes }@
//% endfor
};
static_assert(sizeof(TensorMaps) == @{ 128 * maps | length }@, "TensorMaps differs between host and device");
