// Passes over all weights of a run: loss terms, the update, noise, bounds, slow weights, in one pass where they follow
// each other. The gradient of a weight is summed over the batch where it is needed and never stored.

// One number of the parameters with its state, on its way through a pass.
struct Element {
    real p, gradient, first, second, anchor, slow;
    real scale1, scale2;  // Adam's corrections
    real shake, noise;    // UPGD's noise, and that after the update
    real length;          // what UPGD multiplies utilities by
};

// Whether something happens between two places of ACTS.
__device__ __forceinline__ bool has(int from, int to, int kind) {
    bool found = false;
#pragma unroll
    for (int a = 0; a < ACT_COUNT; a++) found = found || (a >= from && a < to && ACTS[a] == kind);
    return found;
}

__device__ __forceinline__ void descend(const Run &run, Element &e) {
    if (OPTIMIZER == SGD) e.p -= run.step_size * e.gradient;
    else if (OPTIMIZER == MOMENTUM) {
        e.first = run.momentum * e.first + e.gradient;
        e.p -= run.step_size * e.first;
    } else if (OPTIMIZER == ADAM) {
        e.p *= run.keep;
        e.first += real(1.0 - BETA1) * (e.gradient - e.first);
        e.second = real(BETA2) * e.second + real(1.0 - BETA2) * e.gradient * e.gradient;
        e.p -= e.scale1 * run.step_size * e.first / (root(e.second) * e.scale2 + real(EPS));
    } else {
        const real changeable = real(1) / (real(1) + exponential(e.first * e.scale1 * e.length));
        const real direction = PROTECT ? (e.gradient + e.shake) * changeable : e.gradient + e.shake * changeable;
        e.p = e.p * run.keep - direction * (run.step_size * real(FACTOR));
    }
}

__device__ __forceinline__ void act(const Run &run, int from, int to, bool bounded, real most, Element &e) {
#pragma unroll
    for (int a = 0; a < ACT_COUNT; a++) {
        if (a < from || a >= to) continue;
        if (ACTS[a] == UPDATE) descend(run, e);
        else if (ACTS[a] == NOISE) e.p += e.noise;
        else if (ACTS[a] == CLIP) {
            if (bounded) e.p = e.p < -most ? -most : e.p > most ? most : e.p;  // NaN stays
        } else {
            e.slow += run.share * (e.p - e.slow);
            if (run.copies) e.p = e.slow;
        }
    }
}

// The gradient of the loss alone for a tile. Rows beyond the matrix repeat its last one.
__device__ __forceinline__ void gradient_of(const Run &run, int layer, int row, int column, real (&sum)[ROWS][VECTOR]) {
    const real *x[ROWS], *g = work<real>(run, Z_AT[layer]) + column;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        x[r] = work<real>(run, X_AT[layer]) + min(row + r, INPUTS[layer] - 1) * BATCH_PAD;
#pragma unroll
        for (int v = 0; v < VECTOR; v++) sum[r][v] = 0;
    }
    if (BATCH_TILE % VECTOR == 0) {
#pragma unroll 2
        for (int b = 0; b < BATCH_PAD; b += VECTOR) {
            Chunk here[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) here[r] = chunk(x[r] + b);
#pragma unroll
            for (int u = 0; u < VECTOR; u++) {
                const Chunk some = chunk(g + (b + u) * pitch(layer));
#pragma unroll
                for (int r = 0; r < ROWS; r++)
#pragma unroll
                    for (int v = 0; v < VECTOR; v++) sum[r][v] += here[r].v[u] * some.v[v];
            }
        }
    } else
        for (int b = 0; b < BATCH; b++) {
            const Chunk some = chunk(g + b * pitch(layer));
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int v = 0; v < VECTOR; v++) sum[r][v] += x[r][b] * some.v[v];
        }
}

template <class To> __device__ __forceinline__ void read_rows(const real *from, int rows, int stride, To to) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const Chunk found = r < rows ? chunk(from + i64(r) * stride) : Chunk{};
#pragma unroll
        for (int v = 0; v < VECTOR; v++) to(r, v) = found.v[v];
    }
}

