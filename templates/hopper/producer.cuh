// ---- producer: one thread that keeps the rings full ----------------------------------------------------------------------------
__device__ __forceinline__ void produce(const AttentionParams& p, const TensorMaps& maps, unsigned s_base, int* next_numbers) {
    const unsigned s_barriers = s_base + BARRIERS_OFFSET;
    QuerySlot q_slot(s_barriers + Q_BARRIERS);
    KeySlots k_slots(s_barriers + K_BARRIERS), v_slots(s_barriers + V_BARRIERS);
    WorkSlots work_slots(s_barriers + WORK_BARRIERS);
    const Schedule schedule(p);

    int number = blockIdx.x;
#pragma unroll 1
    for (int round = 1; number < schedule.count(); ++round) {
        const Work work = schedule.work(p, number);
        const Rows rows(p, work);
        const int cta_row = work.tile * Cfg::BLOCK_M;
        const int kv_head = work.head / p.heads_per_kv_head;
        const KeyTiles tiles(rows, cta_row);
        auto load_k = [&](int index) {
            k_slots.wait_empty();  // all consumers have computed S from what the slot held
            barrier_expect(k_slots.full(), KEYS_BYTES);
            load_tile<KEYS_PANEL_BYTES>(s_base + K_OFFSET + k_slots.slot * KEYS_BYTES, maps.k, k_slots.full(),
                                        tiles.first_key(index), kv_head, work.sequence);
            k_slots.advance();
        };
        auto load_v = [&](int index) {
            v_slots.wait_empty();  // all consumers have added P V of what the slot held
            barrier_expect(v_slots.full(), KEYS_BYTES);
            load_tile<KEYS_PANEL_BYTES>(s_base + V_OFFSET + v_slots.slot * KEYS_BYTES, maps.v, v_slots.full(),
                                        tiles.first_key(index), kv_head, work.sequence);
            v_slots.advance();
        };

        q_slot.wait_empty();  // all consumers are done with Q, and with O in its place, of the piece before
        barrier_expect(q_slot.full(), Q_BYTES);
#pragma unroll
        for (int group = 0; group < QUERY_GROUPS; ++group)
            load_tile<ROWS_PANEL_BYTES>(s_base + group * ROWS_BYTES, maps.q, q_slot.full(),
                                        cta_row + group * WARPGROUP_ROWS, work.head, work.sequence);
        q_slot.advance();

        if constexpr (Cfg::KEY_GROUPS > 1) {
            load_round(0, tiles.count, load_k, load_v);
        } else if (tiles.count > 0) {
            load_k(0);
        }
        number = schedule.count();
        if constexpr (Cfg::SCHEDULE == Cfg::SCHEDULE_DYNAMIC) {
            number = schedule.draw(p);  // early: the answer takes as long as a read of global memory
            work_slots.wait_empty();    // all consumers have read the number of two pieces before
            next_numbers[work_slots.slot] = number;
            barrier_arrive(work_slots.full());
            work_slots.advance();
        }
        if constexpr (Cfg::SCHEDULE == Cfg::SCHEDULE_PERSISTENT) number = Schedule::number_in_round(round);
        if constexpr (Cfg::KEY_GROUPS > 1) {
#pragma unroll 1
            for (int first = Cfg::KEY_GROUPS; first < tiles.count; first += Cfg::KEY_GROUPS)
                load_round(first, tiles.count, load_k, load_v);
        } else {
#pragma unroll 1
            for (int index = 1; index < tiles.count; ++index) {
                load_k(index);
                load_v(index - 1);
            }
            if (tiles.count > 0) load_v(tiles.count - 1);
        }
    }
}
