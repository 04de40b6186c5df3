// Continual backpropagation: the schedule, the utilities, and the replacement of units.

// Counts the units that are old enough, and finds when the next one will be.
template <int L> __device__ __forceinline__ void recount(Run &run) {
    const int *born = workspace<int>(run, BORN_AT[L]);
    int eligible = 0, next = 0x7FFFFFFF;
    for (int j = run.thread; j < own_units<L>(run); j += THREADS) {
        int mature = born[j] + run.threshold + 1;
        if (mature <= run.now) eligible++;
        else next = min(next, mature);
    }
    eligible = block_sum(run, eligible);
    for (int offset = 16; offset > 0; offset /= 2) next = min(next, __shfl_xor_sync(ALL, next, offset));
    int *scratch = workspace<int>(run, SCRATCH_AT);
    if constexpr (WARPS > 1) {
        sync_block();
        if (run.thread % 32 == 0) scratch[run.thread / 32] = next;
        sync_block();
        for (int warp = 0; warp < WARPS; warp++) next = min(next, scratch[warp]);
        sync_block();
    }
    if constexpr (BLOCKS > 1) {
        int *exchanged = exchange<int>(run, AGES_AT) + L * 2 * BLOCKS;
        if (run.thread == 0) __stcg(exchanged + run.rank, eligible), __stcg(exchanged + BLOCKS + run.rank, next);
        sync_team();
        eligible = 0;
        for (int rank = 0; rank < BLOCKS; rank++) {
            eligible += __ldcg(exchanged + rank);
            next = min(next, __ldcg(exchanged + BLOCKS + rank));
        }
        sync_team();
    }
    run.eligible[L] = eligible, run.next_mature[L] = next;
}

// How many units of a layer are to be replaced now: `schedule.Schedule`, without fused products.
template <int L> __device__ __forceinline__ int tick(Run &run) {
    if (run.now >= run.next_mature[L]) recount<L>(run);
    if (run.eligible[L] == 0) return 0;
    run.due[L] = __dadd_rn(run.due[L], __dmul_rn(run.rate, double(COUNT_LAYER ? OUTPUTS[L] : run.eligible[L])));
    if (!(run.due[L] >= 1.0)) return 0;
    double whole = floor(run.due[L]);
    run.due[L] -= whole;
    int count = min(int(whole), run.eligible[L]);
    run.eligible[L] -= count;
    run.next_mature[L] = min(run.next_mature[L], run.now + run.threshold + 1);
    return count;
}

// One tick of a layer's running means and utilities; what is not finite leaves them as they were.
template <int L> __device__ __forceinline__ void measure(const Run &run) {
    const real *h = workspace<real>(run, H_AT[L]);
    real *mean = workspace<real>(run, MEAN_AT[L]), *utility = workspace<real>(run, UTILITY_AT[L]), *decay_power = workspace<real>(run, DECAY_POWER_AT[L]);
    const real gain = real(1) - run.decay;
    for (int j = run.thread; j < own_units<L>(run); j += THREADS) {
        real x = h[j], m = mean[j], remains = decay_power[j];
        bool seen = magnitude(x) <= LARGEST;
        if (seen) {
            decay_power[j] = remains = remains * run.decay;
            mean[j] = m = m + gain * (x - m);
        }
        if constexpr (!RANDOM_CHOICE) {
            real value = real(1);
            if constexpr (CENTRED) value = magnitude(x - m / (real(1) - remains));
            else if constexpr (ACTIVITY) value = magnitude(x);
            if constexpr (SUMS_OUT) value *= workspace<real>(run, OUT_AT[L])[j] * (run.scale[L + 1] * real(1.0 / OUTPUTS[L + 1]));
            if constexpr (SUMS_IN) {
                real size = workspace<real>(run, IN_AT[L])[j] * (run.scale[L] * real(1.0 / INPUTS[L]));
                value = size == real(0) ? real(0) : value / size;
            }
            if (seen && magnitude(value) <= LARGEST) utility[j] += gain * (value - utility[j]);
        }
    }
}