template <class From> __device__ __forceinline__ void write_rows(real *to, int rows, int stride, From from) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        real given[VECTOR];
#pragma unroll
        for (int v = 0; v < VECTOR; v++) given[v] = from(r, v);
        if (r < rows) put(to + i64(r) * stride, given);
    }
}

// Normal numbers times `std` for a tile: row j, column i of the draws belong to a weight (i, j).
template <class To> __device__ __forceinline__ void draw_noise(const Run &run, u32 purpose, real std, int layer, int row, int column, To to) {
#pragma unroll
    for (int v = 0; v < VECTOR; v++) {
        real some[4] = {};
        if (column + v < OUTPUTS[layer]) {
            const Words words = philox(run.seed, u32(column + v), run.now, purpose, u32(row / 4));
            box_muller(words.w[0], words.w[1], some[0], some[1]);
            box_muller(words.w[2], words.w[3], some[2], some[3]);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) to(r, v) = some[r] * std;
    }
}

// A normal number times `std` for number j of a vector: row 0 of its draws.
__device__ __forceinline__ real vector_noise(const Run &run, u32 purpose, real std, int j) {
    const Words words = philox(run.seed, 0u, run.now, purpose, u32(j / 4));
    const int pair = j % 4 / 2 * 2;
    real some, other;
    box_muller(words.w[pair], words.w[pair + 1], some, other);
    return (j % 2 == 0 ? some : other) * std;
}

__device__ __forceinline__ int vectors(int layer) { return NORM && layer < LAYERS - 1 ? 3 : 1; }  // bias, gain, offset

// Adam's corrections for unit j of a layer: those of its own age, where units may be younger than the run.
__device__ __forceinline__ real unit_scale(const Run &run, int at, real old, int layer, int j) {
    if (!REWRITES || layer < 0 || layer >= LAYERS - 1) return old;
    return j < OUTPUTS[layer] ? work<real>(run, at)[UNIT[layer] + j] : old;
}

// One update later: 1 / (1 - beta1^age) and 1 / sqrt(1 - beta2^age), of every unit and of what was never reset (the last).
__device__ __forceinline__ void advance_powers(Run &run) {
    double *power1 = work<double>(run, POWER1_AT), *power2 = work<double>(run, POWER2_AT);
    real *scale1 = work<real>(run, SCALE1_AT), *scale2 = work<real>(run, SCALE2_AT);
    for (int u = run.thread; u <= UNITS; u += THREADS) {
        if (!REWRITES && u < UNITS) continue;
        power1[u] *= BETA1, power2[u] *= BETA2;
        scale1[u] = real(1.0 / (1.0 - power1[u])), scale2[u] = real(1.0 / sqrt(1.0 - power2[u]));
    }
    sync();
    run.old1 = scale1[UNITS], run.old2 = scale2[UNITS];
}

// Adam's corrections for a tile: those of the younger of the two units that a weight joins.
template <class To> __device__ __forceinline__ void read_scales(const Run &run, int at, real old, int layer, int row, int column, To to) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const real of_row = !REWRITES || layer == 0 ? old : unit_scale(run, at, old, layer - 1, (row + r) % OUTPUTS[layer - 1]);
#pragma unroll
        for (int v = 0; v < VECTOR; v++) {
            const real of_column = unit_scale(run, at, old, layer, column + v);
            to(r, v) = of_row > of_column ? of_row : of_column;
        }
    }
}

// What loss terms add to the gradient of a tile, or of one number.
__device__ __forceinline__ void add_terms(const Run &run, bool pulled, Element &e) {
    e.gradient += run.l2 * e.p;
    if (ANCHORED && pulled) e.gradient += run.pull * (e.p - e.anchor);
}

