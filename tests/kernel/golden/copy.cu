// EvoEngine, family copy, template 0000000000000000: FACTOR=1 PLACE=shared REGISTERS=0 SKEWED=False WARPS=2
// A kernel that copies Q to O: purpose first.

struct Cfg {
    // Tunables.
    static constexpr int WARPS = 2;  // warps: warps per CTA
    static constexpr int FACTOR = 1;  // times: how often
    static constexpr int REGISTERS = 0;  // registers: cap
    static constexpr int PLACE_DIRECT = 0, PLACE_SHARED = 1;
    static constexpr int PLACE = PLACE_SHARED;  // place: where rows wait
    static constexpr bool SKEWED = false;  // flag: start at one
    // Derived from them.
    static constexpr int THREADS = 64;  // threads: threads per CTA
    static constexpr int ROWS = 64;  // rows: rows per CTA
    // The problem's traits; batch, heads and lengths are arguments, so one binary serves them all.
    static constexpr int HEAD_DIM = 64;  // elements
    static constexpr bool IS_BF16 = false;
    static constexpr bool CAUSAL = false;
    static constexpr bool HAS_WINDOW_LEFT = false;  // keys too far before the diagonal are hidden
    static constexpr bool HAS_WINDOW_RIGHT = false;  // keys too far after it, too
    static constexpr bool HAS_SOFTCAP = false;
    static constexpr bool HAS_SINK = false;
    static constexpr bool HAS_LSE = false;  // the log-sum-exp of each row is an output
    static constexpr bool PACKED = false;  // sequences of different lengths lie one after the other
    // The host's launch: the kernel asserts that it agrees.
    static constexpr int LAUNCH_THREADS = 64;  // threads per CTA
    static constexpr int LAUNCH_SMEM_BYTES = 256;  // bytes of dynamic shared memory per CTA
    static constexpr int PARAM_BYTES = 216;  // bytes of AttentionParams
};
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

struct Pair { int a[2][2]; };
__constant__ Pair table = {{{1, 2}, {3, 4}}};
extern "C" __global__ void __launch_bounds__(Cfg::LAUNCH_THREADS)
evo_attention(const __grid_constant__ AttentionParams p) {
    extern __shared__ float staging[];
    const int i = blockIdx.x * Cfg::ROWS + threadIdx.x;
    int lane;
    asm("mov.b32 %0, {%1, %2};" : "=r"(lane) : "h"(static_cast<short>(i)), "h"(static_cast<short>(0)));
    staging[threadIdx.x] = 0.0f;
    __syncthreads();
    if (i < p.seq_q)
        static_cast<unsigned short*>(p.o)[i * p.o_row_stride] =
            static_cast<unsigned short>(staging[threadIdx.x ^ 1] + lane + table.a[lane & 1][0] + 1);
}
