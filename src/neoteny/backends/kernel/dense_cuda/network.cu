// Passes through the network for a batch: inputs, forward, loss, backward to the gradient of every unit.
//
// Features lie as (features, BATCH_PAD), units' inputs and their gradients as (BATCH, pitch): what comes in and its
// gradient share one place, Z_AT. Examples beyond BATCH and columns beyond OUTPUTS are zero and stay zero.

// Puts the inputs of update k in their places.
__device__ __forceinline__ void load(const Run &run, const Given &given, i64 stream, i64 k) {
    real *x = work<real>(run, X_AT[0]);
    const unsigned short *place = work<unsigned short>(run, PLACE_AT);
    const real *levels = work<real>(run, LEVELS_AT);
    int *examples = work<int>(run, EXAMPLE_AT);
    for (int i = run.thread; i < INPUTS[0] * BATCH_PAD; i += THREADS) x[i] = 0;
    for (int b = run.thread; b < BATCH; b += THREADS) examples[b] = given.order[stream * given.order_columns + k * BATCH + b];
    sync();
    const int team = max(WARP, THREADS / BATCH / WARP * WARP), teams = THREADS / team;
    if (run.thread / team < teams)
        for (int b = run.thread / team; b < BATCH; b += teams) {
            const int begin = given.entry[examples[b]], count = given.entry[examples[b] + 1] - begin;
            for (int e = run.thread % team; e < count; e += team) {
                int row = place[given.feature[begin + e]];
                check(row < INPUTS[0], "a feature is beyond the inputs");
                x[row * BATCH_PAD + b] = levels[given.level[begin + e]];
            }
        }
    sync();
}

// z = bias + x * weights for a batch. A thread holds VECTOR columns of BATCH_TILE examples; groups share the rows.
__device__ __forceinline__ void forward_layer(const Run &run, const real *p, int layer) {
    const int chunks = STRIDE[layer] / VECTOR, items = chunks * (BATCH_PAD / BATCH_TILE), width = min(items, THREADS);
    const int groups = min(THREADS / width, GROUPS), group = run.thread / width, inputs = INPUTS[layer], stride = STRIDE[layer];
    real *z = work<real>(run, Z_AT[layer]);
    for (int base = 0; base < items; base += width) {
        const int item = base + run.thread % width, column = item % chunks * VECTOR, b0 = item / chunks * BATCH_TILE;
        const bool mine = group < groups && item < items;
        real sum[TILE_ROOM][VECTOR] = {};
        if (mine) {
            const real *weights = p + WEIGHT[layer] + column, *x = work<real>(run, X_AT[layer]) + b0;
#pragma unroll 1
            for (int row = group; row < inputs; row += ROWS * groups) {
                Chunk w[ROWS];
                real here[ROWS][TILE_ROOM];
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const int i = row + r * groups;
                    bool wanted = i < inputs;
                    if (BATCH_TILE % VECTOR == 0) {
#pragma unroll
                        for (int t = 0; t < BATCH_TILE; t += VECTOR) {
                            Chunk some = wanted ? chunk(x + i * BATCH_PAD + t) : Chunk{};
#pragma unroll
                            for (int v = 0; v < VECTOR; v++) here[r][t + v] = some.v[v];
                        }
                    } else {
#pragma unroll
                        for (int t = 0; t < BATCH_TILE; t++) here[r][t] = wanted ? x[i * BATCH_PAD + t] : real(0);
                        if (BATCH_TILE == 1) wanted = wanted && here[r][0] != real(0);
                    }
                    w[r] = wanted ? chunk(weights + i64(i) * stride) : Chunk{};
                }
#pragma unroll
                for (int r = 0; r < ROWS; r++)
#pragma unroll
                    for (int t = 0; t < BATCH_TILE; t++)
#pragma unroll
                        for (int v = 0; v < VECTOR; v++) sum[t][v] += here[r][t] * w[r].v[v];
            }
        }
        for (int turn = 0; turn < groups; turn++) {
            if (mine && group == turn) {
                const Chunk bias = chunk(p + BIAS[layer] + column);
#pragma unroll
                for (int t = 0; t < BATCH_TILE; t++)
                    if (b0 + t < BATCH) {
                        real *to = z + (b0 + t) * pitch(layer) + column;
                        Chunk value = turn == 0 ? bias : chunk(to);
#pragma unroll
                        for (int v = 0; v < VECTOR; v++) value.v[v] += sum[t][v];
                        put(to, value.v);
                    }
            }
            sync();
        }
    }
}