// The parameters of a tile and their gradient with all terms; the rest of its elements is zero.
__device__ __forceinline__ void read_tile(const Run &run, int layer, int row, int column, bool update, Element (&e)[ROWS][VECTOR]) {
    const int rows = INPUTS[layer] - row, stride = STRIDE[layer];
    const i64 at = WEIGHT[layer] + i64(row) * stride + column;
    read_rows(run.p + at, rows, stride, [&](int r, int v) -> real & { return e[r][v].p; });
    if (!update) return;
    if (MOMENTS > 0) read_rows(run.first + at, rows, stride, [&](int r, int v) -> real & { return e[r][v].first; });
    if (MOMENTS > 1) read_rows(run.second + at, rows, stride, [&](int r, int v) -> real & { return e[r][v].second; });
    if (ANCHORED) read_rows(run.anchor + at, rows, stride, [&](int r, int v) -> real & { return e[r][v].anchor; });
    if (OPTIMIZER >= ADAM) read_scales(run, SCALE1_AT, run.old1, layer, row, column, [&](int r, int v) -> real & { return e[r][v].scale1; });
    if (OPTIMIZER == ADAM) read_scales(run, SCALE2_AT, run.old2, layer, row, column, [&](int r, int v) -> real & { return e[r][v].scale2; });
    real gradient[ROWS][VECTOR];
    gradient_of(run, layer, row, column, gradient);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int v = 0; v < VECTOR; v++) {
            e[r][v].gradient = gradient[r][v];
            add_terms(run, true, e[r][v]);
        }
}

// A number of a vector (part 0 is the bias, then gain and offset) and its gradient with all terms.
__device__ __forceinline__ Element read_number(const Run &run, int layer, int part, int j, bool update) {
    const int at = BIAS[layer] + part * STRIDE[layer] + j;
    Element e = {};
    e.p = run.p[at];
    if (!update) return e;
    if (MOMENTS > 0) e.first = run.first[at];
    if (MOMENTS > 1) e.second = run.second[at];
    if (ANCHORED) e.anchor = run.anchor[at];
    if (OPTIMIZER >= ADAM) e.scale1 = unit_scale(run, SCALE1_AT, run.old1, layer, j);
    if (OPTIMIZER == ADAM) e.scale2 = unit_scale(run, SCALE2_AT, run.old2, layer, j);
    e.gradient = work<real>(run, VECTORS_AT[layer])[part * STRIDE[layer] + j];
    add_terms(run, part == 0, e);
    return e;
}

// One pass for what happens from one place of ACTS to another, none of which looks at more than one number.
__device__ __forceinline__ void pass_weights(const Run &run, const Given &given, int from, int to) {
    const bool update = has(from, to, UPDATE), slows = has(from, to, SLOW), shakes = update && OPTIMIZER == UPGD && run.step_noise_std > real(0);
    const bool noise = has(from, to, NOISE) && run.noise_std > real(0);
#pragma unroll 1
    for (int layer = 0; layer < LAYERS; layer++) {
        const bool bounded = !(SPARE_OUTPUT && layer == LAYERS - 1);
        const real most = real(run.clip / sqrt(double(INPUTS[layer])));
        const int stride = STRIDE[layer];
        over_tiles(run, layer, [&](int row, int column) {
            Element e[ROWS][VECTOR] = {};
            const int rows = INPUTS[layer] - row;
            const i64 at = WEIGHT[layer] + i64(row) * stride + column;
            if (slows) read_rows(run.slow + at, rows, stride, [&](int r, int v) -> real & { return e[r][v].slow; });
            read_tile(run, layer, row, column, update, e);
            if (update && OPTIMIZER == UPGD) {
                const real *length = work<real>(run, LENGTH_AT[layer]) + column;
#pragma unroll
                for (int r = 0; r < ROWS; r++)
#pragma unroll
                    for (int v = 0; v < VECTOR; v++) e[r][v].length = SCALE == LOCAL ? length[v] : run.inverse;
            }
            if (COUNTS_WEIGHTS && update) {
#pragma unroll
                for (int r = 0; r < ROWS; r++)
#pragma unroll
                    for (int v = 0; v < VECTOR; v++)
                        if (r < rows) {
                            const i64 age = min(i64(run.now) - run.drawn[at + i64(r) * stride + v], given.ages - 1);
                            e[r][v].scale1 = given.by_age1[age], e[r][v].scale2 = given.by_age2[age];
                        }
            }
            if (shakes) draw_noise(run, PURPOSE[8 * LAYERS + layer], run.step_noise_std, layer, row, column, [&](int r, int v) -> real & { return e[r][v].shake; });
            if (noise) draw_noise(run, PURPOSE[4 * LAYERS + layer], run.noise_std, layer, row, column, [&](int r, int v) -> real & { return e[r][v].noise; });
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int v = 0; v < VECTOR; v++) act(run, from, to, bounded, most, e[r][v]);
            write_rows(run.p + at, rows, stride, [&](int r, int v) { return e[r][v].p; });
            if (update && MOMENTS > 0 && OPTIMIZER != UPGD) write_rows(run.first + at, rows, stride, [&](int r, int v) { return e[r][v].first; });
            if (update && MOMENTS > 1) write_rows(run.second + at, rows, stride, [&](int r, int v) { return e[r][v].second; });
            if (slows) write_rows(run.slow + at, rows, stride, [&](int r, int v) { return e[r][v].slow; });
        });
        for (int part = 0; part < vectors(layer); part++)
            for (int j = run.thread; j < OUTPUTS[layer]; j += THREADS) {
                const int at = BIAS[layer] + part * stride + j;
                Element e = read_number(run, layer, part, j, update);
                if (slows) e.slow = run.slow[at];
                if (update && OPTIMIZER == UPGD) e.length = SCALE == LOCAL ? work<real>(run, LENGTH_AT[layer])[stride + part] : run.inverse;
                if (shakes) e.shake = vector_noise(run, PURPOSE[(9 + part) * LAYERS + layer], run.step_noise_std, j);
                if (noise) e.noise = vector_noise(run, PURPOSE[(5 + part) * LAYERS + layer], run.noise_std, j);
                act(run, from, to, bounded && part == 0, most, e);
                run.p[at] = e.p;
                if (update && MOMENTS > 0 && OPTIMIZER != UPGD) run.first[at] = e.first;
                if (update && MOMENTS > 1) run.second[at] = e.second;
                if (slows) run.slow[at] = e.slow;
            }
    }
    sync();
}

