// ---- dispatcher: chooses a kernel by the traits and sizes of a call --------------------------------------------------------
namespace evo {

struct Strides {  // in elements; the head_dim axis is contiguous and rows start on 16 bytes
    long long batch, head;
    int row;
};

// One call: O = softmax(softmax_scale * Q K^T) V. Device pointers, aligned to 16 bytes.
struct Call {
    const void *q = nullptr, *k = nullptr, *v = nullptr;  // [batch, heads, seq_q, head_dim], [batch, kv_heads, seq_kv, head_dim]
    void* o = nullptr;
    bool is_bf16 = false;
    int head_dim = 0, batch = 0, heads = 0, kv_heads = 0;
    int seq_q = 0, seq_kv = 0;  // for packed sequences the longest
    Strides q_strides{}, k_strides{}, v_strides{}, o_strides{};
    float softmax_scale = NAN;  // any finite number; must be set
    bool causal = false;  // hides the keys after the diagonal, which for row i is key i + seq_kv - seq_q
    int window_left = -1, window_right = -1;  // visible keys before and after the diagonal, -1 for all
    float softcap = 0;                        // logits become softcap * tanh(logit / softcap), 0 for none
    const float* sink = nullptr;              // [heads], one extra softmax logit per head; null for none
    float* lse = nullptr;                     // output [batch, heads, seq_q], packed [heads, rows_q]; null for none
    const int *cu_seqlens_q = nullptr, *cu_seqlens_kv = nullptr;  // [batch + 1], first rows of packed sequences; null for none
    int rows_q = 0, rows_kv = 0;              // total rows of packed sequences
    void* workspace = nullptr;                // workspace_bytes(call) bytes, arbitrary contents
    unsigned* counters = nullptr;             // counters(call) of them, zero before the first call; each call resets them
};

// One kernel with its traits.
struct Kernel {
    const char* name;  // key of its tuning problem
    bool (*does)(const Call&);
    double (*distance)(const Call&);  // distance of a call's sizes from the tuning problem
    cudaError_t (*launch)(const Call&, cudaStream_t);
    long long (*workspace_bytes)(const Call&);
    long long (*counters)(const Call&);
};

namespace detail {

inline double doublings(double a, double b) { return std::fabs(std::log2(a / b)); }

// Template parameters of one kernel's namespace: P is its EvoProblem, S its EvoStrides, X its EvoExtras.
template <typename P>
bool does(const Call& c) {
    const bool causal = c.causal || c.window_right == 0;
    return c.is_bf16 == P::IS_BF16 && c.head_dim == P::HEAD_DIM && causal == P::CAUSAL &&
           (c.window_left >= 0) == P::HAS_WINDOW_LEFT && (!causal && c.window_right > 0) == P::HAS_WINDOW_RIGHT &&
           (c.softcap > 0) == P::HAS_SOFTCAP && (c.sink != nullptr) == P::HAS_SINK && (c.lse != nullptr) == P::HAS_LSE &&
           (c.cu_seqlens_q != nullptr) == P::PACKED && c.batch > 0 && c.kv_heads > 0 && c.heads % c.kv_heads == 0 &&
           c.seq_q > 0 && c.seq_kv > 0;
}
template <typename P>
double distance(const Call& c) {
    return doublings(c.seq_q, P::SEQ_Q) + doublings(c.seq_kv, P::SEQ_KV) +
           doublings(double(c.batch) * c.heads, double(P::BATCH) * P::HEADS) +
           doublings(c.heads / c.kv_heads, P::HEADS / P::KV_HEADS);
}
template <typename X>
X extras(const Call& c) {
    X x;
    x.lse = c.lse;
    x.sink = c.sink;
    x.window_left = c.window_left;
    x.window_right = c.window_right;
    x.softcap = c.softcap;
    x.cu_seqlens_q = c.cu_seqlens_q;
    x.cu_seqlens_kv = c.cu_seqlens_kv;
    x.rows_q = c.rows_q;
    x.rows_kv = c.rows_kv;
    x.workspace = c.workspace;
    x.counters = c.counters;
    return x;
}
template <typename S>
S strides(const Strides& s) {
    return {s.batch, s.head, s.row};
}
}  // namespace detail

// Strides of a contiguous [batch, heads, rows, head_dim] tensor.
inline Strides contiguous(int heads, int rows, int head_dim) {
    return {static_cast<long long>(heads) * rows * head_dim, static_cast<long long>(rows) * head_dim, head_dim};
}
}  // namespace evo