// Layer norm, a warp per example; NORMED_AT and ROOT_AT keep what the way back needs.
__device__ __forceinline__ void normalize(const Run &run, const real *p, int layer) {
    const int n = OUTPUTS[layer];
    const real inverse = real(1.0 / n);
    for (int b = run.warp; b < BATCH; b += THREADS / WARP) {
        real *z = work<real>(run, Z_AT[layer]) + b * pitch(layer), *normed = work<real>(run, NORMED_AT[layer]) + b * pitch(layer);
        real total = 0, square = 0;
        for (int j = run.lane; j < n; j += WARP) total += z[j];
        const real mean = lane_sum<WARP>(total) * inverse;
        for (int j = run.lane; j < n; j += WARP) square += (z[j] - mean) * (z[j] - mean);
        const real scale = real(1) / root(lane_sum<WARP>(square) * inverse + real(NORM_EPS));
        for (int j = run.lane; j < n; j += WARP) {
            normed[j] = (z[j] - mean) * scale;
            z[j] = normed[j] * p[GAIN[layer] + j] + p[OFFSET[layer] + j];
        }
        if (run.lane == 0) work<real>(run, ROOT_AT[layer])[b] = scale;
    }
    sync();
}

__device__ __forceinline__ real sigmoid(real x) { return real(1) / (real(1) + exponential(-x)); }

// The activation of x and its derivative; CReLU has its own. The order is that of options.ACTIVATIONS and dense/terms.py.
__device__ __forceinline__ void respond(real x, real &h, real &slope) {
    if (ACTIVATION == 0) h = x <= real(0) ? real(0) : x, slope = x <= real(0) ? real(0) : real(1);  // NaN is not 0
    else if (ACTIVATION == 1 || ACTIVATION == LEAKY) {
        const real small = real(ACTIVATION == 1 ? 0.01 : SLOPE);
        h = x > real(0) ? x : small * x, slope = x > real(0) ? real(1) : small;
    } else if (ACTIVATION == 2) h = real(1) - real(2) / (exponential(real(2) * x) + real(1)), slope = real(1) - h * h;
    else if (ACTIVATION == 3) h = sigmoid(x), slope = h * (real(1) - h);
    else if (ACTIVATION == 4) {
        const real e = exponential(x > real(0) ? real(0) : x);
        h = x > real(0) ? x : e - real(1), slope = x > real(0) ? real(1) : e;
    } else if (ACTIVATION == 5) {
        const real s = sigmoid(x);
        h = x * s, slope = s + x * s * (real(1) - s);
    } else {
        const real s = sigmoid(real(SHARPNESS) * x), alpha = real(SLOPE);
        h = x * (alpha + (real(1) - alpha) * s);
        slope = alpha + (real(1) - alpha) * (s + real(SHARPNESS) * x * s * (real(1) - s));
    }
}

// The features of a hidden layer, and their derivatives.
__device__ __forceinline__ void activate(const Run &run, int layer) {
    const int n = OUTPUTS[layer];
    const real *z = work<real>(run, Z_AT[layer]);
    real *h = work<real>(run, X_AT[layer + 1]), *slope = work<real>(run, SLOPE_AT[layer + 1]);
    for (int item = run.thread; item < n * BATCH_PAD; item += THREADS) {
        const int j = item / BATCH_PAD, b = item % BATCH_PAD;
        if (b >= BATCH) continue;
        const real x = z[b * pitch(layer) + j];
        if (COPIES == 1) respond(x, h[item], slope[item]);
        else {
            const bool down = x <= real(0), up = x >= real(0);
            h[item] = down ? real(0) : x, h[n * BATCH_PAD + item] = up ? real(0) : -x;
            slope[item] = down ? real(0) : real(1), slope[n * BATCH_PAD + item] = up ? real(0) : real(-1);
        }
    }
    sync();
}

__device__ __forceinline__ void forward_all(const Run &run, const real *p) {
#pragma unroll 1
    for (int layer = 0; layer < LAYERS; layer++) {
        forward_layer(run, p, layer);
        if (layer == LAYERS - 1) break;
        if (NORM) normalize(run, p, layer);
        activate(run, layer);
    }
}

// The batch's mean loss and performance, for all threads; the gradient of the outputs. A warp per example.
__device__ __forceinline__ void losses(const Run &run, const Given &given, double &loss, double &performance) {
    const int last = LAYERS - 1, n = OUTPUTS[last];
    double *lost = work<double>(run, LOSS_AT), *right = lost + BATCH;
    const real share = real(1.0 / BATCH);
    for (int b = run.warp; b < BATCH; b += THREADS / WARP) {
        real *z = work<real>(run, Z_AT[last]) + b * pitch(last);
        const float target = given.target[work<int>(run, EXAMPLE_AT)[b]];
        if (LOSS == 0) {
            real total = 0;
            for (int j = run.lane; j < n; j += WARP) {
                const real off = z[j] - real(target);
                total += off * off;
                z[j] = (off + off) / real(n) * share;
            }
            total = lane_sum<WARP>(total) / real(n);
            if (run.lane == 0) lost[b] = right[b] = double(total);
        } else {
            const int label = int(target);
            check(label >= 0 && label < n, "a class is beyond the outputs");
            real top = -infinite(), total = 0;
            int best = n;
            for (int j = run.lane; j < n; j += WARP)
                if (z[j] > top || best == n) top = z[j], best = j;
#pragma unroll
            for (int offset = WARP / 2; offset > 0; offset /= 2) {
                const real other = __shfl_xor_sync(ALL, top, offset);
                const int place = __shfl_xor_sync(ALL, best, offset);
                if (other > top || (other == top && place < best)) top = other, best = place;
            }
            const real own = z[label];
            __syncwarp();  // the outputs give way to their gradient
            for (int j = run.lane; j < n; j += WARP) {
                z[j] = exponential(z[j] - top);
                total += z[j];
            }
            total = lane_sum<WARP>(total);
            for (int j = run.lane; j < n; j += WARP) z[j] = (z[j] / total - (j == label ? real(1) : real(0))) * share;
            if (run.lane == 0) {
                lost[b] = double(real(log(total))) + double(top) - double(own);
                right[b] = best == label ? 1.0 : 0.0;
            }
        }
    }
    sync();
    loss = performance = 0;
    for (int b = 0; b < BATCH; b++) loss += lost[b], performance += right[b];
    loss /= BATCH, performance /= BATCH;
    sync();
}