// UPGD's running utilities, and what they are divided by: the largest of all, or the length of each unit's own.
__device__ __forceinline__ void measure_step(Run &run) {
    real largest = 0;
#pragma unroll 1
    for (int layer = 0; layer < LAYERS; layer++) {
        const int stride = STRIDE[layer];
        real *length = work<real>(run, LENGTH_AT[layer]), square[VECTOR] = {};
        over_tiles(
            run, layer,
            [&](int row, int column) {
                Element e[ROWS][VECTOR] = {};
                const int rows = INPUTS[layer] - row;
                read_tile(run, layer, row, column, true, e);
#pragma unroll
                for (int r = 0; r < ROWS; r++)
#pragma unroll
                    for (int v = 0; v < VECTOR; v++) {
                        Element &own = e[r][v];
                        own.first += real(1.0 - BETA1) * (-own.gradient * own.p - own.first);
                        const real utility = SCALE == RAW ? own.first : own.first * own.scale1;
                        if (r < rows) largest = utility > largest ? utility : largest, square[v] += utility * utility;
                    }
                write_rows(run.first + WEIGHT[layer] + i64(row) * stride + column, rows, stride, [&](int r, int v) { return e[r][v].first; });
            },
            [&](int column, int group, int groups) {
                if (SCALE == LOCAL) take_turns(length, square, column, group, groups);
            });
        for (int part = 0; part < vectors(layer); part++) {
            real own = 0;
            for (int j = run.thread; j < OUTPUTS[layer]; j += THREADS) {
                Element e = read_number(run, layer, part, j, true);
                e.first += real(1.0 - BETA1) * (-e.gradient * e.p - e.first);
                run.first[BIAS[layer] + part * stride + j] = e.first;
                const real utility = SCALE == RAW ? e.first : e.first * e.scale1;
                largest = utility > largest ? utility : largest, own += utility * utility;
            }
            if (SCALE == LOCAL) {
                own = block_sum(run, own);
                if (run.thread == 0) length[stride + part] = own;
            }
        }
        if (SCALE == LOCAL) {
            sync();
            for (int j = run.thread; j < stride + vectors(layer); j += THREADS) length[j] = real(1) / max(root(length[j]), TINY);
        }
    }
    if (SCALE != LOCAL) run.inverse = real(1) / max(block_max(run, largest), TINY);
    sync();
}
