// Passes over weight matrices: forward, and backward with the update and the sums of |w| in the same pass.
//
// With plain SGD only listed rows are visited: those whose input is not zero. For all others the products and the update
// are exactly zero.

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
                        w[u][d] = wanted ? *reinterpret_cast<const Chunk *>(from + chunk * VECTOR) : Chunk{};
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
        if constexpr (M::RINGED) sync_block();  // the ring lies where the sums over groups go
        over_groups<L>(run, tile, sum, [&](int column, real total) { out[column] = total; });
        if constexpr (M::TILES > 1) sync_block();
    }
}

// The optimizer on one number. `step_scale` and `root_scale` are Adam's corrections.
__device__ __forceinline__ real stepped(const Run &run, real w, real gradient, real &m, real &s, real step_scale, real root_scale) {
    if constexpr (SHRINK) gradient += run.shrink * w;
    if constexpr (OPTIMIZER == 0) return w - run.step_size * gradient;
    if constexpr (MOMENTUM) {
        m = run.momentum * m + gradient;
        return w - run.step_size * m;
    }
    m += real(1.0 - BETA1) * (gradient - m);
    s = real(BETA2) * s + real(1.0 - BETA2) * gradient * gradient;
    return w - step_scale * m / (root(s) * root_scale + real(EPS));
}

// Where the sum over a row goes: straight to the unit above, or to the exchange as one block's share (`receive` goes on).
template <int L> __device__ __forceinline__ void deliver(const Run &run, int at, int kind, int row, real x, bool more) {
    if constexpr (BLOCKS == 1 || Matrix<L>::BY_ROWS) {
        int unit = row - first_row<L>(run);
        real *to = workspace<real>(run, at) + unit;
        if (Matrix<L>::DIRECT && kind == 0) {
            real slope = workspace<real>(run, SLOPE_AT[L - 1])[unit];
            x = slope == real(0) ? real(0) : x * run.before * slope;
        }
        *to = more ? *to + x : x;
    } else {
        real *to = exchange<real>(run, SHARE_AT[L]) + (kind * BLOCKS + run.rank) * STRIDE[L - 1] + row;
        __stcg(to, more ? __ldcg(to) + x : x);
    }
}

// One pass over a matrix: the gradient of its inputs (BACK), the update (UPDATE), and the sums of |w| over rows (IN: for
// each own column) and columns (OUT: for each row). Listed rows change the sums, a pass over all rows takes them from the weights.
template <int L, bool BACK, bool UPDATE, bool IN, bool OUT>
__device__ __forceinline__ void sweep(const Run &run, real factor) {
    using M = Matrix<L>;
    constexpr bool LISTED = UPDATE && !DENSE;
    constexpr int ROWS = M::ROWS_BACK, STEP = M::GROUPS * ROWS;
    constexpr bool YOUNG = ADAM && REPLACES;
    const int lane = run.thread % M::LANES, group = run.thread / M::LANES;
    const int count = LISTED ? run.count[L] : own_rows<L>(run), first = LISTED ? 0 : first_row<L>(run);
    const row_index *rows = row_list<L>(run);
    const real *values = LISTED ? value_list<L>(run) : workspace<real>(run, X_AT[L]);
    const real *gradients = workspace<real>(run, G_AT[L]);
    real *weights = matrix<L>(run), *firsts = matrix<L, 1>(run), *seconds = matrix<L, 2>(run);
#pragma unroll 1
    for (int tile = 0; tile < M::TILES; tile++) {
        Chunk g[M::DEEP], step_scales[M::DEEP], root_scales[M::DEEP];
        real in[M::DEEP][VECTOR] = {};
#pragma unroll
        for (int d = 0; d < M::DEEP; d++) {
            int chunk = (tile * M::DEEP + d) * M::LANES + lane;
            g[d] = chunk < M::CHUNKS ? *reinterpret_cast<const Chunk *>(gradients + chunk * VECTOR) : Chunk{};
            if constexpr (YOUNG && UPDATE && L < LAST)
                if (chunk < M::CHUNKS) {
                    int unit = first_unit<L>(run) + chunk * VECTOR;
                    step_scales[d] = *reinterpret_cast<const Chunk *>(workspace<real>(run, STEP_SCALE_AT[L]) + unit);
                    root_scales[d] = *reinterpret_cast<const Chunk *>(workspace<real>(run, ROOT_SCALE_AT[L]) + unit);
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
                            w[u][d] = *reinterpret_cast<const Chunk *>(weights + at);
                            if constexpr (UPDATE && MOMENTS > 0) m[u][d] = *reinterpret_cast<const Chunk *>(firsts + at);
                            if constexpr (UPDATE && MOMENTS > 1) s[u][d] = *reinterpret_cast<const Chunk *>(seconds + at);
                        }
                    }
                }
            }
