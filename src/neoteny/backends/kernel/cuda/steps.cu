// One update of a run in its parts, each a recursion over the layers, and what a run takes along and brings back.

template <int L> __device__ __forceinline__ void forward_from(Run &run) {
    if constexpr (L < LAST) {
        forward<L>(run, workspace<real>(run, H_AT[L]));
        respond<L>(run);
        list<L + 1>(run);
        forward_from<L + 1>(run);
    } else forward<L>(run, workspace<real>(run, Z_AT));
}

// The sums of |w| over a unit's outgoing weights, from the shares of all blocks; `all`: also of units that were not listed.
template <int L> __device__ __forceinline__ void gather(const Run &run, bool sizes, bool all) {
    if constexpr (BLOCKS > 1 && L + 1 < LAST) {
        const real *share = exchange<real>(run, SHARE_AT[L + 1]) + first_unit<L>(run);
        const real *h = workspace<real>(run, H_AT[L]), *slopes = workspace<real>(run, SLOPE_AT[L]);
        real *to = workspace<real>(run, sizes ? OUT_AT[L] : G_AT[L]);
        for (int j = run.thread; j < own_units<L>(run); j += THREADS) {
            if (!all && h[j] == real(0) && slopes[j] == real(0)) continue;
            real total = 0;
            for (int rank = 0; rank < BLOCKS; rank++) total += __ldcg(share + ((sizes ? BLOCKS : 0) + rank) * STRIDE[L] + j);
            to[j] = total;
        }
    }
}

// Completes the gradient of a hidden layer's units.
template <int L> __device__ __forceinline__ void receive(const Run &run, bool sizes) {
    using M = Matrix<L + 1>;
    real *g = workspace<real>(run, G_AT[L]);
    if constexpr (!M::DIRECT) {
        const real *slopes = workspace<real>(run, SLOPE_AT[L]);
        gather<L>(run, false, DENSE);
        if (sizes) gather<L>(run, true, DENSE);
        for (int j = run.thread; j < own_units<L>(run); j += THREADS)
            g[j] = slopes[j] == real(0) ? real(0) : g[j] * run.before * slopes[j];
    }
    if constexpr (NORM) normalize_back<L>(run, g);
    if constexpr (!M::DIRECT || NORM) sync_block();
}

template <int L> __device__ __forceinline__ void back_from(Run &run) {
    constexpr bool IN = SUMS_IN && !SUMS_LATE && L < LAST, OUT = SUMS_OUT && !SUMS_LATE && L > 0;
    real factor = run.step_size;
    if constexpr (LAZY)
        if (run.exact[L] * run.keep < FOLD) fold<L>(run);
    run.before = run.scale[L];
    if constexpr (LAZY) {
        run.exact[L] *= run.keep;
        run.scale[L] = real(run.exact[L]);
        factor /= run.scale[L];
    }
    sweep<L, (L > 0), true, IN, OUT>(run, factor);
    update_vector<L>(run, BIAS_AT[L], workspace<real>(run, G_AT[L]));
    if constexpr (NORM && L < LAST) {
        update_vector<L>(run, GAIN_AT[L], workspace<real>(run, NORM_AT[L]) + 2 * OWN[L]);
        update_vector<L>(run, MOVE_AT[L], workspace<real>(run, NORM_AT[L]) + 3 * OWN[L]);
    }
    if constexpr (L > 0) {
        if constexpr (BLOCKS > 1 && !Matrix<L>::BY_ROWS) sync_team();
        else if constexpr (!IN) sync_block();
        receive<L - 1>(run, OUT);
        back_from<L - 1>(run);
    }
}

// The sums of |w| of all matrices, from their weights.
template <int L> __device__ __forceinline__ void sum_from(const Run &run) {
    if constexpr (L < LAYERS) {
        sweep<L, false, false, SUMS_IN && L < LAST, SUMS_OUT && (L > 0)>(run, real(0));
        sync_team();
        if constexpr (SUMS_OUT && L > 0) gather<L - 1>(run, true, true);
        sum_from<L + 1>(run);
    }
}

