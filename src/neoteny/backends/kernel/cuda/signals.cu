// What happens to the signal between two matrices: activation, dropout, normalisation, the list of what is not zero, the
// loss; and the noise of shrink and perturb.

__device__ __forceinline__ void activate(real z, real &h, real &slope) {
    if constexpr (ACTIVATION == 0) {
        bool inside = z <= real(0);  // not `z > 0`: a NaN must not become 0
        h = inside ? real(0) : z, slope = inside ? real(0) : real(1);
    } else if constexpr (ACTIVATION == 1) {
        slope = z > real(0) ? real(1) : real(0.01), h = slope * z;
    } else if constexpr (ACTIVATION == 2) {
        h = real(1) - real(2) / (exponential(real(2) * z) + real(1)), slope = real(1) - h * h;
    } else if constexpr (ACTIVATION == 3) {
        h = real(1) / (real(1) + exponential(-z)), slope = h * (real(1) - h);
    } else if constexpr (ACTIVATION == 4) {
        real e = exponential(z > real(0) ? real(0) : z);
        h = z > real(0) ? z : e - real(1), slope = z > real(0) ? real(1) : e;
    } else {
        real s = real(1) / (real(1) + exponential(-z));
        h = z * s, slope = s + z * s * (real(1) - s);
    }
}

// OnlineNorm: z becomes its normalised value; what the backward pass needs is kept.
template <int L> __device__ __forceinline__ void normalize(const Run &run, real *z) {
    constexpr int N = OWN[L];
    const real decay = real(FORWARD_DECAY), eps = real(NORM_EPS);
    real *y = workspace<real>(run, NORM_AT[L]), *roots = y + N, *mu = y + 4 * N, *var = y + 5 * N;
    const real *gain = workspace<real>(run, GAIN_AT[L]), *shift = workspace<real>(run, MOVE_AT[L]);
    real square = 0;
    for (int j = run.thread; j < own_units<L>(run); j += THREADS) {
        real off = z[j] - mu[j];
        roots[j] = real(1) / root(var[j] + eps);
        y[j] = off * roots[j];
        square += y[j] * y[j];
        var[j] = decay * var[j] + decay * (real(1) - decay) * off * off;
        mu[j] = decay * mu[j] + (real(1) - decay) * z[j];
    }
    real scaling = real(1) / root(team_sum(run, square, 0) / real(OUTPUTS[L]) + eps);
    for (int j = run.thread; j < own_units<L>(run); j += THREADS) z[j] = y[j] * scaling * gain[j] + shift[j];
    if (run.thread == 0) *workspace<real>(run, SCALING_AT[L]) = scaling;
}

// The gradient of the normalised value becomes that of what came in; those of gain and shift are kept for their update.
template <int L> __device__ __forceinline__ void normalize_back(const Run &run, real *g) {
    constexpr int N = OWN[L];
    real *y = workspace<real>(run, NORM_AT[L]), *roots = y + N, *for_gain = y + 2 * N, *for_shift = y + 3 * N;
    real *ey = y + 6 * N, *e1 = y + 7 * N;
    const real *gain = workspace<real>(run, GAIN_AT[L]);
    const real factor = *workspace<real>(run, SCALING_AT[L]), back = real(1.0 - BACKWARD_DECAY);
    real dot = 0;
    for (int j = run.thread; j < own_units<L>(run); j += THREADS) {
        for_shift[j] = g[j];
        for_gain[j] = g[j] * y[j] * factor;
        g[j] *= gain[j];
        dot += g[j] * y[j];
    }
    dot = team_sum(run, dot, 1) * factor * factor * factor / real(OUTPUTS[L]);
    for (int j = run.thread; j < own_units<L>(run); j += THREADS) {
        real steered = factor * g[j] - y[j] * dot - back * ey[j] * y[j];
        ey[j] += steered * y[j];
        steered = steered * roots[j] - back * e1[j];
        e1[j] += steered;
        g[j] = steered;
    }
}

