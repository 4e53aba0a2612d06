// ---- values: O += P V of one tile ---------------------------------------------------------------------------------------------
// O[64 x HEAD_DIM] += P · V of the tile in slot s_v. Two neighbouring 8-key tiles of P are one 16-deep A operand.
// `before(step)` runs before each 16 keys; the wgmma's start every PV_KEYS keys and run beside what comes next. All are done
// on return.
template <typename Before>
__device__ __forceinline__ void weighted_values(Scores& s, Accumulators& acc, unsigned s_v, Before before) {
    constexpr int STEPS = KEY_TILES / 2;
    constexpr int TOGETHER = Cfg::PV_KEYS / 16;
    unsigned a[STEPS][4];
    pin(acc.o[0]);
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        before(step);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float(&pair)[4] = s[0][2 * step + i / 2];
            a[step][i] = pack_16bit(pair[(i % 2) * 2], pair[(i % 2) * 2 + 1]);
            asm volatile("" : "+r"(a[step][i])::"memory");  // it is there before the fence
        }
        if ((step + 1) % TOGETHER == 0 || step + 1 == STEPS) {
            warpgroup_fence();
            const int first = step / TOGETHER * TOGETHER;
#pragma unroll
            for (int done = first; done <= step; ++done)
                wgmma_values(acc.o[0], a[done], tile_descriptor(s_v + done * 2 * EIGHT_ROWS_BYTES));
            warpgroup_commit();
        }
    }
    warpgroup_wait<0>();
    pin(acc.o[0]);
    pin(a);
}

// Starts O += P · V of a whole tile. Returns while it is under way.
__device__ __forceinline__ void start_values(Accumulators& acc, unsigned (&a)[KEY_TILES / 2][4], unsigned s_v) {
    unsigned long long b[KEY_TILES / 2];
#pragma unroll
    for (int step = 0; step < KEY_TILES / 2; ++step) b[step] = tile_descriptor(s_v + step * 2 * EIGHT_ROWS_BYTES);
    pin(acc.o[0]);
    pin(a);
    warpgroup_fence();
    wgmma_values(acc.o[0], a, b);
    warpgroup_commit();
}