template <int L> __device__ __forceinline__ void perturb_from(const Run &run) {
    if constexpr (L < LAYERS) {
        perturb_matrix<L>(run);
        perturb_vector<L>(run, BIAS_AT[L], PURPOSE_BIAS[L]);
        if constexpr (NORM && L < LAST) {
            perturb_vector<L>(run, GAIN_AT[L], PURPOSE_GAIN[L]);
            perturb_vector<L>(run, MOVE_AT[L], PURPOSE_MOVE[L]);
        }
        perturb_from<L + 1>(run);
    }
}

template <int L> __device__ __forceinline__ void measure_from(const Run &run) {
    if constexpr (L < LAST) {
        measure<L>(run);
        measure_from<L + 1>(run);
    }
}

// The width of the narrowest hidden layer.
__host__ __device__ constexpr int narrowest() {
    int width = OUTPUTS[0];
    for (int layer = 1; layer < HIDDEN; layer++) width = least(width, OUTPUTS[layer]);
    return width;
}

// Replaces what is due, layer by layer: no choice depends on another layer's replacements.
template <int L> __device__ __forceinline__ void replace_from(Run &run, double *replaced) {
    if constexpr (L < LAST) {
        int due = tick<L>(run);
        if (due > 0) {
            choose<L>(run, due);
            release<L>(run, due);
            renew<L>(run, due);
            run.released += due;
            if (run.thread == 0 && run.rank == 0) replaced[L] += due;
        }
        replace_from<L + 1>(run, replaced);
    }
}

// Adam's corrections one update later: 1 / (1 - beta^age) for what was never reset and, with replacement, for each unit.
template <int L> __device__ __forceinline__ void age_from(Run &run) {
    if constexpr (ADAM && L == 0) {
        run.power1 *= BETA1, run.power2 *= BETA2;
        run.step_scale = run.step_size / real(1.0 - run.power1), run.root_scale = real(1) / root(real(1.0 - run.power2));
    }
    if constexpr (ADAM && REPLACES && L < LAST) {
        double *power1 = workspace<double>(run, AGE_AT[L]), *power2 = power1 + STRIDE[L];
        for (int j = run.thread; j < STRIDE[L]; j += THREADS) {
            power1[j] *= BETA1, power2[j] *= BETA2;
            workspace<real>(run, STEP_SCALE_AT[L])[j] = run.step_size / real(1.0 - power1[j]);
            workspace<real>(run, ROOT_SCALE_AT[L])[j] = real(1) / root(real(1.0 - power2[j]));
        }
        age_from<L + 1>(run);
    }
}

// What a kernel is given; see pack.Packed and examples.Examples. `results`: for each run the total, the update at which
// it broke, and for each hidden layer what is due and how many units were replaced.
struct Given {
    int runs, step, start, stop, task_steps;
    real *parameters, *first, *second, *mean, *utility, *decay_power;
    i64 *born;
    real *buffers;
    const i64 *dropout_seed, *seeds;
    const double *rates;
    double *results;
    const int *entry;
    const unsigned short *feature;
    const unsigned char *level;
    const float *values, *target;
    const int *order;
    const unsigned short *place;
    const int *stream;
    unsigned char *workspaces, *exchanges;
};

