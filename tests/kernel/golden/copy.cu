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
    static constexpr bool CAUSAL = false;
    static constexpr bool IS_BF16 = false;
    // The host's launch: the kernel asserts that it agrees.
    static constexpr int LAUNCH_THREADS = 64;  // threads per CTA
    static constexpr int LAUNCH_SMEM_BYTES = 256;  // bytes of dynamic shared memory per CTA
    static constexpr int PARAM_BYTES = 128;  // bytes of AttentionParams
};
// The one argument of every kernel, mirrored from evoengine/kernel/abi.py (PARAMS_DTYPE). Needs Cfg::PARAM_BYTES.
// Strides are in elements; the head_dim axis is contiguous. 64-bit strides, because batch x head offsets pass 2^31.
struct AttentionParams {
    const void* q;  // [batch, heads, seq_q, head_dim]
    const void* k;  // [batch, kv_heads, seq_kv, head_dim]
    const void* v;  // [batch, kv_heads, seq_kv, head_dim]
    void* o;        // [batch, heads, seq_q, head_dim]
    long long q_batch_stride;
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
    int seq_q;
    int seq_kv;
    int heads_per_kv_head;  // query heads that share one K/V head
    float scale_log2;       // softmax scale times log2(e): softmax runs in base 2
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
