// Mini flash attention forward: one CTA = WARPS x 16 query rows of one head; K/V tiles double buffered with cp.async.
// Layout: Q, K, V, O are [heads, seq, 64] contiguous halves. Shared tiles are rows of 128 B, 16-byte chunks XOR-swizzled by row & 7.
#ifndef WARPS
#define WARPS 4
#endif
#ifndef CAUSAL
#define CAUSAL 0
#endif
#ifndef BF16
#define BF16 0
#endif
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;
constexpr int D = 64, BM = WARPS * 16, BN = 64, THREADS = WARPS * 32;

struct Params { const u16* q; const u16* k; const u16* v; u16* o; int seq_q; int seq_kv; float scale_log2; };

__device__ __forceinline__ u32 saddr(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void cp_async16(u32 dst, const void* src, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}
__device__ __forceinline__ void ldsm4(u32 (&r)[4], u32 a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(a) : "memory");
}
__device__ __forceinline__ void ldsm4t(u32 (&r)[4], u32 a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(a) : "memory");
}
__device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if BF16
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
#endif
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ u32 pack(float lo, float hi) {
  u32 r;
#if BF16
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(hi), "f"(lo));
#else
  asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(hi), "f"(lo));
#endif
  return r;
}
__device__ __forceinline__ float ex2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x)); return y; }

// Copies rows [row0, row0 + ROWS) of g into a swizzled tile; rows past the end are zero-filled.
template <int ROWS>
__device__ __forceinline__ void load_tile(u32 s, const u16* g, int row0, int rows) {
#pragma unroll
  for (int i = 0; i < ROWS * 8 / THREADS; i++) {
    int c = i * THREADS + threadIdx.x, r = c >> 3, ch = c & 7;
    bool in = row0 + r < rows;
    cp_async16(s + r * 128 + ((ch ^ (r & 7)) << 4), g + (u64)(in ? row0 + r : 0) * D + ch * 8, in ? 16 : 0);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) flash(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) unsigned char smem[];
  const u32 sq = saddr(smem), sk = sq + BM * 128, sv = sk + 2 * BN * 128;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, m0 = blockIdx.x * BM;
  const u16* q = p.q + (u64)blockIdx.y * p.seq_q * D;
  const u16* k = p.k + (u64)blockIdx.y * p.seq_kv * D;
  const u16* v = p.v + (u64)blockIdx.y * p.seq_kv * D;
  u16* o = p.o + (u64)blockIdx.y * p.seq_q * D;
  int tiles = (p.seq_kv + BN - 1) / BN;
#if CAUSAL
  { int last = m0 + BM - 1 + p.seq_kv - p.seq_q; int t = last < 0 ? 0 : last / BN + 1; tiles = t < tiles ? t : tiles; }
#endif
  load_tile<BM>(sq, q, m0, p.seq_q);
  load_tile<BN>(sk, k, 0, p.seq_kv);
  asm volatile("cp.async.commit_group;\n" ::: "memory");
  load_tile<BN>(sv, v, 0, p.seq_kv);
  asm volatile("cp.async.commit_group;\n" ::: "memory");
  float acc[8][4] = {}, mx[2] = {-1e30f, -1e30f}, sum[2] = {0.f, 0.f};
  u32 qf[4][4];
  for (int t = 0; t < tiles; t++) {
    const u32 skt = sk + (t & 1) * BN * 128, svt = sv + (t & 1) * BN * 128;
    asm volatile("cp.async.wait_group 1;\n" ::: "memory");
    __syncthreads();
    if (t == 0) {
#pragma unroll
      for (int kk = 0; kk < 4; kk++) {
        int r = warp * 16 + (lane & 15), ch = kk * 2 + (lane >> 4);
        ldsm4(qf[kk], sq + r * 128 + ((ch ^ (r & 7)) << 4));
      }
    }
    if (t + 1 < tiles) load_tile<BN>(sk + ((t + 1) & 1) * BN * 128, k, (t + 1) * BN, p.seq_kv);
    asm volatile("cp.async.commit_group;\n" ::: "memory");
    float s[8][4] = {};
#pragma unroll
    for (int kk = 0; kk < 4; kk++)
#pragma unroll
      for (int n = 0; n < 4; n++) {
        u32 b[4];
        int r = n * 16 + (lane & 7) + ((lane >> 4) << 3), ch = kk * 2 + ((lane >> 3) & 1);
        ldsm4(b, skt + r * 128 + ((ch ^ (r & 7)) << 4));
        mma(s[2 * n], qf[kk], b[0], b[1]);
        mma(s[2 * n + 1], qf[kk], b[2], b[3]);
      }
    const bool tail = (t + 1) * BN > p.seq_kv || CAUSAL;
    if (tail) {
#pragma unroll
      for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          int col = t * BN + n * 8 + (lane & 3) * 2 + (e & 1);
          int row = m0 + warp * 16 + (lane >> 2) + (e >> 1) * 8;
          bool off = col >= p.seq_kv || (CAUSAL && col > row + p.seq_kv - p.seq_q);
          if (off) s[n][e] = -1e30f;
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float m = mx[h];
#pragma unroll
      for (int n = 0; n < 8; n++) m = fmaxf(m, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
      float scale = ex2((mx[h] - m) * p.scale_log2), part = 0.f;
      mx[h] = m;
#pragma unroll
      for (int n = 0; n < 8; n++) {
        s[n][2 * h] = ex2(fmaf(s[n][2 * h], p.scale_log2, -m * p.scale_log2));
        s[n][2 * h + 1] = ex2(fmaf(s[n][2 * h + 1], p.scale_log2, -m * p.scale_log2));
        part += s[n][2 * h] + s[n][2 * h + 1];
        acc[n][2 * h] *= scale;
        acc[n][2 * h + 1] *= scale;
      }
      sum[h] = sum[h] * scale + part;
    }
    asm volatile("cp.async.wait_group 1;\n" ::: "memory");
    __syncthreads();
    if (t + 1 < tiles) load_tile<BN>(sv + ((t + 1) & 1) * BN * 128, v, (t + 1) * BN, p.seq_kv);
    asm volatile("cp.async.commit_group;\n" ::: "memory");
#pragma unroll
    for (int kk = 0; kk < 4; kk++) {
      u32 a[4] = {pack(s[2 * kk][0], s[2 * kk][1]), pack(s[2 * kk][2], s[2 * kk][3]),
                  pack(s[2 * kk + 1][0], s[2 * kk + 1][1]), pack(s[2 * kk + 1][2], s[2 * kk + 1][3])};
#pragma unroll
      for (int n = 0; n < 4; n++) {
        u32 b[4];
        int r = kk * 16 + (lane & 15), ch = n * 2 + (lane >> 4);
        ldsm4t(b, svt + r * 128 + ((ch ^ (r & 7)) << 4));
        mma(acc[2 * n], a, b[0], b[1]);
        mma(acc[2 * n + 1], a, b[2], b[3]);
      }
    }
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    sum[h] += __shfl_xor_sync(~0u, sum[h], 1);
    sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
    float inv = sum[h] > 0.f ? 1.f / sum[h] : 0.f;
    int row = m0 + warp * 16 + (lane >> 2) + h * 8;
    if (row < p.seq_q)
#pragma unroll
      for (int n = 0; n < 8; n++)
        *(u32*)(o + (u64)row * D + n * 8 + (lane & 3) * 2) = pack(acc[n][2 * h] * inv, acc[n][2 * h + 1] * inv);
  }
}
