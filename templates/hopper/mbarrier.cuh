// ---- mbarriers: when bytes have arrived, and when a slot is free ----------------------------------------------------------------
// A phase of an mbarrier ends when all its arrivals and all announced bytes are there. A wait names the parity of the phase; on a
// fresh barrier, the wait for parity 1 (the phase before the first) succeeds at once.
__device__ __forceinline__ void barrier_init(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives in the lanes whose `arrives` is set, by a predicate: after a branch that some lanes take, ptxas 13.0 does not always bring
// the warp together again, and stmatrix and shuffles need all lanes.
__device__ __forceinline__ void barrier_arrive_if(bool arrives, unsigned barrier) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p mbarrier.arrive.shared::cta.b64 _, [%1];\n}" ::"r"(
                     static_cast<int>(arrives)),
                 "r"(barrier)
                 : "memory");
}
// Arrives, and announces bytes that copies will report.
__device__ __forceinline__ void barrier_expect(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ bool barrier_is_done(unsigned barrier, unsigned parity) {
    unsigned done;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done;
}
__device__ __forceinline__ void barrier_wait(unsigned barrier, unsigned parity) {
    while (!barrier_is_done(barrier, parity)) {
    }
}

constexpr int MBARRIER_BYTES = 8;

// Two barriers for each of SLOTS slots: full (its bytes are there) and empty (all its readers, READERS consumers, are done).
template <int SLOTS, int READERS = Cfg::CONSUMERS>
struct Slots {
    static constexpr int PAIR_BYTES = 2 * MBARRIER_BYTES;
    static constexpr int BYTES = SLOTS * PAIR_BYTES;

    unsigned barriers;
    int slot = 0;
    unsigned phase = 0;  // parity of the slot's present use

    __device__ __forceinline__ explicit Slots(unsigned barriers) : barriers(barriers) {}
    __device__ __forceinline__ unsigned full() const { return barriers + slot * PAIR_BYTES; }
    __device__ __forceinline__ unsigned empty() const { return full() + MBARRIER_BYTES; }

    // One thread of the CTA, before all others come. Readers arrive once a warp.
    __device__ __forceinline__ void init() const {
#pragma unroll
        for (int i = 0; i < SLOTS; ++i) {
            barrier_init(barriers + i * PAIR_BYTES, 1);
            barrier_init(barriers + i * PAIR_BYTES + MBARRIER_BYTES, READERS * WARPS);
        }
    }
    __device__ __forceinline__ void wait_empty() const { barrier_wait(empty(), phase ^ 1); }
    __device__ __forceinline__ void wait_full() const { barrier_wait(full(), phase); }
    // This warp does not read the slot any more, and has waited for its wgmma's that did.
    __device__ __forceinline__ void release(int lane) const {
        barrier_arrive_if(lane == 0, empty());
    }
    // The same after reads by the warp's threads: without a fence of each thread, the next copy could overtake them.
    __device__ __forceinline__ void release_read(int lane) const {
        fence_async_proxy();
        __syncwarp();  // all lanes have executed it
        release(lane);
    }
    __device__ __forceinline__ void advance() {
        if (++slot == SLOTS) {
            slot = 0;
            phase ^= 1;
        }
    }
    // Goes to the slot of a ring's use number `use`, counted from the kernel's start.
    __device__ __forceinline__ void seek(unsigned use) {
        slot = use % SLOTS;
        phase = use / SLOTS & 1;
    }
    // STEPS times advance().
    template <int STEPS>
    __device__ __forceinline__ void skip() {
        slot += STEPS % SLOTS;
        phase ^= STEPS / SLOTS & 1;
        if (slot >= SLOTS) {
            slot -= SLOTS;
            phase ^= 1;
        }
    }
};

using QuerySlots = Slots<Cfg::Q_SLOTS>;
using KeySlots = Slots<Cfg::STAGES, QUERY_GROUPS>;  // a tile is read by one key group
using WorkSlots = Slots<2>;  // the next pieces of work, which the producer found

// Barrier of all consumers that each reaches at its own place in the code. A hardware barrier would do, but compute-sanitizer
// reports one that warps reach by different instructions as divergence.
struct ConsumerBarrier {
    unsigned barrier;
    unsigned phase = 0;

    __device__ __forceinline__ explicit ConsumerBarrier(unsigned barrier) : barrier(barrier) {}
    __device__ __forceinline__ void init() const { barrier_init(barrier, Cfg::CONSUMERS * WARPS); }  // one thread of the CTA
    // Waits for all warps of all consumers; what each has written before is visible to all.
    __device__ __forceinline__ void wait(int lane) {
        __syncwarp();  // all lanes have written: lane 0 arrives for them
        barrier_arrive_if(lane == 0, barrier);
        barrier_wait(barrier, phase);
        phase ^= 1;
    }
};

// The barriers lie one after the other, with the pieces of work that WorkSlots guards.
constexpr int Q_BARRIERS = 0;
constexpr int K_BARRIERS = Q_BARRIERS + QuerySlots::BYTES;
constexpr int V_BARRIERS = K_BARRIERS + KeySlots::BYTES;
constexpr int WORK_BARRIERS = V_BARRIERS + KeySlots::BYTES;
constexpr int NEXT_PIECES = WORK_BARRIERS + WorkSlots::BYTES;
constexpr int LAST_SPLIT = NEXT_PIECES + 2 * sizeof(int4);  // whether this CTA is the last of its tile's splits
constexpr int VALUES_CLEARED = LAST_SPLIT + 8;    // of packed sequences: V has zeros past the end
static_assert(VALUES_CLEARED + MBARRIER_BYTES <= BARRIERS_BYTES, "the barriers fit");

// Initialises all barriers; one thread. They are visible to all threads, and to the copies, after the CTA's barrier.
__device__ __forceinline__ void init_barriers(unsigned s_barriers) {
    QuerySlots(s_barriers + Q_BARRIERS).init();
    KeySlots(s_barriers + K_BARRIERS).init();
    KeySlots(s_barriers + V_BARRIERS).init();
    WorkSlots(s_barriers + WORK_BARRIERS).init();
    if constexpr (Cfg::PACKED) ConsumerBarrier(s_barriers + VALUES_CLEARED).init();
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");  // for the arrivals of other threads
    fence_async_proxy();                                                // for the bytes that copies report
}

// ---- hardware barriers among warpgroups -----------------------------------------------------------------------------------------
// Numbers of the first barrier of each kind; 0 is the CTA's.
constexpr int TURN_BARRIER = 1;           // one for each consumer: its turn has come
constexpr int CONSUMER_BARRIER = 5;       // one for each consumer: all its warps
constexpr int ALL_CONSUMERS_BARRIER = 9;
static_assert(TURN_BARRIER + Cfg::CONSUMERS <= CONSUMER_BARRIER && CONSUMER_BARRIER + Cfg::CONSUMERS <= ALL_CONSUMERS_BARRIER,
              "each consumer has two hardware barriers");

__device__ __forceinline__ void named_barrier_sync(int name, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int name, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
// Waits for all warps of one consumer.
__device__ __forceinline__ void consumer_barrier(int consumer) { named_barrier_sync(CONSUMER_BARRIER + consumer, WARPGROUP); }
// Waits for all consumers.
__device__ __forceinline__ void consumers_barrier() { named_barrier_sync(ALL_CONSUMERS_BARRIER, Cfg::CONSUMERS * WARPGROUP); }
