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

// Inputs and outputs of a call besides Q, K, V and O. Fields whose trait is false in EvoProblem are ignored.
struct EvoExtras {
    float* lse = nullptr;                        // HAS_LSE: output [batch, heads, seq_q], packed [heads, rows_q], natural log
    const float* sink = nullptr;                 // HAS_SINK: [heads], natural logits
    int window_left = EvoProblem::WINDOW_LEFT;   // HAS_WINDOW_LEFT: visible keys before the diagonal
    int window_right = EvoProblem::WINDOW_RIGHT; // HAS_WINDOW_RIGHT: visible keys after the diagonal
    float softcap = EvoProblem::SOFTCAP;         // HAS_SOFTCAP: logits become softcap * tanh(logit / softcap)
    const int* cu_seqlens_q = nullptr;           // PACKED: [batch + 1], first row of each sequence, then rows_q
    const int* cu_seqlens_kv = nullptr;
    int rows_q = 0;                              // PACKED: total rows of all sequences
    int rows_kv = 0;
    void* workspace = nullptr;                   // evo_sizes(...).workspace_bytes() bytes, arbitrary contents
    unsigned* counters = nullptr;                // evo_sizes(...).counters() of them, zero before the first call; each call resets them
};

// Sizes of a call, which determine its workspace. Calls that may overlap need separate workspaces.
inline evo_host::Sizes evo_sizes(int batch, int heads, int kv_heads, int seq_q, int seq_kv, const EvoExtras& extras = {}) {
    using P = EvoProblem;
    evo_host::Sizes sizes{};
    sizes.batch = batch;
    sizes.heads = heads;
    sizes.kv_heads = kv_heads;
    sizes.seq_q = seq_q;
    sizes.seq_kv = seq_kv;
    sizes.rows_q = P::PACKED ? extras.rows_q : seq_q;
    sizes.rows_kv = P::PACKED ? extras.rows_kv : seq_kv;
    sizes.memory_batch = P::PACKED ? 1 : batch;
    sizes.window_left = P::HAS_WINDOW_LEFT ? extras.window_left : -1;
    sizes.window_right = P::HAS_WINDOW_RIGHT ? extras.window_right : -1;
    return sizes;
}

// Whether everything that EvoProblem and the sizes require is set.
inline bool evo_complete(const evo_host::Sizes& sizes, const EvoExtras& extras) {
    using P = EvoProblem;
    if (sizes.batch < 1 || sizes.heads < 1 || sizes.kv_heads < 1 || sizes.heads % sizes.kv_heads != 0) return false;
    if (sizes.seq_q < 1 || sizes.seq_kv < 1 || sizes.rows_q < sizes.seq_q || sizes.rows_kv < sizes.seq_kv) return false;
    if (!sizes.has_exact_rows()) return false;
    if (P::HAS_WINDOW_LEFT && extras.window_left < 0) return false;
    if (P::HAS_WINDOW_RIGHT && extras.window_right < 0) return false;
    if (P::HAS_SOFTCAP && !(extras.softcap > 0)) return false;
    if (P::PACKED && (extras.cu_seqlens_q == nullptr || extras.cu_seqlens_kv == nullptr)) return false;
    if (P::HAS_LSE && extras.lse == nullptr) return false;
    if (P::HAS_SINK && extras.sink == nullptr) return false;
    if (sizes.workspace_bytes() > 0 && extras.workspace == nullptr) return false;
    return sizes.counters() == 0 || extras.counters != nullptr;
}

constexpr float EVO_MAX_SCALE = 1.7014118e38f;  // 2^127: times log2(e) it is still finite

