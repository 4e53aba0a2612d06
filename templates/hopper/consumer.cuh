// ---- consumers: a warpgroup computes 64 rows of each piece of work, over all keys or its key group's ----------------------------
// State that a consumer keeps from one piece to the next.
struct Consumer {
    int index;        // among the consumers, the same in all lanes
    int query_group;  // place of its 64 rows in the query tile
    int key_group;    // place of its key tiles among those that the groups share
    int thread;       // of the warpgroup
    int warp;         // of the warpgroup
    int lane;
    QuerySlots q_slots;
    KeySlots k_slots, v_slots;
    WorkSlots work_slots;
    ConsumerBarrier values_cleared;

    __device__ __forceinline__ Consumer(int index, unsigned s_barriers)
        : index(index), query_group(Cfg::KEY_GROUPS == 1 ? index : index % QUERY_GROUPS),
          key_group(Cfg::KEY_GROUPS == 1 ? 0 : index / QUERY_GROUPS), thread(threadIdx.x % WARPGROUP),
          warp(threadIdx.x % WARPGROUP / WARP), lane(threadIdx.x % WARP),
          q_slots(s_barriers + Q_BARRIERS), k_slots(s_barriers + K_BARRIERS), v_slots(s_barriers + V_BARRIERS),
          work_slots(s_barriers + WORK_BARRIERS), values_cleared(s_barriers + VALUES_CLEARED) {}

    __device__ __forceinline__ int first_row(const AttentionParams& p, const Work& work) const {
        return work.tile * cta_rows(p) + query_group * consumer_rows(p);
    }

    // Ping-pong: a consumer starts its products in its turn, while the others are at their softmax.
    __device__ __forceinline__ void begin_turns() const {
        if (Cfg::PINGPONG && index == Cfg::CONSUMERS - 1) named_barrier_arrive(TURN_BARRIER, 2 * WARPGROUP);  // the first one begins
    }
    __device__ __forceinline__ void wait_turn() const {
        if constexpr (Cfg::PINGPONG) named_barrier_sync(TURN_BARRIER + index, 2 * WARPGROUP);
    }
    __device__ __forceinline__ void end_turn() const {
        if constexpr (Cfg::PINGPONG) named_barrier_arrive(TURN_BARRIER + (index + 1) % Cfg::CONSUMERS, 2 * WARPGROUP);
    }
};

// Applies softcap and mask to a tile's scores, where it needs them.
__device__ __forceinline__ void cap_and_mask(Scores& s, const Rows& rows, int first_row, int first_key, const Consumer& me) {
    if constexpr (Cfg::HAS_SOFTCAP) cap_scores(s, rows.p);
    const bool crosses_end = first_key + Cfg::BLOCK_N > rows.end_of(rows.query(first_row));
    const int last_query = rows.query(first_row + consumer_rows(rows.p) - 1);
    const bool crosses_begin = Cfg::HAS_WINDOW_LEFT && first_key < rows.begin_of(last_query);
    if (crosses_end || crosses_begin) mask_scores(s, rows, first_row + me.warp * WARP_ROWS, first_key, me.lane);
}

// Leaves tiles [first, end) to the other consumers: passes their turns on, and releases their slots.
__device__ __forceinline__ void pass_tiles(Consumer& me, const Rows& rows, const GroupTiles& tiles, int first, int end,
                                           unsigned s_base) {
#pragma unroll 1
    for (int index = first; index < end; ++index) {
        me.k_slots.wait_full();  // an earlier release would count for the use of the slot before
        me.k_slots.release(me.lane);
        next_tile(me.k_slots);
        me.wait_turn();
        me.end_turn();
        if (Cfg::PACKED && index == 0)  // all consumers wait for each other there, some after their turn
            clear_values_past_end(me.v_slots, me.values_cleared, rows, tiles.first_key(0),
                                  s_base + V_OFFSET + me.v_slots.slot * KEYS_BYTES);
        me.v_slots.wait_full();
        me.v_slots.release(me.lane);
        next_tile(me.v_slots);
    }
}