// From the products in h to activations and slopes; a cluster's blocks tell each other theirs.
template <int L> __device__ __forceinline__ void respond(const Run &run) {
    real *h = workspace<real>(run, H_AT[L]), *slopes = workspace<real>(run, SLOPE_AT[L]), *g = workspace<real>(run, G_AT[L]);
    const real *bias = workspace<real>(run, BIAS_AT[L]);
    const int first = first_unit<L>(run);
    if constexpr (NORM) {
        for (int j = run.thread; j < own_units<L>(run); j += THREADS) h[j] = h[j] * run.scale[L] + bias[j];
        normalize<L>(run, h);
    }
    for (int j = run.thread; j < own_units<L>(run); j += THREADS) {
        real value, slope;
        activate(NORM ? h[j] : h[j] * run.scale[L] + bias[j], value, slope);
        if constexpr (DROPOUT > 0.0) {
            Words words = philox(u64(run.dropout_seed[L]), 0, run.now - 1, PURPOSE_DROPOUT, u32(first + j) / 4);
            int word = (first + j) % 4;
            u32 draw = word == 0 ? words.w[0] : word == 1 ? words.w[1] : word == 2 ? words.w[2] : words.w[3];
            bool keep = unit(draw) > DROPOUT;
            value = keep ? value * real(1.0 / (1.0 - DROPOUT)) : real(0);
            slope = keep ? slope * real(1.0 / (1.0 - DROPOUT)) : real(0);
        }
        h[j] = value, slopes[j] = slope, g[j] = real(0);
        if constexpr (BLOCKS > 1 && L + 1 < LAST) {
            real *exchanged = exchange<real>(run, SIGNAL_AT[L]) + first + j;
            __stcg(exchanged, value), __stcg(exchanged + STRIDE[L], slope);
        }
    }
    if constexpr (BLOCKS > 1 && L + 1 < LAST) sync_team();
    else if constexpr (OWN[L] > THREADS) sync_block();  // else `list` reads what the same thread wrote
}

// Lists the inputs of layer L that are not zero, or whose gradient is not; every warp looks at one stretch of them.
template <int L> __device__ __forceinline__ void list(Run &run) {
    constexpr bool EXCHANGED = BLOCKS > 1 && L < LAST;
    constexpr int MOST = EXCHANGED ? INPUTS[L] : OWN[L - 1];
    constexpr int STRETCH = (MOST + 32 * WARPS - 1) / (32 * WARPS) * 32;
    const int units = EXCHANGED ? INPUTS[L] : own_units<L - 1>(run), first = first_row<L>(run);
    const real *h = workspace<real>(run, H_AT[L - 1]), *slopes = workspace<real>(run, SLOPE_AT[L - 1]);
    const real *exchanged = exchange<real>(run, EXCHANGED ? SIGNAL_AT[L - 1] : 0);
    row_index *rows = row_list<L>(run);
    real *values = value_list<L>(run);
    const int warp = run.thread / 32, lane = run.thread % 32;
    int *counts = workspace<int>(run, COUNTS_AT);
    u32 masks[STRETCH / 32];
    real found[STRETCH / 32];
    int mine = 0;
#pragma unroll
    for (int part = 0; part < STRETCH / 32; part++) {
        int j = warp * STRETCH + part * 32 + lane;
        real slope = 0;
        found[part] = 0;
        if (j < units) {
            found[part] = EXCHANGED ? __ldcg(exchanged + j) : h[j];
            slope = EXCHANGED ? __ldcg(exchanged + STRIDE[L - 1] + j) : slopes[j];
            if constexpr (DENSE) workspace<real>(run, X_AT[L])[j] = found[part];
        }
        masks[part] = __ballot_sync(ALL, found[part] != real(0) || slope != real(0));
        mine += __popc(masks[part]);
    }
    int place = 0, total = mine;
    if constexpr (WARPS > 1) {
        if (lane == 0) counts[warp] = mine;
        sync_block();
        total = 0;
        for (int w = 0; w < WARPS; w++) {
            if (w == warp) place = total;
            total += counts[w];
        }
    }
#pragma unroll
    for (int part = 0; part < STRETCH / 32; part++) {
        if (masks[part] >> lane & 1) {
            int at = place + __popc(masks[part] & ((1u << lane) - 1));
            rows[at] = row_index(first + warp * STRETCH + part * 32 + lane), values[at] = found[part];
        }
        place += __popc(masks[part]);
    }
    run.count[L] = total;
    sync_block();
}

