// Passes over weight matrices: forward, and backward with the update and the sums of |w| in the same pass.
//
// A row of a matrix is read by LANES threads, DEEP chunks of 16 bytes each; GROUPS rows are read side by side, and each
// group has several rows under way. With plain SGD only listed rows are visited: those whose input is not zero.

template <int L> struct Matrix {
    static constexpr bool BY_ROWS = BLOCKS > 1 && L == LAST;
    static constexpr bool INSIDE = MATRIX_AT[L] >= 0;
    static constexpr int COLUMNS = OWN[L];
    static constexpr int PITCH = INSIDE ? COLUMNS : STRIDE[L];
    static constexpr int CHUNKS = COLUMNS / VECTOR;
    static constexpr int LANES = CHUNKS > 16 ? 32 : CHUNKS > 8 ? 16 : CHUNKS > 4 ? 8 : CHUNKS > 2 ? 4 : CHUNKS;
    static constexpr int DEEP = CHUNKS <= LANES ? 1 : CHUNKS <= 2 * LANES ? 2 : CHUNKS <= 3 * LANES ? 3 : 4;
    static constexpr int TILE = LANES * DEEP * VECTOR;  // columns of one pass
    static constexpr int TILES = (COLUMNS + TILE - 1) / TILE;
    static constexpr bool DIRECT = (BLOCKS == 1 || BY_ROWS) && TILES == 1;  // one sum is the whole gradient of an input
    static constexpr int GROUPS = THREADS / LANES;
    static constexpr int MOST = BY_ROWS ? OWN[L > 0 ? L - 1 : 0] : INPUTS[L];
    static constexpr int EACH = (MOST + GROUPS - 1) / GROUPS;
    static constexpr int BUSY = MOST > 16 ? 32 : MOST > 8 ? 16 : MOST > 4 ? 8 : MOST > 2 ? 4 : MOST;
    static constexpr int SPAN = least(32, LANES * BUSY);  // lanes of a warp that ever have a row
    // Rows under way in each group: in registers, or STAGES batches of them on their way to a ring in shared memory.
    static constexpr bool RINGED = STAGES > 0 && !INSIDE && MOMENTS == 0;
    static constexpr int ROWS_FORWARD = RINGED ? 1 : least(EACH, most(1, IN_FLIGHT / DEEP));
    static constexpr int ROWS_BACK = RINGED ? 1 : least(EACH, most(1, IN_FLIGHT / DEEP / (1 + MOMENTS)));
};

__device__ __forceinline__ Chunk hload(const real *p) {
#if HINT & 1
    if constexpr (sizeof(real) == 4) { float4 f = __ldcs(reinterpret_cast<const float4 *>(p)); return *reinterpret_cast<Chunk *>(&f); }
#endif
    return *reinterpret_cast<const Chunk *>(p);
}
__device__ __forceinline__ void hstore(real *p, Chunk c) {
#if HINT & 2
    if constexpr (sizeof(real) == 4) { __stcs(reinterpret_cast<float4 *>(p), *reinterpret_cast<float4 *>(&c)); return; }
#endif
#if HINT & 4
    if constexpr (sizeof(real) == 4) { __stcg(reinterpret_cast<float4 *>(p), *reinterpret_cast<float4 *>(&c)); return; }
#endif
    *reinterpret_cast<Chunk *>(p) = c;
}

template <int L> __device__ __forceinline__ int own_rows(const Run &run) {
    if constexpr (Matrix<L>::BY_ROWS) return own_units<L - 1>(run);
    else return INPUTS[L];
}

template <int L> __device__ __forceinline__ int first_row(const Run &run) {
    if constexpr (Matrix<L>::BY_ROWS) return first_unit<L - 1>(run);
    else return 0;
}

// Element (0, first own column) of a matrix, or of one of its moments.
template <int L, int KIND = 0> __device__ __forceinline__ real *matrix(const Run &run) {
    if constexpr (Matrix<L>::INSIDE)
        return desk<real>(run, MATRIX_AT[L] + KIND * INPUTS[L] * OWN[L] * int(sizeof(real)));
    real *from = KIND == 0 ? run.p : KIND == 1 ? run.first : run.second;
    return from + WEIGHT[L] + first_unit<L>(run);
}