// Sets the scale and the softcap (0 for none) of a call, in base 2, in which the kernel works.
inline void evo_set_scale(AttentionParams& params, float softmax_scale, float softcap) {
    constexpr double LOG2_E = 1.4426950408889634;
    constexpr float MIN_SCALE = 1.1754944e-38f;    // 2^-126, stands for 0: the kernel multiplies it by scores of -inf
    constexpr float MAX_ARGUMENT = 4.2535296e37f;  // 2^125, of tanh per unit of Q K^T: the kernel doubles it
    params.scale_log2 = static_cast<float>(softmax_scale * LOG2_E);
    params.softcap_log2 = static_cast<float>(softcap * LOG2_E);
    params.softcap_scale = softcap > 0 ? std::fmin(std::fmax(softmax_scale / softcap, -MAX_ARGUMENT), MAX_ARGUMENT)
                                       : std::fmax(std::fabs(params.scale_log2), MIN_SCALE);  // is named positive_scale, too
}

// O = softmax(softmax_scale · Q Kᵀ) V on `stream`, asynchronously. Q and O are [batch, heads, seq_q, HEAD_DIM], K and V are
// [batch, kv_heads, seq_kv, HEAD_DIM], all of EvoProblem's element type; device pointers, aligned to 16 bytes. Any batch,
// heads and lengths for which evo_host::Sizes::has_exact_rows work, heads being a multiple of kv_heads. Row i has its diagonal
// at key i + seq_kv - seq_q; a causal mask hides the keys after it. A row without visible keys yields zeros. softmax_scale is
// any finite number below 2^127 in magnitude.
// Packed sequences are [heads, rows, HEAD_DIM], one after the other; seq_q and seq_kv are then the longest lengths.
extern "C" cudaError_t evo_attention_launch(const void* q, const void* k, const void* v, void* o, int batch, int heads,
                                            int kv_heads, int seq_q, int seq_kv, EvoStrides q_strides, EvoStrides k_strides,
                                            EvoStrides v_strides, EvoStrides o_strides, float softmax_scale,
                                            cudaStream_t stream, EvoExtras extras = {}) {
    using P = EvoProblem;
    const evo_host::Sizes sizes = evo_sizes(batch, heads, kv_heads, seq_q, seq_kv, extras);
    if (!evo_complete(sizes, extras) || !(std::fabs(softmax_scale) <= EVO_MAX_SCALE)) return cudaErrorInvalidValue;

    AttentionParams params{};
    params.q = q;
    params.k = k;
    params.v = v;
    params.o = o;
    params.lse = P::HAS_LSE ? extras.lse : nullptr;
    params.sink = P::HAS_SINK ? extras.sink : nullptr;
    params.cu_seqlens_q = P::PACKED ? extras.cu_seqlens_q : nullptr;
    params.cu_seqlens_kv = P::PACKED ? extras.cu_seqlens_kv : nullptr;
    params.workspace = extras.workspace;
    params.counters = extras.counters;
    params.q_batch_stride = P::PACKED ? 0 : q_strides.batch;
    params.q_head_stride = q_strides.head;
    params.q_row_stride = q_strides.row;
    params.k_batch_stride = P::PACKED ? 0 : k_strides.batch;
    params.k_head_stride = k_strides.head;
    params.k_row_stride = k_strides.row;
    params.v_batch_stride = P::PACKED ? 0 : v_strides.batch;
    params.v_head_stride = v_strides.head;
    params.v_row_stride = v_strides.row;
    params.o_batch_stride = P::PACKED ? 0 : o_strides.batch;
    params.o_head_stride = o_strides.head;
    params.o_row_stride = o_strides.row;
    params.lse_batch_stride = P::PACKED ? 0 : heads * sizes.rows_q;
    params.lse_head_stride = sizes.rows_q;
    params.batch = batch;
    params.heads = heads;
    params.heads_per_kv_head = heads / kv_heads;
    params.seq_q = seq_q;
    params.seq_kv = seq_kv;
    params.window_left = P::HAS_WINDOW_LEFT ? extras.window_left : 0;
    params.window_right = P::HAS_WINDOW_RIGHT ? extras.window_right : 0;
    evo_set_scale(params, softmax_scale, P::HAS_SOFTCAP ? extras.softcap : 0.0f);
    return evo_host::launch_steps(sizes, params, stream);
}