/*# region mainloop #*/
// Computes unnormalised O, row sums and maxima of one consumer's rows, from the tiles that they see.
__device__ __forceinline__ void attend(Consumer& me, const Rows& rows, const GroupTiles& tiles, const SeenTiles& seen,
                                       int first_row, Queries& q, unsigned s_base, Accumulators& acc) {
    const float scale = logit_scale(rows.p);
    Scores s;
    Limits limits;
    unsigned weights[KEY_TILES / 2][4];
    auto s_k = [&] { return s_base + K_OFFSET + me.k_slots.slot * KEYS_BYTES; };
    auto s_v = [&] { return s_base + V_OFFSET + me.v_slots.slot * KEYS_BYTES; };
    auto end_k = [&] {
        me.k_slots.release(me.lane);
        next_tile(me.k_slots);
    };
    auto end_v = [&] {
        me.v_slots.release(me.lane);
        next_tile(me.v_slots);
    };
    // The steps of a tile, of 16 keys each, that are made before P V of the tile before is waited for.
    constexpr int BESIDE = Cfg::OVERLAP ? KEY_TILES / 2 * Cfg::BESIDE_VALUES / 100 : 0;
    auto exponentiate_steps = [&](const Subtrahends& subtrahends, int first, int end) {
#pragma unroll
        for (int step = first; step < end; ++step) exponentiate(s, acc, subtrahends, scale, step);
    };

    me.k_slots.wait_full();
    me.wait_turn();
    start_scores(s, q, s_k());
    me.end_turn();
    if constexpr (Q_IN_REGISTERS && STAYS) me.q_slots.release_read(me.lane);  // Q of the next piece takes these bytes
    warpgroup_wait<0>();
    pin(s[0]);
    end_k();
    cap_and_mask(s, rows, first_row, tiles.first_key(seen.first), me);
    exponentiate_steps(raise_and_rescale<true>(s, acc, limits, scale), 0, KEY_TILES / 2);
    pack_weights(s, weights);
    if (Cfg::PACKED && seen.first == 0)
        clear_values_past_end(me.v_slots, me.values_cleared, rows, tiles.first_key(0), s_v());
#pragma unroll 1
    for (int index = seen.first + 1; index < seen.end; ++index) {
        if constexpr (Cfg::OVERLAP) {  // S of this tile, then P V of the last one, and some of the softmax beside that
            me.k_slots.wait_full();
            me.wait_turn();
            start_scores(s, q, s_k());
            me.v_slots.wait_full();
            start_values(acc, weights, s_v());
            me.end_turn();
            warpgroup_wait<1>();
            pin(s[0]);
            end_k();
            cap_and_mask(s, rows, first_row, tiles.first_key(index), me);
            auto end_last = [&] {
                end_values(acc, weights);
                end_v();
            };
            const Raised raised = raise_where_needed(s, acc, limits, scale, [&] {
                if constexpr (BESIDE == 0) end_last();
            });
            if constexpr (BESIDE > 0) {
                exponentiate_steps(limits.subtrahends, 0, BESIDE);
                keep_before(acc.sum[0][0]);  // ptxas would move the wait for P V in front of the softmax
                end_last();
            }
            rescale_output(acc, raised);
            exponentiate_steps(limits.subtrahends, BESIDE, KEY_TILES / 2);
        } else {  // P V of the last tile and S of this one together, then the softmax alone
            me.v_slots.wait_full();
            me.wait_turn();
            start_values(acc, weights, s_v());
            me.k_slots.wait_full();
            start_scores(s, q, s_k());
            me.end_turn();
            end_values(acc, weights);
            pin(s[0]);
            end_v();
            end_k();
            cap_and_mask(s, rows, first_row, tiles.first_key(index), me);
            exponentiate_steps(raise_and_rescale<false>(s, acc, limits, scale), 0, KEY_TILES / 2);
        }
        pack_weights(s, weights);
    }
    if constexpr (!Q_IN_REGISTERS && !Cfg::SHARE_QO) me.q_slots.release(me.lane);  // no further S needs Q
    me.v_slots.wait_full();
    start_values(acc, weights, s_v());
    end_values(acc, weights);
    end_v();
}
/*# endregion #*/