// Chooses the `due` eligible units of lowest utility, ties by index, and tells everyone their mean activation.
template <int L> __device__ __forceinline__ void choose(const Run &run, int due) {
    const real *mean = workspace<real>(run, MEAN_AT[L]), *utility = workspace<real>(run, UTILITY_AT[L]);
    const real *decay_power = workspace<real>(run, DECAY_POWER_AT[L]);
    const int *born = workspace<int>(run, BORN_AT[L]);
    const int first = first_unit<L>(run);
    real *score = workspace<real>(run, SCORE_AT), *centre = workspace<real>(run, CENTRE_AT);
    real *exchanged = exchange<real>(run, SCORES_AT);
    int *chosen = workspace<int>(run, CHOSEN_AT);
    for (int j = run.thread; j < own_units<L>(run); j += THREADS) {
        real remains = real(1) - decay_power[j], value;
        if constexpr (RANDOM_CHOICE) {
            Words words = philox(run.seed, 0, run.now, PURPOSE_UTILITY[L], u32(first + j) / 4);
            int word = (first + j) % 4;
            value = real(unit(word == 0 ? words.w[0] : word == 1 ? words.w[1] : word == 2 ? words.w[2] : words.w[3]));
        } else value = utility[j] / remains;
        value = value == value ? min(value, LARGEST) : LARGEST;
        if (run.now - born[j] <= run.threshold) value = infinite();
        real middle = mean[j] / max(remains, TINY);
        if constexpr (BLOCKS == 1) score[j] = value, centre[j] = middle;
        else __stcg(exchanged + first + j, value), __stcg(exchanged + STRIDE[L] + first + j, middle);
    }
    sync_team();
    if constexpr (BLOCKS > 1) {
        for (int j = run.thread; j < OUTPUTS[L]; j += THREADS)
            score[j] = __ldcg(exchanged + j), centre[j] = __ldcg(exchanged + STRIDE[L] + j);
        sync_block();
    }
    for (int c = 0; c < due; c++) {
        real best = infinite();
        int place = OUTPUTS[L];
        for (int j = run.thread; j < OUTPUTS[L]; j += THREADS)
            if (score[j] < best || place == OUTPUTS[L]) best = score[j], place = j;
        place = block_lowest(run, best, place);
        sync_block();
        if (run.thread == 0) chosen[c] = place, score[place] = infinite();
        sync_block();
    }
}

// Takes the chosen units out of the next layer: compensates their mean activation, then zeroes their outgoing weights.
template <int L> __device__ __forceinline__ void release(const Run &run, int due) {
    using M = Matrix<L + 1>;
    const int *chosen = workspace<int>(run, CHOSEN_AT);
    const real *centre = workspace<real>(run, CENTRE_AT);
    real *bias = workspace<real>(run, BIAS_AT[L + 1]), *weights = matrix<L + 1>(run);
    real *firsts = matrix<L + 1, 1>(run), *seconds = matrix<L + 1, 2>(run);
    for (int column = run.thread; column < own_units<L + 1>(run); column += THREADS)
        for (int c = 0; c < due; c++) {
            int at = chosen[c] * M::PITCH + column;
            real w = M::BY_ROWS ? __ldcg(weights + at) : weights[at];
            if constexpr (COMPENSATE) bias[column] += w * (centre[chosen[c]] * run.scale[L + 1]);
            if constexpr (SUMS_IN && L + 1 < LAST) workspace<real>(run, IN_AT[L + 1])[column] -= magnitude(w);
        }
    if constexpr (M::BY_ROWS) sync_team();
    for (int c = 0; c < due; c++) {
        int local = chosen[c] - first_unit<L>(run);
        bool mine = local >= 0 && local < own_units<L>(run);
        if (mine && SUMS_OUT && run.thread == 0) workspace<real>(run, OUT_AT[L])[local] = real(0);
        if (M::BY_ROWS && !mine) continue;
        for (int column = run.thread; column < own_units<L + 1>(run); column += THREADS) {
            int at = chosen[c] * M::PITCH + column;
            weights[at] = real(0);
            if constexpr (MOMENTS > 0) firsts[at] = real(0);
            if constexpr (MOMENTS > 1) seconds[at] = real(0);
        }
    }
    sync_block();
}

