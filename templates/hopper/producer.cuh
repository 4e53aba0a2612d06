// ---- producer: one thread that keeps the rings full ----------------------------------------------------------------------------
// Loads the rows of Q of all query groups.
__device__ __forceinline__ void produce_queries(QuerySlots& slot, const TensorMaps& maps, const Rows& rows, const Place& place,
                                                unsigned s_base, int cta_row) {
    slot.wait_empty();  // all consumers are done with Q, and with O in its place, of the piece before
    barrier_expect(slot.full(), cta_rows(rows.p) * PANELS * PANEL_ROW_BYTES);
#pragma unroll
    for (int group = 0; group < QUERY_GROUPS; ++group)
        load_queries(s_base + slot.slot * Q_BYTES + group * ROWS_BYTES, maps.q, slot.full(),
                     place.first_query + rows.query(cta_row + group * consumer_rows(rows.p)), place.head, place.sequence);
    slot.advance();
}

__device__ __forceinline__ void produce(const AttentionParams& p, const TensorMaps& maps, unsigned s_base, int4* next_pieces) {
    const unsigned s_barriers = s_base + BARRIERS_OFFSET;
    QuerySlots q_slots(s_barriers + Q_BARRIERS);
    KeySlots k_slots(s_barriers + K_BARRIERS), v_slots(s_barriers + V_BARRIERS);
    WorkSlots work_slots(s_barriers + WORK_BARRIERS);
    const Schedule schedule(p);

    Piece piece = schedule.first(p);
#pragma unroll 1
    for (int round = 1; piece.number < schedule.count(); ++round) {
        const Work work = piece.work;
        const Rows rows(p, work);
        const int cta_row = work.tile * cta_rows(p);
        const bool has_rows = !Cfg::PACKED || cta_row < rows.count();
        const Place place(p, work);
        const KeyTiles tiles = schedule.key_tiles(rows, work, piece.number);
        const int count = has_rows ? tiles.count : 0;
        auto load_k = [&](int index) {
            k_slots.wait_empty();  // all its readers have computed S from what the slot held
            barrier_expect(k_slots.full(), KEYS_BYTES);
            load_tile<KEYS_PANEL_BYTES>(s_base + K_OFFSET + k_slots.slot * KEYS_BYTES, maps.k, k_slots.full(),
                                        place.first_key + tiles.first_key(index), rows.kv_head, place.sequence);
            k_slots.advance();
        };
        auto load_v = [&](int index) {
            v_slots.wait_empty();  // all its readers have added P V of what the slot held
            barrier_expect(v_slots.full(), KEYS_BYTES);
            load_tile<KEYS_PANEL_BYTES>(s_base + V_OFFSET + v_slots.slot * KEYS_BYTES, maps.v, v_slots.full(),
                                        place.first_key + tiles.first_key(index), rows.kv_head, place.sequence);
            v_slots.advance();
        };

        if (!KEYS_FIRST && has_rows) produce_queries(q_slots, maps, rows, place, s_base, cta_row);
        if constexpr (Cfg::KEY_GROUPS > 1) {
            load_round(0, count, load_k, load_v);
        } else if (count > 0) {
            load_k(0);
        }
        if (KEYS_FIRST && has_rows) produce_queries(q_slots, maps, rows, place, s_base, cta_row);
        Piece following{schedule.count(), work};
        auto find_next = [&] {
            if constexpr (STAYS) following = schedule.next(p, piece.number, round);
            if constexpr (PIECES_SENT) {
                work_slots.wait_empty();  // all consumers have read the piece two before
                next_pieces[work_slots.slot] = following.packed();
                barrier_arrive(work_slots.full());
                work_slots.advance();
            }
        };
        if constexpr (Cfg::KEY_GROUPS > 1) {
            find_next();
#pragma unroll 1
            for (int first = Cfg::KEY_GROUPS; first < count; first += Cfg::KEY_GROUPS) load_round(first, count, load_k, load_v);
        } else {
#pragma unroll 1
            for (int index = 1; index <= count; ++index) {
                if (index < count) load_k(index);
                load_v(index - 1);
                if (index == 1) find_next();  // the first copies do not wait for it
            }
            if (count == 0) find_next();
        }
        piece = following;
    }
}