//% if KEY_GROUPS > 1
// Ends a piece of work: the key groups' results are merged and stored, and their bytes free for the next piece.
__device__ __forceinline__ void merge_and_store(Consumer& me, const Rows& rows, int cta_row, unsigned char* smem,
                                                const Accumulators& acc) {
    // All groups are done with Q and the rings in these bytes, or with the partial results of the piece before.
    if constexpr (STAYS || Cfg::SHARE_QO) consumers_barrier();
    exchange_and_store(acc, rows, smem + O_OFFSET, me.key_group, cta_row, me.query_group * WARPGROUP_ROWS + me.warp * WARP_ROWS,
                       me.query_group * WARPGROUP + me.thread, [] { consumers_barrier(); });
    // Copies of the next piece take these bytes; the producer waits for Q's slot before all of them.
    if constexpr (STAYS && Cfg::SHARE_QO) me.q_slots.release_read(me.lane);
}
//% else
// Normalises O and leaves it in shared memory as TMA reads it, each warp its 16 rows.
__device__ __forceinline__ void stage_output(const Consumer& me, const Rows& rows, int first_row, unsigned s_rows,
                                             const Accumulators& acc) {
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int own_row = me.warp * WARP_ROWS + half * 8 + me.lane / 4;
        const int row = first_row + own_row;
        const bool inside = row < rows.count() && (!Cfg::PACK_GQA || own_row < consumer_rows(rows.p));
        const RowEnd end = end_row(rows, inside ? row : 0, acc.maximum[0][half], row_sum(acc, 0, half));
        if (Cfg::HAS_LSE && inside && me.lane % 4 == 0) *rows.lse(row) = end.lse;
        factor[half] = end.factor;
    }
    const int row = me.warp * WARP_ROWS + (me.lane & 15);  // the row whose address this lane passes
#pragma unroll
    for (int tile = 0; tile < D_TILES; tile += 2) {
        const bool paired = tile + 1 < D_TILES;  // an odd count ends with a column block that the store leaves out
        unsigned r[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float* pair = &acc.o[0][i < 2 || paired ? tile + i / 2 : tile][i % 2 * 2];
            r[i] = pack_16bit(pair[0] * factor[i % 2], pair[1] * factor[i % 2]);
        }
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         s_rows + rows_offset(row, tile + (me.lane >> 4))),
                     "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                     : "memory");
    }
}

// Ends a piece of work: O through shared memory to its place, and Q's bytes free for the next piece.
__device__ __forceinline__ void store_output(Consumer& me, const TensorMaps& maps, const Rows& rows, const Place& place,
                                             int first_row, unsigned char* smem, unsigned s_base, const Accumulators& acc) {
    const int offset = O_OFFSET + (Cfg::SHARE_QO ? me.q_slots.slot * Q_BYTES : 0) + me.index * ROWS_BYTES;
    const unsigned s_rows = s_base + offset;
    if constexpr (STAYS && !Cfg::SHARE_QO) {
        if (me.thread == 0) wait_stores_read();  // of the piece before
    }
    // All warps are done with Q in these bytes, and the store of the piece before has read them.
    if constexpr (STAYS || Cfg::SHARE_QO) consumer_barrier(me.index);
    stage_output(me, rows, first_row, s_rows, acc);
    fence_async_proxy();
    consumer_barrier(me.index);  // the rows of all warps are there, and visible to the copy
    if (Cfg::PACKED && first_row + consumer_rows(rows.p) > rows.count()) {
        copy_rows_inside(rows, first_row, smem + offset, me.thread);
    } else if (me.thread == 0) {
        store_rows(maps.o, s_rows, place.first_query + rows.query(first_row), place.head, place.sequence);
        if constexpr (STAYS && Cfg::SHARE_QO) wait_stores_read();
    }
    if constexpr (STAYS && Cfg::SHARE_QO) {
        consumer_barrier(me.index);  // the store has read its bytes, which Q of the next piece takes
        if constexpr (Cfg::PACKED) {
            me.q_slots.release_read(me.lane);  // threads have read the last rows of a sequence
        } else {
            me.q_slots.release(me.lane);
        }
    }
}
//% endif

// The CTA's piece of work after the one in this round.
__device__ __forceinline__ Piece next_piece(Consumer& me, const AttentionParams& p, const Schedule& schedule, const Piece& piece,
                                            int round, const int4* next_pieces) {
    if constexpr (PIECES_SENT) {
        me.work_slots.wait_full();
        const int4 sent = next_pieces[me.work_slots.slot];
        __syncwarp();  // all lanes have read it
        me.work_slots.release(me.lane);
        me.work_slots.advance();
        return Piece::unpacked(sent);
    }
    if constexpr (STAYS) return schedule.next(p, piece.number, round);
    return {schedule.count(), piece.work};
}

