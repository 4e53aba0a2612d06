// ---- producer: one thread that keeps the rings full ----------------------------------------------------------------------------
// Of each piece of work it first copies Q and the key tile that each key group begins with, then the rest as slots become free.
struct Producer {
    const AttentionParams& p;
    const TensorMaps& maps;
    unsigned s_base;
    Schedule schedule;
    QuerySlots q_slots;
    KeySlots k_slots, v_slots;
    WorkSlots work_slots;
    // The present piece.
    int number;
    int count;    // of its key tiles; 0 also where the sequence has none of its rows
    int kv_head;
    KeyTiles tiles;
    Place place;

    __device__ __forceinline__ Producer(const AttentionParams& p, const TensorMaps& maps, unsigned s_base)
        : p(p), maps(maps), s_base(s_base), schedule(p), q_slots(s_base + BARRIERS_OFFSET + Q_BARRIERS),
          k_slots(s_base + BARRIERS_OFFSET + K_BARRIERS), v_slots(s_base + BARRIERS_OFFSET + V_BARRIERS),
          work_slots(s_base + BARRIERS_OFFSET + WORK_BARRIERS) {}

    // Loads the rows of Q of all query groups. No slot is in use before the first piece.
    template <bool FIRST_PIECE>
    __device__ __forceinline__ void load_q(const Rows& rows, int cta_row) {
        if constexpr (!FIRST_PIECE) q_slots.wait_empty();  // all consumers are done with Q, and with O in its place, of the piece before
        barrier_expect(q_slots.full(), cta_rows(p) * PANELS * PANEL_ROW_BYTES);
#pragma unroll
        for (int group = 0; group < QUERY_GROUPS; ++group)
            load_queries(s_base + q_slots.slot * Q_BYTES + group * ROWS_BYTES, maps.q, q_slots.full(),
                         place.first_query + rows.query(cta_row + group * consumer_rows(p)), place.head, place.sequence);
        q_slots.advance();
    }
    template <bool FREE = false>
    __device__ __forceinline__ void load_k(int index) {
        if constexpr (!FREE) k_slots.wait_empty();  // all consumers have computed S from what the slot held
        barrier_expect(k_slots.full(), KEYS_BYTES);
        load_tile<KEYS_PANEL_BYTES>(s_base + K_OFFSET + k_slots.slot * KEYS_BYTES, maps.k, k_slots.full(),
                                    place.first_key + tiles.first_key(index), kv_head, place.sequence);
        k_slots.advance();
    }
    __device__ __forceinline__ void load_v(int index) {
        v_slots.wait_empty();  // all consumers have added P V of what the slot held
        barrier_expect(v_slots.full(), KEYS_BYTES);
        load_tile<KEYS_PANEL_BYTES>(s_base + V_OFFSET + v_slots.slot * KEYS_BYTES, maps.v, v_slots.full(),
                                    place.first_key + tiles.first_key(index), kv_head, place.sequence);
        v_slots.advance();
    }

    // Goes to a piece, and starts its first copies.
    template <bool FIRST_PIECE>
    __device__ __forceinline__ void begin(const Piece& piece) {
        const Work& work = piece.work;
        number = piece.number;
        count = 0;
        if ((!FIRST_PIECE || Cfg::SHARE_LAST_ROUND) && number >= schedule.count()) return;
        const Rows rows(p, work);
        const int cta_row = work.tile * cta_rows(p);
        if (Cfg::PACKED && cta_row >= rows.count()) return;  // the sequence is shorter than the longest
        kv_head = rows.kv_head;
        place = Place(p, work);
        tiles = schedule.key_tiles(rows, work, number);
        count = tiles.count;
        if constexpr (!KEYS_FIRST) load_q<FIRST_PIECE>(rows, cta_row);
#pragma unroll 1
        for (int index = 0; index < min(Cfg::KEY_GROUPS, count); ++index) load_k<FIRST_PIECE>(index);
        if constexpr (KEYS_FIRST) load_q<FIRST_PIECE>(rows, cta_row);
    }

    // Copies the rest of the piece. A slot is waited for only after all copies without which its readers would not release it.
    __device__ __forceinline__ void end() {
        if constexpr (Cfg::KEY_GROUPS > 1) {
#pragma unroll 1
            for (int first = 0; first < count; first += Cfg::KEY_GROUPS) {  // a tile for each group: the rings have a slot for each
                const int end = min(first + Cfg::KEY_GROUPS, count);
#pragma unroll 1
                for (int index = first; index < end && first > 0; ++index) load_k(index);
#pragma unroll 1
                for (int index = first; index < end; ++index) load_v(index);
            }
        } else {
#pragma unroll 1
            for (int index = 1; index < count; ++index) {
                load_k(index);
                load_v(index - 1);
            }
            if (count > 0) load_v(count - 1);
        }
    }

    // The number of the piece after the one of this round.
    __device__ __forceinline__ int following(int round, int* next_numbers) {
        if constexpr (Cfg::SCHEDULE == Cfg::SCHEDULE_PERSISTENT) return schedule.next(number, round);
        if constexpr (Cfg::SCHEDULE == Cfg::SCHEDULE_DYNAMIC) {
            const int drawn = schedule.draw(p);
            work_slots.wait_empty();  // all consumers have read the number of two pieces before
            next_numbers[work_slots.slot] = drawn;
            barrier_arrive(work_slots.full());
            work_slots.advance();
            return drawn;
        }
        return schedule.count();
    }

    // Copies what is left of the first piece, and all further ones.
    __device__ __forceinline__ void run(int* next_numbers) {
#pragma unroll 1
        for (int round = 1; number < schedule.count(); ++round) {
            const int next = following(round, next_numbers);  // early: a draw takes as long as a read of global memory
            end();
            if constexpr (!STAYS) return;
            begin<false>(Piece(p, schedule, next));
        }
    }
};