template <int L> __device__ __forceinline__ row_index *row_list(const Run &run) {
    return desk<row_index>(run, ROW_AT[L]) + (L == 0 ? run.parity * INPUTS[0] : 0);
}

template <int L> __device__ __forceinline__ real *value_list(const Run &run) {
    return desk<real>(run, VALUE_AT[L]) + (L == 0 ? run.parity * INPUTS[0] : 0);
}

// Adds up over the groups of the block what each thread has for the columns of a tile, and hands out the totals.
template <int L, class Function>
__device__ __forceinline__ void over_groups(const Run &run, int tile, real (&sum)[Matrix<L>::DEEP][VECTOR], Function take) {
    using M = Matrix<L>;
    int lane = run.thread % M::LANES, warp = run.thread / 32;
    real *partial = desk<real>(run, PARTIAL_AT);
    constexpr bool ALONE = WARPS == 1 && VECTOR == 1;  // every thread already has the totals of its own columns
#pragma unroll
    for (int d = 0; d < M::DEEP; d++) {
        Chunk chunk;
#pragma unroll
        for (int v = 0; v < VECTOR; v++) {
            real x = sum[d][v];
#pragma unroll
            for (int offset = M::LANES; offset < M::SPAN; offset *= 2) x += __shfl_xor_sync(ALL, x, offset);
            chunk.v[v] = x;
        }
        int column = (tile * M::DEEP + d) * M::LANES + lane;
        if (ALONE && run.thread < M::LANES && column < M::COLUMNS) take(column, chunk.v[0]);
        if (!ALONE && run.thread % 32 < M::LANES)
            *reinterpret_cast<Chunk *>(partial + warp * M::TILE + (d * M::LANES + lane) * VECTOR) = chunk;
    }
    if constexpr (ALONE) return;
    meet();
    int columns = min(M::TILE, M::COLUMNS - tile * M::TILE);
    for (int column = run.thread; column < columns; column += THREADS) {
        real total = partial[column];
#pragma unroll
        for (int w = 1; w < WARPS; w++) total += partial[w * M::TILE + column];
        take(tile * M::TILE + column, total);
    }
}

// Rows of a matrix on their way to this thread: `begin`, then `row` for one after the other.
template <int L> struct Ring {
    using M = Matrix<L>;
    const Run &run;
    const real *weights;
    int tile, stage = 0;

    __device__ __forceinline__ Ring(const Run &run, const real *weights, int tile) : run(run), weights(weights), tile(tile) {}

    __device__ __forceinline__ Chunk *slot(int stage, int d) const {
        return desk<Chunk>(run, PARTIAL_AT) + (stage * M::DEEP + d) * THREADS + run.thread;
    }

    // Asks for a row (-1: zeros); `any`: whether any thread of the block asks for one.
    __device__ __forceinline__ void ask(int row, bool any, int ahead) {
        int to = stage + ahead < STAGES ? stage + ahead : stage + ahead - STAGES;
        if (any)
#pragma unroll
            for (int d = 0; d < M::DEEP; d++) {
                int chunk = (tile * M::DEEP + d) * M::LANES + run.thread % M::LANES;
                bool wanted = row >= 0 && chunk < M::CHUNKS;
                copy_ahead(slot(to, d), weights + (wanted ? row * M::PITCH + chunk * VECTOR : 0), wanted);
            }
        end_batch();
    }

    __device__ __forceinline__ void take(Chunk (&w)[M::DEEP]) {
        copies_left<STAGES - 1>();
#pragma unroll
        for (int d = 0; d < M::DEEP; d++) w[d] = *slot(stage, d);
        stage = stage + 1 < STAGES ? stage + 1 : 0;
    }
};