// The loss and its gradient, by the first warp for all. Returns the performance; `finite`: whether the loss is.
__device__ __forceinline__ real loss_and_check(const Run &run, float target, bool &finite) {
    constexpr int N = OUTPUTS[LAST];
    real *z = workspace<real>(run, Z_AT), *g = workspace<real>(run, G_AT[LAST]), *result = workspace<real>(run, RESULT_AT);
    const real *bias = workspace<real>(run, BIAS_AT[LAST]);
    if constexpr (BLOCKS > 1) {
        real *exchanged = exchange<real>(run, OUTPUTS_AT) + run.parity * BLOCKS * STRIDE[LAST];
        for (int j = run.thread; j < N; j += THREADS) __stcg(exchanged + run.rank * STRIDE[LAST] + j, z[j]);
        sync_team();
        for (int j = run.thread; j < N; j += THREADS) {
            z[j] = 0;
            for (int rank = 0; rank < BLOCKS; rank++) z[j] += __ldcg(exchanged + rank * STRIDE[LAST] + j);
        }
    }
    sync_block();
    if constexpr (LOSS == 0 && N == 1) {
        real off = z[0] * run.scale[LAST] + bias[0] - real(target);
        if (run.thread == 0) g[0] = off + off;
        sync_block();
        finite = off * off <= LARGEST;
        return off * off;
    }
    if (run.thread < 32) {
        real loss = 0, right = 0;
        if constexpr (LOSS == 0) {
            for (int j = run.thread; j < N; j += 32) {
                real off = z[j] * run.scale[LAST] + bias[j] - real(target);
                loss += off * off;
                g[j] = (off + off) / real(N);
            }
            loss = lane_sum<32>(loss) / real(N);
        } else {
            real top = -infinite(), total = 0;
            int best = N, label = int(target);
            for (int j = run.thread; j < N; j += 32) {
                z[j] = z[j] * run.scale[LAST] + bias[j];
                if (!(z[j] <= top)) top = z[j], best = j;
            }
            for (int offset = 16; offset > 0; offset /= 2) {
                real other = __shfl_xor_sync(ALL, top, offset);
                int j = __shfl_xor_sync(ALL, best, offset);
                if (!(other <= top) || (other == top && j < best)) top = other, best = j;
            }
            for (int j = run.thread; j < N; j += 32) total += g[j] = exponential(z[j] - top);
            total = lane_sum<32>(total);
            for (int j = run.thread; j < N; j += 32) g[j] = g[j] / total - (j == label ? real(1) : real(0));
            __syncwarp();
            loss = real(log(total)) + top - z[label], right = best == label ? real(1) : real(0);
        }
        if (run.thread == 0) result[0] = loss, result[1] = LOSS == 0 ? loss : right;
    }
    sync_block();
    finite = magnitude(result[0]) <= LARGEST;
    return result[1];
}

// Adds noise to one matrix; output j, input i of it draws in row j, column i. A thread takes four rows of a chunk at a
// time, and asks for the weights of the next before it computes the noise of these, so that memory answers meanwhile.
template <int L> __device__ __forceinline__ void perturb_matrix(const Run &run) {
    using M = Matrix<L>;
    real *weights = matrix<L>(run);
    const int columns = own_units<L>(run), first = first_row<L>(run), end = first + own_rows<L>(run);
    const int count = (own_rows<L>(run) + 3) / 4 * M::CHUNKS;
    const real noise_std = LAZY ? run.noise_std / run.scale[L] : run.noise_std;
    auto place = [&](int e, int k) {
        int row = min(first + e / M::CHUNKS * 4 + k, end - 1);
        return reinterpret_cast<Chunk *>(weights + row * M::PITCH + e % M::CHUNKS * VECTOR);
    };
    Chunk next[4];
    if (run.thread < count)
#pragma unroll
        for (int k = 0; k < 4; k++) next[k] = *place(run.thread, k);
#pragma unroll 1
    for (int e = run.thread; e < count; e += THREADS) {
        const int i = first + e / M::CHUNKS * 4, column = e % M::CHUNKS * VECTOR;
        Chunk w[4];
#pragma unroll
        for (int k = 0; k < 4; k++) w[k] = next[k];
        if (e + THREADS < count)
#pragma unroll
            for (int k = 0; k < 4; k++) next[k] = *place(e + THREADS, k);
#pragma unroll
        for (int v = 0; v < VECTOR; v++) {
            Words words = philox(run.seed, u32(first_unit<L>(run) + column + v), run.now, PURPOSE_NOISE[L], u32(i) / 4);
            real noise[4];
            box_muller(words.w[0], words.w[1], noise[0], noise[1]);
            box_muller(words.w[2], words.w[3], noise[2], noise[3]);
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (column + v < columns) w[k].v[v] += noise[k] * noise_std;
        }
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (i + k < end) *place(e, k) = w[k];
    }
}

template <int L> __device__ __forceinline__ void perturb_vector(const Run &run, int at, u32 purpose) {
    real *p = workspace<real>(run, at);
    for (int block = run.thread; block < (own_units<L>(run) + 3) / 4; block += THREADS) {
        Words words = philox(run.seed, 0, run.now, purpose, u32(first_unit<L>(run)) / 4 + block);
        real noise[4];
        box_muller(words.w[0], words.w[1], noise[0], noise[1]);
        box_muller(words.w[2], words.w[3], noise[2], noise[3]);
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (block * 4 + k < own_units<L>(run)) p[block * 4 + k] += noise[k] * run.noise_std;
    }
}