__device__ __forceinline__ void consume(const AttentionParams& p, const TensorMaps& maps, int index, unsigned char* smem,
                                        const int4* next_pieces) {
    const unsigned s_base = static_cast<unsigned>(__cvta_generic_to_shared(smem));
    Consumer me(index, s_base + BARRIERS_OFFSET);
    const Schedule schedule(p);
    me.begin_turns();
    Piece piece = schedule.first(p);
    if constexpr (Cfg::PACK_GQA) {
        if (consumer_rows(p) < WARPGROUP_ROWS) {  // no copy fills the idle rows, which wgmma reads
#pragma unroll
            for (int slot = 0; slot < Cfg::Q_SLOTS; ++slot)
                clear_rows(s_base + slot * Q_BYTES + me.query_group * ROWS_BYTES, ROWS_PANEL_BYTES, consumer_rows(p), WARPGROUP_ROWS,
                           me.thread, WARPGROUP);
            fence_async_proxy();
            consumer_barrier(me.index);  // the zeros are visible to the wgmma's of all warps
        }
    }
    unsigned first_tile = 0;  // of this piece, among all tiles that the rings hold one after the other
#pragma unroll 1
    for (int round = 1; piece.number < schedule.count(); ++round) {
        const Work& work = piece.work;
        const Rows rows(p, work);
        if (Cfg::PACKED && work.tile * cta_rows(p) >= rows.count()) {  // the sequence is shorter than the longest
            piece = next_piece(me, p, schedule, piece, round, next_pieces);
            continue;
        }
        GroupTiles tiles(schedule.key_tiles(rows, work, piece.number), me.key_group);
        if constexpr (Cfg::SHARE_LAST_ROUND) tiles.count = __shfl_sync(0xffffffffu, tiles.count, 0);  // uniform, too
        const int first_row = me.first_row(p, work);
        const SeenTiles seen(rows, tiles, first_row);
        Queries q{s_base + me.q_slots.slot * Q_BYTES + me.query_group * ROWS_BYTES};
        me.q_slots.wait_full();
        if constexpr (Q_IN_REGISTERS) {
            q.load(me.warp, me.lane);
            if (negates_queries(p)) q.negate_registers();
        } else if (negates_queries(p)) {
            if (me.key_group == 0) negate_rows(smem + me.q_slots.slot * Q_BYTES + me.query_group * ROWS_BYTES, me.thread);
            fence_async_proxy();
            // Q is negated for all warps, whose rows one wgmma reads.
            if constexpr (Cfg::KEY_GROUPS == 1) consumer_barrier(me.index);
            if constexpr (Cfg::KEY_GROUPS > 1) consumers_barrier();
        }
        if constexpr (Cfg::KEY_GROUPS > 1) {
            me.k_slots.seek(first_tile + me.key_group);
            me.v_slots.seek(first_tile + me.key_group);
            first_tile += tiles.all.count;
        }
        Accumulators acc;
        if (seen.count() > 0) {
            pass_tiles(me, rows, tiles, 0, seen.first, s_base);
            attend(me, rows, tiles, seen, first_row, q, s_base, acc);
            pass_tiles(me, rows, tiles, seen.end, tiles.count, s_base);
        } else {
            if constexpr (Q_IN_REGISTERS && STAYS) me.q_slots.release_read(me.lane);
            if constexpr (!Q_IN_REGISTERS && !Cfg::SHARE_QO) me.q_slots.release(me.lane);
            pass_tiles(me, rows, tiles, 0, tiles.count, s_base);
        }
        if (Cfg::PINGPONG && tiles.one_fewer()) {  // the others count on this turn
            me.wait_turn();
            me.end_turn();
        }
//% if KEY_GROUPS > 1
        merge_and_store(me, rows, work.tile * Cfg::BLOCK_M, smem, acc);
//% else
        const SplitTile tile = schedule.split_tile(p, work, piece.number);
        if (SPLIT || tile.splits > 1) {
            end_split(rows, work, tile, acc, smem);
            if constexpr (Cfg::SHARE_QO) me.q_slots.release(me.lane);
        } else if constexpr (!SPLIT) {
            store_output(me, maps, rows, Place(p, work), first_row, smem, s_base, acc);
        }
//% endif
        me.q_slots.advance();
        piece = next_piece(me, p, schedule, piece, round, next_pieces);
    }
    if (me.thread == 0) wait_stores();  // shared memory must live until they are done
}
