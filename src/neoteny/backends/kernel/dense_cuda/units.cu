// Resets of units: measured, chosen, taken out of the next layer, drawn again. Feature c * units + j of a layer belongs to
// unit j. What happens at few updates is simple: a list of units is made by one thread.

// The sums of |weights| over the inputs of every unit, and with `features` over the outputs of every feature.
__device__ __forceinline__ void sum_weights(const Run &run, bool features) {
#pragma unroll 1
    for (int layer = 0; layer < LAYERS; layer++) {
        real total[VECTOR] = {}, *in = work<real>(run, IN_AT[layer]);
        over_tiles(
            run, layer,
            [&](int row, int column) {
                real w[ROWS][VECTOR];
                read_rows(run.p + WEIGHT[layer] + i64(row) * STRIDE[layer] + column, INPUTS[layer] - row, STRIDE[layer], [&](int r, int v) -> real & { return w[r][v]; });
#pragma unroll
                for (int r = 0; r < ROWS; r++)
#pragma unroll
                    for (int v = 0; v < VECTOR; v++) total[v] += magnitude(w[r][v]);
            },
            [&](int column, int group, int groups) { take_turns(in, total, column, group, groups); });
        if (!features || layer == 0) continue;
        const int lane = run.thread % LANES, teams = THREADS / LANES, count = INPUTS[layer];
        for (int base = 0; base < count; base += teams) {
            const int f = base + run.thread / LANES;
            const real *row = run.p + WEIGHT[layer] + i64(min(f, count - 1)) * STRIDE[layer];
            real size = 0;
            for (int column = lane * VECTOR; column < STRIDE[layer]; column += LANES * VECTOR) {
                const Chunk w = chunk(row + column);
#pragma unroll
                for (int v = 0; v < VECTOR; v++) size += magnitude(w.v[v]);
            }
            size = lane_sum<LANES>(size);
            if (lane == 0 && f < count) work<real>(run, OUT_AT[layer])[f] = size;
        }
    }
    sync();
}

// One tick of the running means and the utility of a layer's units; what is not finite leaves them as they were.
__device__ __forceinline__ void measure_layer(const Run &run, const Given &given, int layer) {
    const int n = OUTPUTS[layer];
    const i64 first = i64(run.number) * UNITS + UNIT[layer];
    const real share = real(1.0 / BATCH), half = real(1.0 / BATCH / COPIES), gain = real(1) - run.decay;
    const real *h = work<real>(run, X_AT[layer + 1]);
    for (int j = run.thread; j < n; j += THREADS) {
        real total = 0;
        for (int c = 0; c < COPIES; c++) {
            real part = 0;
            for (int b = 0; b < BATCH; b++) part += h[(c * n + j) * BATCH_PAD + b];
            total += part;
            if (COLUMN_MEANS) {
                real &kept = given.column_means[i64(c) * given.runs * UNITS + first + j];
                kept += gain * (part * share - kept);
            }
        }
        const real x = total * half;
        real &mean = given.mean_activation[first + j], &power = given.decay_power[first + j];
        if (magnitude(x) <= LARGEST) power *= run.decay, mean += gain * (x - mean);
        if (RANDOM_CHOICE) continue;
        const real centre = CENTRED ? mean / (real(1) - power) : real(0);
        real instant = 0;
        for (int c = 0; c < COPIES; c++) {
            real value = 1;
            const int f = c * n + j;
            if (ACTIVITY) {
                value = 0;
                for (int b = 0; b < BATCH; b++) value += magnitude(h[f * BATCH_PAD + b] - centre);
                value *= share;
            }
            if (SUMS_OUT) value *= work<real>(run, OUT_AT[layer + 1])[f] * real(1.0 / OUTPUTS[layer + 1]);
            instant += value;
        }
        if (COPIES > 1) instant *= real(0.5);
        if (SUMS_IN) {
            const real size = work<real>(run, IN_AT[layer])[j] / real(INPUTS[layer]);
            instant = size == real(0) ? real(0) : instant / size;
        }
        real &utility = given.utility[first + j];
        if (magnitude(instant) <= LARGEST) utility += gain * (instant - utility);
    }
}

