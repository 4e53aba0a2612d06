// PTX of sm_90a that the emulator tests use.
typedef unsigned u32; typedef unsigned long long u64; typedef unsigned short u16;
struct __align__(64) TensorMap { unsigned char opaque[128]; };
#define DEVICE __device__ __forceinline__
DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
DEVICE void init(u32 bar, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(count) : "memory");
}
DEVICE void fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void fence_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEVICE void expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}
DEVICE void arrive(u32 bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar) : "memory"); }
DEVICE void wait(u32 bar, u32 parity) {
  u32 done;
  do {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done) : "r"(bar), "r"(parity) : "memory");
  } while (!done);
}
DEVICE void load(u32 to, const TensorMap* map, u32 bar, int column, int row) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
               :: "r"(to), "l"(map), "r"(bar), "r"(column), "r"(row) : "memory");
}
DEVICE void store(const TensorMap* map, u32 from, int column, int row) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];"
               :: "l"(map), "r"(from), "r"(column), "r"(row) : "memory");
}
DEVICE void commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N> DEVICE void wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(N) : "memory"); }
template <int N> DEVICE void wait_write() { asm volatile("cp.async.bulk.wait_group %0;" :: "n"(N) : "memory"); }
DEVICE void bar_sync(int number, int threads) { asm volatile("bar.sync %0, %1;" :: "r"(number), "r"(threads) : "memory"); }
DEVICE void bar_arrive(int number, int threads) { asm volatile("bar.arrive %0, %1;" :: "r"(number), "r"(threads) : "memory"); }