// Gives the chosen units new incoming weights, a zero bias, and no past.
template <int L> __device__ __forceinline__ void renew(const Run &run, int due) {
    using M = Matrix<L>;
    constexpr bool CHANGES_SUMS = SUMS_OUT && L > 0;
    const int *chosen = workspace<int>(run, CHOSEN_AT);
    real *weights = matrix<L>(run), *firsts = matrix<L, 1>(run), *seconds = matrix<L, 2>(run);
    real *bias = workspace<real>(run, BIAS_AT[L]);
    if constexpr (CHANGES_SUMS && BLOCKS > 1) {
        real *change = exchange<real>(run, CHANGE_AT) + run.rank * INPUTS_MOST;
        for (int i = run.thread; i < INPUTS[L]; i += THREADS) __stcg(change + i, real(0));
        sync_block();
    }
    for (int c = 0; c < due; c++) {
        int unit_number = chosen[c], local = unit_number - first_unit<L>(run);
        if constexpr (ADAM)
            if (run.thread == 0)
                workspace<double>(run, AGE_AT[L])[unit_number] = workspace<double>(run, AGE_AT[L])[STRIDE[L] + unit_number] = 1.0;
        if (local < 0 || local >= own_units<L>(run)) continue;
        real size = 0;
        for (int block = run.thread; block < (INPUTS[L] + 3) / 4; block += THREADS) {
            Words words = philox(run.seed, u32(unit_number), run.now, PURPOSE_WEIGHT[L], u32(block));
#pragma unroll
            for (int k = 0; k < 4; k++) {
                int i = block * 4 + k;
                if (i >= INPUTS[L]) break;
                real now = real((unit(words.w[k]) * 2.0 - 1.0) * BOUND[L]) / run.scale[L];
                int at = i * M::PITCH + local;
                real change = magnitude(now) - magnitude(weights[at]);
                size += magnitude(now);
                weights[at] = now;
                if constexpr (MOMENTS > 0) firsts[at] = real(0);
                if constexpr (MOMENTS > 1) seconds[at] = real(0);
                if constexpr (CHANGES_SUMS && BLOCKS == 1) workspace<real>(run, OUT_AT[L - 1])[i] += change;
                if constexpr (CHANGES_SUMS && BLOCKS > 1) {
                    real *to = exchange<real>(run, CHANGE_AT) + run.rank * INPUTS_MOST + i;
                    __stcg(to, __ldcg(to) + change);
                }
            }
        }
        size = block_sum(run, size);
        if (run.thread == 0) {
            if constexpr (SUMS_IN) workspace<real>(run, IN_AT[L])[local] = size;
            for (int kind = 0; kind <= MOMENTS; kind++) bias[kind * OWN[L] + local] = real(0);
            workspace<real>(run, MEAN_AT[L])[local] = workspace<real>(run, UTILITY_AT[L])[local] = real(0);
            workspace<real>(run, DECAY_POWER_AT[L])[local] = real(1);
            workspace<int>(run, BORN_AT[L])[local] = run.now;
        }
    }
    if constexpr (BLOCKS == 1) sync_block();
    else sync_team();
    if constexpr (CHANGES_SUMS && BLOCKS > 1) {
        int first = first_unit<L - 1>(run);
        for (int j = run.thread; j < own_units<L - 1>(run); j += THREADS)
            for (int rank = 0; rank < BLOCKS; rank++)
                workspace<real>(run, OUT_AT[L - 1])[j] += __ldcg(exchange<real>(run, CHANGE_AT) + rank * INPUTS_MOST + first + j);
        sync_team();
    }
}