// Products of the listed rows with their values, one for each own column, into `out`.
template <int L> __device__ __forceinline__ void forward(const Run &run, real *out) {
    using M = Matrix<L>;
    constexpr int ROWS = M::ROWS_FORWARD, STEP = M::GROUPS * ROWS;
    const int lane = run.thread % M::LANES, group = run.thread / M::LANES, count = run.count[L];
    const row_index *rows = row_list<L>(run);
    const real *values = value_list<L>(run), *weights = matrix<L>(run);
#pragma unroll 1
    for (int tile = 0; tile < M::TILES; tile++) {
        real sum[M::DEEP][VECTOR] = {};
        Ring<L> ring(run, weights, tile);
        auto ask = [&](int base, int ahead) {
            int k = base + group;
            ring.ask(k < count ? int(rows[k]) : -1, base < count, ahead);
        };
        if constexpr (M::RINGED)
            for (int ahead = 0; ahead < STAGES - 1; ahead++) ask(ahead * STEP, ahead);
#pragma unroll 1
        for (int base = 0; base < count; base += STEP) {
            Chunk w[ROWS][M::DEEP];
            real x[ROWS];
            if constexpr (M::RINGED) ask(base + (STAGES - 1) * STEP, STAGES - 1);
#pragma unroll
            for (int u = 0; u < ROWS; u++) {
                int k = base + u * M::GROUPS + group;
                x[u] = k < count ? values[k] : real(0);
                if constexpr (M::RINGED) ring.take(w[u]);
                else {
                    const real *from = weights + (k < count ? int(rows[k]) * M::PITCH : 0);
#pragma unroll
                    for (int d = 0; d < M::DEEP; d++) {
                        int chunk = (tile * M::DEEP + d) * M::LANES + lane;
                        bool wanted = k < count && chunk < M::CHUNKS;
                        w[u][d] = wanted ? hload(from + chunk * VECTOR) : Chunk{};
                    }
                }
            }
#pragma unroll
            for (int u = 0; u < ROWS; u++)
#pragma unroll
                for (int d = 0; d < M::DEEP; d++)
#pragma unroll
                    for (int v = 0; v < VECTOR; v++) sum[d][v] += x[u] * w[u][d].v[v];
        }
        if constexpr (M::RINGED) meet();  // the ring lies where the sums over groups go
        over_groups<L>(run, tile, sum, [&](int column, real total) { out[column] = total; });
        if constexpr (M::TILES > 1) meet();
    }
}

// The optimizer on one number. `length` and `width` are Adam's corrections.
__device__ __forceinline__ real stepped(const Run &run, real w, real gradient, real &m, real &s, real length, real width) {
    if constexpr (SHRINK) gradient += run.shrink * w;
    if constexpr (OPTIMIZER == 0) return w - run.step_size * gradient;
    if constexpr (MOMENTUM) {
        m = run.momentum * m + gradient;
        return w - run.step_size * m;
    }
    m += real(1.0 - BETA1) * (gradient - m);
    s = real(BETA2) * s + real(1.0 - BETA2) * gradient * gradient;
    return w - length * m / (root(s) * width + real(EPS));
}

// Where the sum over a row goes: straight to the unit above, or to the board as one block's share (`receive` goes on).
template <int L> __device__ __forceinline__ void deliver(const Run &run, int at, int kind, int row, real x, bool more) {
    if constexpr (BLOCKS == 1 || Matrix<L>::BY_ROWS) {
        int unit = row - first_row<L>(run);
        real *to = desk<real>(run, at) + unit;
        if (Matrix<L>::DIRECT && kind == 0) {
            real slope = desk<real>(run, SLOPE_AT[L - 1])[unit];
            x = slope == real(0) ? real(0) : x * run.before * slope;
        }
        *to = more ? *to + x : x;
    } else {
        real *to = board<real>(run, SHARE_AT[L]) + (kind * BLOCKS + run.rank) * STRIDE[L - 1] + row;
        __stcg(to, more ? __ldcg(to) + x : x);
    }
}