// Copies one layer's vectors and matrices between the packed arrays and the workspace.
template <int L, bool STORE> __device__ __forceinline__ void copy_from(const Run &run, const Given &given, int number) {
    if constexpr (L < LAYERS) {
        const int first = first_unit<L>(run), units = own_units<L>(run);
        auto copy = [&](real *packed, real *working) {
            for (int j = run.thread; j < OWN[L]; j += THREADS) {
                if (STORE && j < units) packed[first + j] = working[j];
                if (!STORE) working[j] = j < units ? packed[first + j] : real(0);
            }
        };
        if (!STORE || L < LAST || run.rank == 0)
            for (int kind = 0; kind <= MOMENTS; kind++) {
                real *packed = kind == 0 ? run.p : kind == 1 ? run.first : run.second;
                copy(packed + BIAS[L], workspace<real>(run, BIAS_AT[L]) + kind * OWN[L]);
                if constexpr (NORM && L < LAST) {
                    copy(packed + SCALE[L], workspace<real>(run, GAIN_AT[L]) + kind * OWN[L]);
                    copy(packed + SHIFT[L], workspace<real>(run, MOVE_AT[L]) + kind * OWN[L]);
                }
            }
        if constexpr (L < LAST) {
            const i64 at = i64(number) * UNITS + UNIT[L];
            if constexpr (NORM)
                for (int kind = 0; kind < 4; kind++)
                    copy(given.buffers + i64(kind) * given.runs * UNITS + at, workspace<real>(run, NORM_AT[L]) + (4 + kind) * OWN[L]);
            if constexpr (REPLACES) {
                copy(given.mean + at, workspace<real>(run, MEAN_AT[L]));
                copy(given.utility + at, workspace<real>(run, UTILITY_AT[L]));
                copy(given.decay_power + at, workspace<real>(run, DECAY_POWER_AT[L]));
                for (int j = run.thread; j < units; j += THREADS) {
                    if (STORE) given.born[at + first + j] = workspace<int>(run, BORN_AT[L])[j];
                    else workspace<int>(run, BORN_AT[L])[j] = int(given.born[at + first + j]);
                }
                if constexpr (ADAM && !STORE)
                    for (int j = run.thread; j < STRIDE[L]; j += THREADS) {
                        double age = given.step - (j < OUTPUTS[L] ? double(given.born[at + j]) : 0.0);
                        workspace<double>(run, AGE_AT[L])[j] = pow(BETA1, age);
                        workspace<double>(run, AGE_AT[L])[STRIDE[L] + j] = pow(BETA2, age);
                    }
            }
            if (!STORE)
                for (int j = run.thread; j < OWN[L]; j += THREADS)
                    workspace<real>(run, H_AT[L])[j] = workspace<real>(run, SLOPE_AT[L])[j] = workspace<real>(run, G_AT[L])[j] = real(0);
        } else if (!STORE)
            for (int j = run.thread; j < OWN[L]; j += THREADS) workspace<real>(run, G_AT[L])[j] = real(0);
        if constexpr (Matrix<L>::INSIDE)
            for (int kind = 0; kind <= MOMENTS; kind++) {
                real *packed = (kind == 0 ? run.p : kind == 1 ? run.first : run.second) + WEIGHT[L];
                real *working = matrix<L>(run) + kind * INPUTS[L] * OWN[L];
                for (int e = run.thread; e < INPUTS[L] * OWN[L]; e += THREADS) {
                    real *there = packed + first + e / OWN[L] * STRIDE[L] + e % OWN[L];
                    if (STORE) *there = working[e];
                    else working[e] = *there;
                }
            }
        copy_from<L + 1, STORE>(run, given, number);
    }
}

template <int L> __device__ __forceinline__ void fold_from(Run &run) {
    if constexpr (L < LAYERS) {
        fold<L>(run);
        fold_from<L + 1>(run);
    }
}

// One example on its way: its number is read two updates ahead, its entries one ahead.
struct Example {
    int begin, count;
    float target;

    __device__ __forceinline__ Example(const Given &given, int number) {
        begin = given.entry[number], count = given.entry[number + 1] - begin, target = given.target[number];
    }
};

// The entries of an example in this thread's hands, between memory and the list of the first layer.
struct Entries {
    static constexpr int EACH = (INPUTS[0] + THREADS - 1) / THREADS;
    static constexpr int KEPT = EACH <= 4 ? EACH : 0;
    int feature[KEPT > 0 ? KEPT : 1], level[KEPT > 0 ? KEPT : 1];

    __device__ __forceinline__ void read(const Run &run, const Given &given, const Example &example) {
#pragma unroll
        for (int q = 0; q < KEPT; q++) {
            int e = q * THREADS + run.thread;
            if (e < example.count) feature[q] = given.feature[example.begin + e], level[q] = given.level[example.begin + e];
        }
    }

    __device__ __forceinline__ void list(const Run &run, const Given &given, const Example &example, int parity) {
        const row_index *place = workspace<row_index>(run, PLACE_AT);
        const real *levels = workspace<real>(run, LEVELS_AT);
        row_index *rows = workspace<row_index>(run, ROW_AT[0]) + parity * INPUTS[0];
        real *values = workspace<real>(run, VALUE_AT[0]) + parity * INPUTS[0];
        if constexpr (KEPT > 0) {
#pragma unroll
            for (int q = 0; q < KEPT; q++) {
                int e = q * THREADS + run.thread;
                if (e < example.count) rows[e] = place[feature[q]], values[e] = levels[level[q]];
            }
        } else
            for (int e = run.thread; e < example.count; e += THREADS)
                rows[e] = place[given.feature[example.begin + e]], values[e] = levels[given.level[example.begin + e]];
    }
};
