// The kernel: a block of updates of many runs in one launch, a block of threads per run.

__device__ __forceinline__ Run make_run(const Given &given, int number) {
    Run run;
    const i64 at = i64(number) * PARAMETERS;
    run.number = number, run.thread = threadIdx.x, run.warp = run.thread / WARP, run.lane = run.thread % WARP;
    run.now = int(given.step), run.seed = u64(given.seeds[number]);
    run.p = global(given.parameters + at);
    run.first = MOMENTS > 0 ? global(given.first + at) : nullptr, run.second = MOMENTS > 1 ? global(given.second + at) : nullptr;
    run.anchor = ANCHORED ? global(given.anchor + at) : nullptr, run.slow = SLOWS ? global(given.slow + at) : nullptr;
    run.worth = REINITS ? global(given.worth + at) : nullptr, run.drawn = COUNTS_WEIGHTS ? global(given.drawn + at) : nullptr;
    run.outside = given.outside + i64(number) * OUTSIDE_BYTES;
    run.step_size = rate(given, RATE_STEP_SIZE, number), run.momentum = rate(given, RATE_MOMENTUM, number);
    run.l2 = rate(given, RATE_L2, number), run.pull = rate(given, RATE_ANCHOR, number);
    const double *numbers = given.numbers + number;
    run.keep = real(1.0 - numbers[RATE_STEP_SIZE * given.runs] * numbers[RATE_WEIGHT_DECAY * given.runs]);
    run.noise_std = rate(given, RATE_NOISE_STD, number), run.step_noise_std = rate(given, RATE_STEP_NOISE_STD, number);
    run.share = real(1.0 - numbers[RATE_SLOW_DECAY * given.runs]), run.decay = rate(given, RATE_DECAY_RATE, number);
    run.reinit_decay = rate(given, RATE_REINIT_DECAY, number), run.clip = numbers[RATE_CLIP * given.runs];
    run.old1 = run.old2 = run.inverse = 1, run.copies = false;
    return run;
}

// Clears the working memory (what is padding stays zero) and fills what a task and the ages of units say.
__device__ __forceinline__ void prepare(const Run &run, const Given &given, i64 stream) {
    for (int i = run.thread; i < INSIDE_BYTES / 4; i += THREADS) reinterpret_cast<int *>(memory)[i] = 0;
    for (int i = run.thread; i < OUTSIDE_BYTES / 4; i += THREADS) reinterpret_cast<int *>(run.outside)[i] = 0;
    sync();
    for (int i = run.thread; i < INPUTS[0]; i += THREADS) work<unsigned short>(run, PLACE_AT)[i] = given.place[stream * INPUTS[0] + i];
    for (int i = run.thread; i < 256; i += THREADS) work<real>(run, LEVELS_AT)[i] = real(given.values[i]);
    if (OPTIMIZER >= ADAM)
        for (int u = run.thread; u <= UNITS; u += THREADS) {
            const double age = double(u < UNITS && REWRITES ? given.step - given.since[i64(run.number) * UNITS + u] : given.step);
            work<double>(run, POWER1_AT)[u] = pow(BETA1, age), work<double>(run, POWER2_AT)[u] = pow(BETA2, age);
        }
    sync();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) dense(const Given *__restrict__ table) {
    const Given &given = *table;
    const int number = blockIdx.x;
    if (number >= given.runs) return;
    Run run = make_run(given, number);
    const i64 stream = given.stream[number];
    prepare(run, given, stream);
    double total = 0;
    i64 broken = -1;
#pragma unroll 1
    for (i64 k = given.start; k < given.stop; k++) {
        run.now++;
        load(run, given, stream, k);
        double loss = 0, performance = 0, fast = 0;
#pragma unroll 1
        for (int which = SLOWS ? 0 : 1; which < 2; which++) {  // the performance is that of the slow weights, if any
            forward_all(run, which == 0 ? run.slow : run.p);
            losses(run, given, loss, fast);
            if (which == 0 || !SLOWS) performance = fast;
        }
        total += performance;
        if (!(fabs(loss) <= double(LARGEST))) {  // the same for all threads
            broken = k;
            break;
        }
        backward_all(run);
        const bool checks = RESET_PERIOD > 0 && run.now % max(RESET_PERIOD, 1) == 0, redraws = run.now % REINIT_PERIOD == 0;
        if (SCORES && checks) score_gradients(run, given);
        if (REINITS && (redraws || AVERAGES)) measure_weights(run);
        run.copies = SLOW_PERIOD > 0 && run.now % max(SLOW_PERIOD, 1) == 0;
        i64 ticked = run.now - 1;  // steps that continual backpropagation has counted
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
            const int from = PASS_FROM[pass], to = PASS_TO[pass];
            if (ACTS[from] == REPLACE) renew(run, given, true, checks, ticked = run.now);
            else if (ACTS[from] == RESET) renew(run, given, false, checks, ticked);
            else if (ACTS[from] == REINIT) {
                if (redraws) redraw_weights(run, given);
            } else {
                if (has(from, to, UPDATE) && OPTIMIZER >= ADAM) advance_powers(run);
                if (has(from, to, UPDATE) && OPTIMIZER == UPGD) measure_step(run);
                pass_weights(run, given, from, to);
            }
        }
        sync();
    }
    if (run.thread == 0) given.total[number] = total, given.broken[number] = broken;
}
