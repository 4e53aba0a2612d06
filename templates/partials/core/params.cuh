// First argument of every kernel, mirrored from evoengine/kernel/abi.py (PARAMS_DTYPE). Needs Cfg::PARAM_BYTES.
// Strides are in elements; the head_dim axis is contiguous. 64-bit strides, because batch x head offsets pass 2^31.
// Fields that a problem does not use are 0; the traits in Cfg say which may be read.
struct AttentionParams {
    // 128 bytes that every kernel needs: two lines of the constant cache.
    const void* q;  // [batch, heads, seq_q, head_dim]
    const void* k;  // [batch, kv_heads, seq_kv, head_dim]
    const void* v;  // [batch, kv_heads, seq_kv, head_dim]
    void* o;        // [batch, heads, seq_q, head_dim]
    long long q_batch_stride;  // all batch strides are 0 where sequences are packed
    long long q_head_stride;
    long long k_batch_stride;
    long long k_head_stride;
    long long v_batch_stride;
    long long v_head_stride;
    long long o_batch_stride;
    long long o_head_stride;
    int q_row_stride;
    int k_row_stride;
    int v_row_stride;
    int o_row_stride;
    int heads_per_kv_head;  // query heads that share one K/V head
    int seq_q;              // of packed sequences, the longest
    int seq_kv;
    float scale_log2;       // softmax scale, any finite number, times log2(e): softmax runs in base 2
    // Fields that only some problems use.
    float* lse;                // [batch, heads, seq_q], natural logarithm
    const float* sink;         // [heads], natural logits
    const int* cu_seqlens_q;   // [batch + 1], first row of each packed sequence
    const int* cu_seqlens_kv;  // [batch + 1]
    void* workspace;           // partial results between CTAs
    unsigned* counters;        // zero before every call; the call leaves them at zero
    long long lse_batch_stride;
    long long lse_head_stride;
    int batch;            // sequences
    int heads;
    int window_left;      // keys that a row sees before its diagonal
    int window_right;     // and after it
    float softcap_log2;   // softcap times log2(e)
    union {
        float softcap_scale;   // with a softcap: softmax scale over softcap, the argument of tanh per unit of Q K^T
        float positive_scale;  // without: |scale_log2|, at least the smallest normal number (softmax_scale.cuh)
    };
};
static_assert(sizeof(AttentionParams) == Cfg::PARAM_BYTES, "AttentionParams differs between host and device");