// From the gradient of the normalised units to that of what came in; those of gain and offset besides.
__device__ __forceinline__ void normalize_back(const Run &run, int layer) {
    const int n = OUTPUTS[layer], stride = STRIDE[layer];
    real *g = work<real>(run, Z_AT[layer]), *gradients = work<real>(run, VECTORS_AT[layer]);
    const real *normed = work<real>(run, NORMED_AT[layer]);
    for (int j = run.thread; j < n; j += THREADS) {
        real gain = 0, offset = 0;
        for (int b = 0; b < BATCH; b++) {
            const real x = g[b * pitch(layer) + j];
            gain += x * normed[b * pitch(layer) + j], offset += x;
        }
        gradients[stride + j] = gain, gradients[2 * stride + j] = offset;
    }
    sync();
    for (int b = run.warp; b < BATCH; b += THREADS / WARP) {
        real *own = g + b * pitch(layer), total = 0, dot = 0;
        const real *mine = normed + b * pitch(layer), scale = work<real>(run, ROOT_AT[layer])[b];
        for (int j = run.lane; j < n; j += WARP) {
            own[j] *= run.p[GAIN[layer] + j];
            total += own[j], dot += own[j] * mine[j];
        }
        const real mean = lane_sum<WARP>(total) * real(1.0 / n), along = lane_sum<WARP>(dot) * real(1.0 / n);
        for (int j = run.lane; j < n; j += WARP) own[j] = (own[j] - mean - mine[j] * along) * scale;
    }
    sync();
}

// The gradient of the units below a layer: LANES threads per unit, each with every LANES-th chunk of its row.
__device__ __forceinline__ void back_layer(const Run &run, int layer) {
    const int units = OUTPUTS[layer - 1], stride = STRIDE[layer], lane = run.thread % LANES, teams = THREADS / LANES;
    const real *g = work<real>(run, Z_AT[layer]), *slope = work<real>(run, SLOPE_AT[layer]);
    real *below = work<real>(run, Z_AT[layer - 1]);
    for (int base = 0; base < units; base += teams) {  // the same number of rounds for all threads: they exchange sums
        const int unit = base + run.thread / LANES, j = min(unit, units - 1);
#pragma unroll 1
        for (int b0 = 0; b0 < BATCH_PAD; b0 += BATCH_TILE) {
            real result[TILE_ROOM] = {};
#pragma unroll
            for (int c = 0; c < COPIES; c++) {
                const real *row = run.p + WEIGHT[layer] + i64(c * units + j) * stride;
                real sum[TILE_ROOM] = {};
                for (int column = lane * VECTOR; column < stride; column += LANES * VECTOR) {
                    const Chunk w = chunk(row + column);
#pragma unroll
                    for (int t = 0; t < BATCH_TILE; t++) {
                        if (b0 + t >= BATCH) continue;
                        const Chunk some = chunk(g + (b0 + t) * pitch(layer) + column);
#pragma unroll
                        for (int v = 0; v < VECTOR; v++) sum[t] += w.v[v] * some.v[v];
                    }
                }
#pragma unroll
                for (int t = 0; t < BATCH_TILE; t++)
                    result[t] += lane_sum<LANES>(sum[t]) * slope[(c * units + j) * BATCH_PAD + b0 + t];
            }
            if (unit < units && lane == 0) {
#pragma unroll
                for (int t = 0; t < BATCH_TILE; t++)
                    if (b0 + t < BATCH) below[(b0 + t) * pitch(layer - 1) + unit] = result[t];
            }
        }
    }
    sync();
}

// The gradients of all units' inputs in Z_AT, and those of all vectors in VECTORS_AT: bias, gain, offset.
__device__ __forceinline__ void backward_all(const Run &run) {
#pragma unroll 1
    for (int layer = LAYERS - 1; layer >= 0; layer--) {
        if (NORM && layer < LAYERS - 1) normalize_back(run, layer);
        if (layer > 0) back_layer(run, layer);
        const real *g = work<real>(run, Z_AT[layer]);
        for (int j = run.thread; j < OUTPUTS[layer]; j += THREADS) {
            real total = 0;
            for (int b = 0; b < BATCH; b++) total += g[b * pitch(layer) + j];
            work<real>(run, VECTORS_AT[layer])[j] = total;
        }
    }
    sync();
}
