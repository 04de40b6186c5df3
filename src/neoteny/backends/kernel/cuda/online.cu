// The kernel: a block of updates of many runs in one launch; meanwhile a run stays with its team.

__device__ __forceinline__ Run make_run(const Given &given, int number, int rank) {
    Run run;
    run.thread = threadIdx.x % THREADS, run.team = threadIdx.x / THREADS, run.rank = rank;
    run.workspace = given.workspaces + (i64(number) * BLOCKS + rank) * WORKSPACE_BYTES;
    run.exchange = given.exchanges + i64(number) * EXCHANGE_BYTES;
    run.p = given.parameters + i64(number) * PARAMETERS;
    run.first = MOMENTS > 0 ? given.first + i64(number) * PARAMETERS : run.p;
    run.second = MOMENTS > 1 ? given.second + i64(number) * PARAMETERS : run.p;
    run.seed = u64(given.seeds[number]);
    const double *rates = given.rates + number;
    run.step_size = real(rates[0]), run.momentum = real(rates[given.runs]), run.shrink = real(rates[2 * given.runs]);
    run.keep = 1.0 - rates[0] * rates[2 * given.runs];
    run.noise_std = real(rates[3 * given.runs]), run.rate = rates[4 * given.runs];
    run.threshold = int(min(rates[5 * given.runs], 1e9)), run.decay = real(rates[6 * given.runs]);
    run.now = given.step, run.parity = 0, run.released = 0;
    run.dropout_seed = given.dropout_seed + number * HIDDEN;
    run.step_scale = run.step_size, run.root_scale = run.before = real(1);
    run.power1 = pow(BETA1, double(given.step)), run.power2 = pow(BETA2, double(given.step));
#pragma unroll
    for (int layer = 0; layer < LAYERS; layer++) {
        run.count[layer] = 0, run.scale[layer] = real(1), run.exact[layer] = 1.0, run.eligible[layer] = 0, run.next_mature[layer] = 0;
        run.due[layer] = layer < HIDDEN ? given.results[i64(number) * (2 + 2 * HIDDEN) + 2 + layer] : 0.0;
    }
    return run;
}

extern "C" __global__ void __launch_bounds__(THREADS *TEAMS, BLOCKS_AN_SM) CLUSTER
online(int runs, int step, int start, int stop, int task_steps, real *parameters, real *first, real *second, real *mean,
       real *utility, real *decay_power, i64 *born, real *buffers, const i64 *dropout_seed, const i64 *seeds, const double *rates,
       double *all_results, const int *entry, const unsigned short *feature, const unsigned char *level, const float *values,
       const float *target, const int *orders, const unsigned short *place, const int *stream, unsigned char *workspaces,
       unsigned char *exchanges) {
    const Given given{runs, step, start, stop, task_steps, parameters, first, second, mean, utility, decay_power, born, buffers,
                      dropout_seed, seeds, rates, all_results, entry, feature, level, values, target, orders, place, stream,
                      workspaces, exchanges};
    int rank = 0;
    if constexpr (BLOCKS > 1) asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    const int number = int(blockIdx.x) / BLOCKS * TEAMS + int(threadIdx.x) / THREADS;
    if (number >= given.runs) return;
    Run run = make_run(given, number, rank);
    double *results = given.results + i64(number) * (2 + 2 * HIDDEN), total = 0;
    const int *order = given.order + i64(given.stream[number]) * given.task_steps;
    for (int i = run.thread; i < INPUTS[0]; i += THREADS)
        workspace<row_index>(run, PLACE_AT)[i] = given.place[i64(given.stream[number]) * INPUTS[0] + i];
    for (int i = run.thread; i < 256; i += THREADS) workspace<real>(run, LEVELS_AT)[i] = real(given.values[i]);
    copy_from<0, false>(run, given, number);
    sync_block();
    if constexpr (SUMS_IN || SUMS_OUT) sum_from<0>(run);

    const int last = given.stop - 1;
    Example here(given, order[given.start]), next(given, order[min(given.start + 1, last)]);
    int after = order[min(given.start + 2, last)], broken = -1;
    Entries entries;
    entries.read(run, given, here);
    entries.list(run, given, here, 0);
    sync_block();
    for (int k = given.start; k < given.stop; k++) {
        run.now++;
        run.count[0] = here.count;
        entries.read(run, given, next);
        Example then(given, after);
        after = order[min(k + 3, last)];
        if constexpr (ADAM) age_from<0>(run);
        if constexpr (DENSE)
            for (int i = run.thread; i < INPUTS[0]; i += THREADS) workspace<real>(run, X_AT[0])[i] = real(0);
        forward_from<0>(run);
        entries.list(run, given, next, run.parity ^ 1);
        if constexpr (DENSE)
            for (int e = run.thread; e < here.count; e += THREADS)
                workspace<real>(run, X_AT[0])[row_list<0>(run)[e]] = value_list<0>(run)[e];
        bool finite;
        real performance = loss_and_check(run, here.target, finite);
        total += performance;
        if (!finite) {
            broken = k;
            break;
        }
        back_from<LAST>(run);
        if constexpr (NOISE && NOISE_FIRST) sync_block(), perturb_from<0>(run);
        if constexpr (REPLACES) {
            if constexpr (SUMS_LATE && (SUMS_IN || SUMS_OUT)) sync_block(), sum_from<0>(run);
            measure_from<0>(run);
            sync_block();
            replace_from<0>(run, results + 2 + HIDDEN);
            // A unit most of whose inputs are replaced keeps little but the rounding errors of its former sum.
            if constexpr (SUMS_IN && !SUMS_LATE && HIDDEN > 1)
                if (2 * run.released >= narrowest()) sync_team(), sum_from<0>(run), run.released = 0;
        }
        if constexpr (NOISE && !NOISE_FIRST) sync_block(), perturb_from<0>(run);
        sync_block();
        here = next, next = then, run.parity ^= 1;
    }
    if constexpr (LAZY) sync_block(), fold_from<0>(run);
    sync_block();
    copy_from<0, true>(run, given, number);
    if (run.thread == 0 && rank == 0) {
        results[0] = total, results[1] = broken;
#pragma unroll
        for (int layer = 0; layer < HIDDEN; layer++) results[2 + layer] = run.due[layer];
    }
    if constexpr (BLOCKS > 1) sync_team();
}