// How many units of a layer are to be replaced now: units.schedule, without fused products.
__device__ __forceinline__ int count_due(const Run &run, const Given &given, int layer, double replacement_rate, i64 threshold) {
    const int n = OUTPUTS[layer];
    int *due = work<int>(run, DUE_AT), eligible = 0;
    for (int j = run.thread; j < n; j += THREADS) eligible += run.now - given.born[i64(run.number) * UNITS + UNIT[layer] + j] > threshold;
    eligible = block_sum(run, eligible);
    if (run.thread == 0) {
        double &kept = given.accumulator[run.number * HIDDEN + layer];
        const double many = COUNT_LAYER ? (eligible > 0 ? n : 0) : eligible;
        const double total = __dadd_rn(kept, __dmul_rn(replacement_rate, many)), whole = total >= 1.0 ? floor(total) : 0.0;
        kept = total - whole;
        *due = int(min(whole, double(eligible)));
    }
    sync();
    return *due;
}

// One tick of continual backpropagation: every layer is measured, then those of its units chosen that are due.
__device__ __forceinline__ void choose_useless(const Run &run, const Given &given) {
    int *places = work<int>(run, PLACES_AT), *chosen = work<int>(run, CHOSEN_AT);
    real *score = work<real>(run, SCORE_AT);
    const i64 threshold = i64(given.numbers[RATE_MATURITY_THRESHOLD * given.runs + run.number]);
    const double replacement_rate = given.numbers[RATE_REPLACEMENT_RATE * given.runs + run.number];
    if (SUMS_IN || SUMS_OUT) sum_weights(run, SUMS_OUT);
    int many = 0;
#pragma unroll 1
    for (int layer = 0; layer < HIDDEN; layer++) {
        const int n = OUTPUTS[layer];
        const i64 first = i64(run.number) * UNITS + UNIT[layer];
        measure_layer(run, given, layer);
        const int due = count_due(run, given, layer, replacement_rate, threshold);
        if (run.thread == 0) places[layer + 1] = many + due;
        for (int j = run.thread; due > 0 && j < n; j += THREADS) {
            real value;
            if (RANDOM_CHOICE) {
                const Words words = philox(run.seed, 0u, run.now, PURPOSE[1 * LAYERS + layer], u32(j / 4));
                value = real(unit(words.w[j % 4]));
            } else value = given.utility[first + j] / (real(1) - given.decay_power[first + j]);
            value = value == value ? min(value, LARGEST) : LARGEST;
            score[j] = run.now - given.born[first + j] <= threshold ? infinite() : value;
        }
        sync();
        for (int k = 0; k < due; k++) {
            real best = infinite();
            int place = n;
            for (int j = run.thread; j < n; j += THREADS)
                if (score[j] < best || place == n) best = score[j], place = j;
            place = block_lowest(run, best, place);
            check(place < n, "no unit is left to be replaced");
            if (run.thread == 0) chosen[many + k] = place, score[place] = infinite();
            sync();
        }
        many += due;
    }
}

// From a mark per unit to the list of marked ones, if `mine` is not zero for some thread.
__device__ __forceinline__ void list_marked(const Run &run, int mine) {
    int *places = work<int>(run, PLACES_AT), *chosen = work<int>(run, CHOSEN_AT);
    const int *mark = work<int>(run, MARK_AT);
    if (block_sum(run, mine) > 0 && run.thread == 0) {
        int many = 0;
        for (int layer = 0; layer < HIDDEN; layer++) {
            for (int j = 0; j < OUTPUTS[layer]; j++)
                if (mark[UNIT[layer] + j]) chosen[many++] = j;
            places[layer + 1] = many;
        }
    }
    sync();
}

// Marks units of little activity.
__device__ __forceinline__ int mark_silent(const Run &run, double threshold) {
    double *activity = work<double>(run, ACTIVITY_AT);
    int mine = 0;
#pragma unroll 1
    for (int layer = 0; layer < HIDDEN; layer++) {
        const int n = OUTPUTS[layer];
        const real *h = work<real>(run, X_AT[layer + 1]);
        double whole = 0;
        for (int j = run.thread; j < n; j += THREADS) {
            double total = 0;
            for (int c = 0; c < COPIES; c++)
                for (int b = 0; b < BATCH; b++) total += double(magnitude(h[(c * n + j) * BATCH_PAD + b]));
            activity[j] = total / double(BATCH * COPIES);
            whole += activity[j];
        }
        const double middle = block_sum(run, whole) / double(n) + 1e-9;
        for (int j = run.thread; j < n; j += THREADS) {  // each thread its own units again
            const int silent = activity[j] / middle <= threshold;
            work<int>(run, MARK_AT)[UNIT[layer] + j] = silent;
            mine += silent;
        }
    }
    return mine;
}

