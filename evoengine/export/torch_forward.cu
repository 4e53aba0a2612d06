// ---- torch ---------------------------------------------------------------------------------------------------------------
// O = softmax(softmax_scale · Q Kᵀ) V for contiguous [batch, heads, seq, HEAD_DIM] tensors on one GPU, on torch's stream.
torch::Tensor forward(torch::Tensor q, torch::Tensor k, torch::Tensor v) {
    using P = EvoProblem;
    const auto dtype = P::IS_BF16 ? torch::kBFloat16 : torch::kHalf;
    for (const torch::Tensor& tensor : {q, k, v}) {
        TORCH_CHECK(tensor.is_cuda() && tensor.dim() == 4 && tensor.scalar_type() == dtype, "q, k, v: 4 axes, on the GPU, ",
                    P::IS_BF16 ? "bfloat16" : "float16");
        TORCH_CHECK(tensor.size(3) == P::HEAD_DIM, "head_dim must be ", P::HEAD_DIM);
        TORCH_CHECK(tensor.size(0) == q.size(0), "q, k, v must have one batch size");
    }
    TORCH_CHECK(k.sizes() == v.sizes() && q.size(1) % k.size(1) == 0, "k and v must have equal shapes, and q's heads must be a multiple of theirs");
    const c10::cuda::CUDAGuard guard(q.device());
    q = q.contiguous();
    k = k.contiguous();
    v = v.contiguous();
    torch::Tensor o = torch::empty_like(q);
    const int batch = static_cast<int>(q.size(0)), heads = static_cast<int>(q.size(1)), kv_heads = static_cast<int>(k.size(1));
    const int seq_q = static_cast<int>(q.size(2)), seq_kv = static_cast<int>(k.size(2));
    const evo_host::Sizes sizes = evo_sizes(batch, heads, kv_heads, seq_q, seq_kv);
    const auto bytes = torch::dtype(torch::kUInt8).device(q.device());
    torch::Tensor workspace = torch::empty({sizes.workspace_bytes()}, bytes);
    torch::Tensor counters = torch::zeros({4 * sizes.counters()}, bytes);
    EvoExtras extras;
    extras.workspace = sizes.workspace_bytes() > 0 ? workspace.data_ptr() : nullptr;
    extras.counters = sizes.counters() > 0 ? static_cast<unsigned*>(counters.data_ptr()) : nullptr;
    const EvoStrides q_strides = evo_contiguous(heads, seq_q), kv_strides = evo_contiguous(kv_heads, seq_kv);
    const float scale = 1.0f / std::sqrt(static_cast<float>(P::HEAD_DIM));
    C10_CUDA_CHECK(evo_attention_launch(q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), batch, heads, kv_heads, seq_q,
                                        seq_kv, q_strides, kv_strides, kv_strides, q_strides, scale,
                                        c10::cuda::getCurrentCUDAStream(), extras));
    return o;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &forward, "fused attention forward"); }
