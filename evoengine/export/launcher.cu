// ---- launcher ------------------------------------------------------------------------------------------------------------
// Element strides of a [batch, heads, rows, head_dim] tensor; the head_dim axis is contiguous and rows start on 16 bytes.
struct EvoStrides {
    long long batch;
    long long head;
    int row;
};

// Strides of a contiguous [batch, heads, rows, head_dim] tensor.
inline EvoStrides evo_contiguous(int heads, int rows) {
    const long long head = static_cast<long long>(rows) * EvoProblem::HEAD_DIM;
    return {heads * head, head, EvoProblem::HEAD_DIM};
}

// O = softmax(softmax_scale · Q Kᵀ) V on `stream`, asynchronously. Q and O are [batch, heads, seq_q, HEAD_DIM], K and V are
// [batch, kv_heads, seq_kv, HEAD_DIM], all of EvoProblem's element type; device pointers, aligned to 16 bytes.
// Any batch, heads and lengths work, heads being a multiple of kv_heads; a causal mask is aligned bottom-right.
extern "C" cudaError_t evo_attention_launch(const void* q, const void* k, const void* v, void* o, int batch, int heads,
                                            int kv_heads, int seq_q, int seq_kv, EvoStrides q_strides, EvoStrides k_strides,
                                            EvoStrides v_strides, EvoStrides o_strides, float softmax_scale,
                                            cudaStream_t stream) {
    if (batch < 1 || heads < 1 || kv_heads < 1 || heads % kv_heads != 0 || seq_q < 1 || seq_kv < 1) return cudaErrorInvalidValue;

    AttentionParams params{};
    params.q = q;
    params.k = k;
    params.v = v;
    params.o = o;
    params.q_batch_stride = q_strides.batch;
    params.q_head_stride = q_strides.head;
    params.q_row_stride = q_strides.row;
    params.k_batch_stride = k_strides.batch;
    params.k_head_stride = k_strides.head;
    params.k_row_stride = k_strides.row;
    params.v_batch_stride = v_strides.batch;
    params.v_head_stride = v_strides.head;
    params.v_row_stride = v_strides.row;
    params.o_batch_stride = o_strides.batch;
    params.o_head_stride = o_strides.head;
    params.o_row_stride = o_strides.row;
    params.seq_q = seq_q;
    params.seq_kv = seq_kv;
    params.heads_per_kv_head = heads / kv_heads;
    params.scale_log2 = static_cast<float>(softmax_scale * 1.4426950408889634);  // log2(e): the kernel works in base 2

    // Above 48 KiB a kernel must ask for its dynamic shared memory, once per device; asking again costs next to nothing.
    if (EvoProblem::SMEM_BYTES > 48 * 1024) {
        const cudaError_t error =
            cudaFuncSetAttribute(evo_attention, cudaFuncAttributeMaxDynamicSharedMemorySize, EvoProblem::SMEM_BYTES);
        if (error != cudaSuccess) return error;
    }
    evo_attention<<<evo_host::grid(batch, heads, kv_heads, seq_q, seq_kv), EvoProblem::THREADS, EvoProblem::SMEM_BYTES,
                    stream>>>(params);
    return cudaGetLastError();
}