#pragma unroll
            for (int u = 0; u < ROWS; u++) {
                real own_step_scale = run.step_scale, own_root_scale = run.root_scale;
                if constexpr (YOUNG && UPDATE && L > 0)
                    if (row[u] >= 0) {
                        own_step_scale = workspace<real>(run, STEP_SCALE_AT[L - 1])[row[u]];
                        own_root_scale = workspace<real>(run, ROOT_SCALE_AT[L - 1])[row[u]];
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
                            real step_scale = own_step_scale, root_scale = own_root_scale;
                            if constexpr (YOUNG && L < LAST) {
                                step_scale = max(step_scale, step_scales[d].v[v]);
                                root_scale = max(root_scale, root_scales[d].v[v]);
                            }
                            now = stepped(run, old, x[u] * g[d].v[v], m[u][d].v[v], s[u][d].v[v], step_scale, root_scale);
                        }
                        if constexpr (OUT) size[u] += magnitude(now);
                        if constexpr (IN) in[d][v] += LISTED ? magnitude(now) - magnitude(old) : magnitude(now);
                        w[u][d].v[v] = now;
                    }
                    if (UPDATE && row[u] >= 0 && chunk < M::CHUNKS) {
                        *reinterpret_cast<Chunk *>(weights + at) = w[u][d];
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
            real *incoming = workspace<real>(run, IN_AT[L]);
            if constexpr (M::RINGED) sync_block();
            over_groups<L>(run, tile, in, [&](int column, real total) {
                incoming[column] = LISTED ? incoming[column] + total : total;
            });
            sync_block();
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
        for (int j = run.thread; j < OWN[L]; j += THREADS) workspace<real>(run, IN_AT[L])[j] *= scale;
    if constexpr (SUMS_OUT && L > 0)
        for (int j = run.thread; j < OWN[L - 1]; j += THREADS) workspace<real>(run, OUT_AT[L - 1])[j] *= scale;
    run.scale[L] = real(1), run.exact[L] = 1.0;
    sync_block();
}

// The optimizer on a vector of the workspace: a bias, or a norm's gain or shift; `at`: the vector and its moments.
template <int L> __device__ __forceinline__ void update_vector(const Run &run, int at, const real *gradients) {
    constexpr int N = OWN[L];
    real *p = workspace<real>(run, at), *m = p + N, *s = p + 2 * N, unused1 = 0, unused2 = 0;
    for (int j = run.thread; j < own_units<L>(run); j += THREADS) {
        real step_scale = run.step_scale, root_scale = run.root_scale;
        if constexpr (ADAM && REPLACES && L < LAST) {
            step_scale = workspace<real>(run, STEP_SCALE_AT[L])[first_unit<L>(run) + j];
            root_scale = workspace<real>(run, ROOT_SCALE_AT[L])[first_unit<L>(run) + j];
        }
        p[j] = stepped(run, p[j], gradients[j], MOMENTS > 0 ? m[j] : unused1, MOMENTS > 1 ? s[j] : unused2, step_scale, root_scale);
    }
}