// One pass over a matrix: the gradient of its inputs (BACK), the update (UPDATE), and the sums of |w| over rows (IN: for
// each own column) and columns (OUT: for each row). Listed rows change the sums, a pass over all rows takes them anew.
template <int L, bool BACK, bool UPDATE, bool IN, bool OUT>
__device__ __forceinline__ void sweep(const Run &run, real factor) {
    using M = Matrix<L>;
    constexpr bool LISTED = UPDATE && !DENSE;
    constexpr int ROWS = M::ROWS_BACK, STEP = M::GROUPS * ROWS;
    constexpr bool YOUNG = ADAM && REPLACES;
    const int lane = run.thread % M::LANES, group = run.thread / M::LANES;
    const int count = LISTED ? run.count[L] : own_rows<L>(run), first = LISTED ? 0 : first_row<L>(run);
    const row_index *rows = row_list<L>(run);
    const real *values = LISTED ? value_list<L>(run) : desk<real>(run, X_AT[L]);
    const real *gradients = desk<real>(run, G_AT[L]);
    real *weights = matrix<L>(run), *firsts = matrix<L, 1>(run), *seconds = matrix<L, 2>(run);
#pragma unroll 1
    for (int tile = 0; tile < M::TILES; tile++) {
        Chunk g[M::DEEP], lengths[M::DEEP], widths[M::DEEP];
        real in[M::DEEP][VECTOR] = {};
#pragma unroll
        for (int d = 0; d < M::DEEP; d++) {
            int chunk = (tile * M::DEEP + d) * M::LANES + lane;
            g[d] = chunk < M::CHUNKS ? *reinterpret_cast<const Chunk *>(gradients + chunk * VECTOR) : Chunk{};
            if constexpr (YOUNG && UPDATE && L < LAST)
                if (chunk < M::CHUNKS) {
                    int unit = first_unit<L>(run) + chunk * VECTOR;
                    lengths[d] = *reinterpret_cast<const Chunk *>(desk<real>(run, LENGTH_AT[L]) + unit);
                    widths[d] = *reinterpret_cast<const Chunk *>(desk<real>(run, WIDTH_AT[L]) + unit);
                }
        }
        Ring<L> ring(run, weights, tile);
        auto ask = [&](int base, int ahead) {
            int k = base + group;
            ring.ask(k >= count ? -1 : LISTED ? int(rows[k]) : first + k, base < count, ahead);
        };
        if constexpr (M::RINGED)
            for (int ahead = 0; ahead < STAGES - 1; ahead++) ask(ahead * STEP, ahead);
#pragma unroll 1
        for (int base = 0; base < count; base += STEP) {
            if constexpr (M::RINGED) ask(base + (STAGES - 1) * STEP, STAGES - 1);
            Chunk w[ROWS][M::DEEP], m[ROWS][M::DEEP], s[ROWS][M::DEEP];
            real x[ROWS], total[ROWS] = {}, size[ROWS] = {};
            int row[ROWS];
#pragma unroll
            for (int u = 0; u < ROWS; u++) {
                int k = base + u * M::GROUPS + group;
                bool here = k < count;
                row[u] = !here ? -1 : LISTED ? int(rows[k]) : first + k;
                if constexpr (UPDATE) x[u] = here ? values[k] * (LISTED ? factor : real(1)) : real(0);
                if constexpr (M::RINGED) ring.take(w[u]);
                else {
#pragma unroll
                    for (int d = 0; d < M::DEEP; d++) {
                        int chunk = (tile * M::DEEP + d) * M::LANES + lane, at = row[u] * M::PITCH + chunk * VECTOR;
                        w[u][d] = m[u][d] = s[u][d] = Chunk{};
                        if (here && chunk < M::CHUNKS) {
                            w[u][d] = hload(weights + at);
                            if constexpr (UPDATE && MOMENTS > 0) m[u][d] = *reinterpret_cast<const Chunk *>(firsts + at);
                            if constexpr (UPDATE && MOMENTS > 1) s[u][d] = *reinterpret_cast<const Chunk *>(seconds + at);
                        }
                    }
                }
            }
#pragma unroll
            for (int u = 0; u < ROWS; u++) {
                real own_length = run.length, own_width = run.width;
                if constexpr (YOUNG && UPDATE && L > 0)
                    if (row[u] >= 0) {
                        own_length = desk<real>(run, LENGTH_AT[L - 1])[row[u]];
                        own_width = desk<real>(run, WIDTH_AT[L - 1])[row[u]];
                    }
#pragma unroll
                for (int d = 0; d < M::DEEP; d++) {
                    int chunk = (tile * M::DEEP + d) * M::LANES + lane, at = row[u] * M::PITCH + chunk * VECTOR;
#pragma unroll
                    for (int v = 0; v < VECTOR; v++) {
                        real old = w[u][d].v[v], now = old;
                        if constexpr (BACK) total[u] += old * g[d].v[v];
                        if constexpr (LISTED) now = old - x[u] * g[d].v[v];
                        else if constexpr (UPDATE) {
                            real length = own_length, width = own_width;
                            if constexpr (YOUNG && L < LAST) {
                                length = max(length, lengths[d].v[v]);
                                width = max(width, widths[d].v[v]);
                            }
                            now = stepped(run, old, x[u] * g[d].v[v], m[u][d].v[v], s[u][d].v[v], length, width);
                        }
                        if constexpr (OUT) size[u] += magnitude(now);
                        if constexpr (IN) in[d][v] += LISTED ? magnitude(now) - magnitude(old) : magnitude(now);
                        w[u][d].v[v] = now;
                    }
                    if (UPDATE && row[u] >= 0 && chunk < M::CHUNKS) {
                        hstore(weights + at, w[u][d]);
                        if constexpr (MOMENTS > 0) *reinterpret_cast<Chunk *>(firsts + at) = m[u][d];
                        if constexpr (MOMENTS > 1) *reinterpret_cast<Chunk *>(seconds + at) = s[u][d];
                    }
                }
            }
            if constexpr (BACK || OUT)
#pragma unroll
                for (int u = 0; u < ROWS; u++) {
                    if constexpr (BACK) total[u] = lane_sum<M::LANES>(total[u]);
                    if constexpr (OUT) size[u] = lane_sum<M::LANES>(size[u]);
                    if (lane == 0 && row[u] >= 0) {
                        if constexpr (BACK) deliver<L>(run, G_AT[L - 1], 0, row[u], total[u], tile > 0);
                        if constexpr (OUT) deliver<L>(run, OUT_AT[L - 1], 1, row[u], size[u], tile > 0);
                    }
                }
        }
        if constexpr (IN) {
            real *incoming = desk<real>(run, IN_AT[L]);
            if constexpr (M::RINGED) meet();
            over_groups<L>(run, tile, in, [&](int column, real total) {
                incoming[column] = LISTED ? incoming[column] + total : total;
            });
            meet();
        }
    }
}