// The mean |gradient| of every unit's incoming weights over the layer's mean.
__device__ __forceinline__ void score_gradients(const Run &run, const Given &given) {
#pragma unroll 1
    for (int layer = 0; layer < HIDDEN; layer++) {
        const int n = OUTPUTS[layer];
        real total[VECTOR] = {}, *in = work<real>(run, IN_AT[layer]);
        over_tiles(
            run, layer,
            [&](int row, int column) {
                real gradient[ROWS][VECTOR];
                gradient_of(run, layer, row, column, gradient);
#pragma unroll
                for (int r = 0; r < ROWS; r++)
#pragma unroll
                    for (int v = 0; v < VECTOR; v++) total[v] += row + r < INPUTS[layer] ? magnitude(gradient[r][v]) : real(0);
            },
            [&](int column, int group, int groups) { take_turns(in, total, column, group, groups); });
        double whole = 0;
        for (int j = run.thread; j < n; j += THREADS) whole += double(in[j]) / INPUTS[layer];
        const double middle = block_sum(run, whole) / double(n) + 1e-8;
        for (int j = run.thread; j < n; j += THREADS)
            given.score[i64(run.number) * UNITS + UNIT[layer] + j] = double(in[j]) / INPUTS[layer] / middle;
    }
    sync();
}

__device__ __forceinline__ int mark_by_score(const Run &run, const Given &given, double threshold) {
    int mine = 0;
    for (int layer = 0; layer < HIDDEN; layer++)
        for (int j = run.thread; j < OUTPUTS[layer]; j += THREADS) {
            const int low = given.score[i64(run.number) * UNITS + UNIT[layer] + j] <= threshold;
            work<int>(run, MARK_AT)[UNIT[layer] + j] = low;
            mine += low;
        }
    return mine;
}

// The threshold is the age that the unit's silences mostly end by, or twice what it was; the histogram starts again.
__device__ __forceinline__ void recalibrate(i64 &threshold, int *histogram, double share) {
    i64 total = 0, reached = 0, age = 0;
    for (int place = 0; place < LONGEST; place++) total += histogram[place];
    if (total == 0) return;
    for (int place = 0; place < LONGEST; place++) {
        reached += histogram[place];
        histogram[place] = 0;
        age += double(reached) < share * double(total);
    }
    age = (age + 1) * BATCH;
    const i64 proposed = age < threshold ? age : 2 * threshold;
    threshold = min(max(proposed, i64(BATCH)), i64(LONGEST) * BATCH);
}

// Counts the ages of this update and marks units whose age has reached their threshold.
__device__ __forceinline__ int mark_by_silence(const Run &run, const Given &given, double rejection, bool recalibrates) {
    int mine = 0;
    for (int layer = 0; layer < HIDDEN; layer++) {
        const int n = OUTPUTS[layer];
        const real *h = work<real>(run, X_AT[layer + 1]);
        for (int j = run.thread; j < n; j += THREADS) {
            const i64 unit = i64(run.number) * UNITS + UNIT[layer] + j;
            int *histogram = given.histogram + unit * LONGEST;
            i64 &threshold = given.threshold[unit];
            bool silent = true;
            for (int c = 0; c < COPIES; c++)
                for (int b = 0; b < BATCH; b++) silent = silent && h[(c * n + j) * BATCH_PAD + b] <= real(0);
            const i64 age = given.age[unit] + (silent ? BATCH : 0);
            const bool late = silent && age >= threshold && rejection > 0.0;
            if (age > 0 && (late || !silent)) histogram[min((age + BATCH - 1) / BATCH, i64(LONGEST)) - 1]++;
            given.age[unit] = late || !silent ? 0 : age;
            work<int>(run, MARK_AT)[UNIT[layer] + j] = late;
            mine += late;
            if (recalibrates) recalibrate(threshold, histogram, 1.0 - rejection);
        }
    }
    return mine;
}

// A new element: no moments, and it is its own initial and slow value.
__device__ __forceinline__ void write(const Run &run, i64 at, real value) {
    run.p[at] = value;
    if (MOMENTS > 0) run.first[at] = 0;
    if (MOMENTS > 1) run.second[at] = 0;
    if (ANCHORED) run.anchor[at] = value;
    if (SLOWS) run.slow[at] = value;
}

// Takes the chosen units of a layer out of the next one; that one's bias gets their mean share if `compensates`.
__device__ __forceinline__ void cut(const Run &run, const Given &given, int layer, int begin, int end, bool compensates) {
    const int *chosen = work<int>(run, CHOSEN_AT), after = layer + 1, n = OUTPUTS[layer];
    const i64 first = i64(run.number) * UNITS + UNIT[layer];
    for (int k = run.thread; k < OUTPUTS[after]; k += THREADS)
        for (int place = begin; place < end; place++)
            for (int c = 0; c < COPIES; c++) {
                const int j = chosen[place];
                const i64 at = WEIGHT[after] + i64(c * n + j) * STRIDE[after] + k;
                if (compensates) {
                    const real seen = COLUMN_MEANS ? given.column_means[i64(c) * given.runs * UNITS + first + j] : given.mean_activation[first + j];
                    run.p[BIAS[after] + k] += run.p[at] * (seen / max(real(1) - given.decay_power[first + j], TINY));
                }
                write(run, at, real(0));
            }
    sync();
}

// Gives the chosen units of a layer new incoming weights, a zero bias, a new norm, and no past; `born`: for their age.
__device__ __forceinline__ void draw(const Run &run, const Given &given, int layer, int begin, int end, bool replaces, i64 born) {
    const int *chosen = work<int>(run, CHOSEN_AT), inputs = INPUTS[layer], blocks = (inputs + 3) / 4;
    for (int item = run.thread; item < (end - begin) * blocks; item += THREADS) {
        const int j = chosen[begin + item / blocks], block = item % blocks;
        const Words words = philox(run.seed, u32(j), run.now, PURPOSE[0 * LAYERS + layer], u32(block));
        for (int k = 0; k < 4 && 4 * block + k < inputs; k++)
            write(run, WEIGHT[layer] + i64(4 * block + k) * STRIDE[layer] + j, real((unit(words.w[k]) * 2.0 - 1.0) * BOUND[layer]));
    }
    for (int place = begin + run.thread; place < end; place += THREADS) {
        const int j = chosen[place], own = UNIT[layer] + j;
        const i64 unit = i64(run.number) * UNITS + own;
        for (int part = 0; part < vectors(layer); part++) write(run, BIAS[layer] + part * STRIDE[layer] + j, real(part == 1 ? 1 : 0));
        given.since[unit] = run.now;
        if (OPTIMIZER >= ADAM) work<double>(run, POWER1_AT)[own] = work<double>(run, POWER2_AT)[own] = 1.0;
        if (REPLACES) {
            given.mean_activation[unit] = given.utility[unit] = 0;
            given.decay_power[unit] = 1;
            given.born[unit] = born;
            for (int c = 0; COLUMN_MEANS && c < COPIES; c++) given.column_means[i64(c) * given.runs * UNITS + unit] = 0;
        }
        if (replaces && AGES) {  // to the other method it is a unit without a history
            given.age[unit] = 0, given.threshold[unit] = FIRST_THRESHOLD;
            for (int k = 0; k < LONGEST; k++) given.histogram[unit * LONGEST + k] = 0;
        }
    }
    if (run.thread == 0) (replaces ? given.replaced : given.reset)[run.number * HIDDEN + layer] += end - begin;
    sync();
}

// Makes the chosen units new. Continual backpropagation takes all of them out of their next layers before it draws any;
// resets go from the last layer to the first, so that a weight from one chosen unit to another ends as zero.
__device__ __forceinline__ void rewrite(const Run &run, const Given &given, bool replaces, i64 born) {
    const int *places = work<int>(run, PLACES_AT);
    if (places[HIDDEN] == 0) return;
#pragma unroll 1
    for (int part = 0; part < 2 * HIDDEN; part++) {
        const int layer = replaces ? (part < HIDDEN ? part : part - HIDDEN) : HIDDEN - 1 - part / 2, begin = places[layer], end = places[layer + 1];
        if (begin == end) continue;
        if (replaces ? part < HIDDEN : part % 2 == 0) cut(run, given, layer, begin, end, replaces && COMPENSATE);
        else draw(run, given, layer, begin, end, replaces, born);
    }
}

// One turn of the method that replaces units, or of the one that resets them.
__device__ __forceinline__ void renew(const Run &run, const Given &given, bool replaces, bool checks, i64 born) {
    const double threshold = given.numbers[RATE_THRESHOLD * given.runs + run.number];
    for (int i = run.thread; i <= HIDDEN; i += THREADS) work<int>(run, PLACES_AT)[i] = 0;
    sync();
    if (replaces) choose_useless(run, given);
    else if (RESET_BY == BY_SILENCE) list_marked(run, mark_by_silence(run, given, threshold, checks));
    else if (!checks) return;
    else if (RESET_BY == BY_SCORE) list_marked(run, mark_by_score(run, given, threshold));
    else list_marked(run, mark_silent(run, threshold));
    rewrite(run, given, replaces, born);
    sync();  // all have read the list before another turn makes its own
}