// Multiplies a lazy scale into the weights; sums of |w| are of the weights as they are stored.
template <int L> __device__ __forceinline__ void fold(Run &run) {
    using M = Matrix<L>;
    real scale = run.scale[L], *weights = matrix<L>(run);
    int first = first_row<L>(run), rows = own_rows<L>(run);
    for (int e = run.thread; e < rows * M::COLUMNS; e += THREADS)
        weights[(first + e / M::COLUMNS) * M::PITCH + e % M::COLUMNS] *= scale;
    if constexpr (SUMS_IN && L < LAST)
        for (int j = run.thread; j < OWN[L]; j += THREADS) desk<real>(run, IN_AT[L])[j] *= scale;
    if constexpr (SUMS_OUT && L > 0)
        for (int j = run.thread; j < OWN[L - 1]; j += THREADS) desk<real>(run, OUT_AT[L - 1])[j] *= scale;
    run.scale[L] = real(1);
    meet();
}

// The optimizer on a vector of the desk: a bias, or a norm's gain or shift; `at`: the vector and its moments.
template <int L> __device__ __forceinline__ void update_vector(const Run &run, int at, const real *gradients) {
    constexpr int N = OWN[L];
    real *p = desk<real>(run, at), *m = p + N, *s = p + 2 * N, unused1 = 0, unused2 = 0;
    for (int j = run.thread; j < own_units<L>(run); j += THREADS) {
        real length = run.length, width = run.width;
        if constexpr (ADAM && REPLACES && L < LAST) {
            length = desk<real>(run, LENGTH_AT[L])[first_unit<L>(run) + j];
            width = desk<real>(run, WIDTH_AT[L])[first_unit<L>(run) + j];
        }
        p[j] = stepped(run, p[j], gradients[j], MOMENTS > 0 ? m[j] : unused1, MOMENTS > 1 ? s[j] : unused2, length, width);
    }
}
