// Single weights measured and redrawn: selective weight reinitialisation.

template <bool WIDE> struct BitsOf {
    typedef int type;
};
template <> struct BitsOf<true> {
    typedef i64 type;
};
typedef BitsOf<sizeof(real) == 8>::type bits_type;

__device__ __forceinline__ i64 bits_of(double x) { return __double_as_longlong(x); }
__device__ __forceinline__ int bits_of(float x) { return __float_as_int(x); }
__device__ __forceinline__ real number_of(i64 x) { return real(__longlong_as_double(x)); }
__device__ __forceinline__ real number_of(int x) { return real(__int_as_float(x)); }

// One step of the average utility of every weight of the matrices.
__device__ __forceinline__ void measure_weights(const Run &run) {
#pragma unroll 1
    for (int layer = 0; layer < LAYERS; layer++)
        over_tiles(run, layer, [&](int row, int column) {
            const int rows = INPUTS[layer] - row, stride = STRIDE[layer];
            const i64 at = WEIGHT[layer] + i64(row) * stride + column;
            real p[ROWS][VECTOR], worth[ROWS][VECTOR], gradient[ROWS][VECTOR];
            read_rows(run.p + at, rows, stride, [&](int r, int v) -> real & { return p[r][v]; });
            read_rows(run.worth + at, rows, stride, [&](int r, int v) -> real & { return worth[r][v]; });
            if (BY_GRADIENT) gradient_of(run, layer, row, column, gradient);
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int v = 0; v < VECTOR; v++) {
                    const real now = BY_GRADIENT ? magnitude(p[r][v]) * magnitude(gradient[r][v]) : magnitude(p[r][v]);
                    if (now <= LARGEST) worth[r][v] = now + run.reinit_decay * (worth[r][v] - now);
                }
            write_rows(run.worth + at, rows, stride, [&](int r, int v) { return worth[r][v]; });
        });
    sync();
}

// Calls `each(value)` for this thread's part of the utilities of a matrix.
template <class Each> __device__ __forceinline__ void over_worth(const Run &run, int layer, Each each) {
    over_tiles(run, layer, [&](int row, int column) {
        real worth[ROWS][VECTOR];
        read_rows(run.worth + WEIGHT[layer] + i64(row) * STRIDE[layer] + column, INPUTS[layer] - row, STRIDE[layer], [&](int r, int v) -> real & { return worth[r][v]; });
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < VECTOR; v++)
                if (row + r < INPUTS[layer] && column + v < OUTPUTS[layer]) each(worth[r][v]);
    });
}

// The largest utility that is redrawn (-1: none), and how many of those that have exactly this one.
__device__ __forceinline__ double limit_of(const Run &run, int layer, double amount, int &ties) {
    const double many = double(INPUTS[layer]) * OUTPUTS[layer];
    double total = 0;
    real most = 0;
    over_worth(run, layer, [&](real value) { total += double(value), most = value > most ? value : most; });
    total = block_sum(run, total);
    most = block_max(run, most);
    ties = int(many);
    if (!PROPORTIONAL) return __dmul_rn(amount, total / many);
    const double expected = __dmul_rn(amount, many);
    double wanted = floor(expected);
    wanted += unit(philox(run.seed, 0u, run.now, PURPOSE[3 * LAYERS + layer], 0u).w[0]) < expected - wanted ? 1.0 : 0.0;
    ties = 0;
    if (wanted < 1.0) return -1.0;
    // The bits of numbers from 0 on are in the order of the numbers: the limit is found by halving the range of bits.
    bits_type low = -1, high = bits_of(most);
    double below = 0;
    while (high - low > 1) {
        const bits_type middle = low + (high - low) / 2;
        const real limit = number_of(middle);
        int found = 0;
        over_worth(run, layer, [&](real value) { found += value <= limit; });
        found = block_sum(run, found);
        if (double(found) >= wanted) high = middle;
        else low = middle, below = found;
    }
    ties = int(wanted - below);
    return double(number_of(high));
}

// Redraws the weights that are due; of equal ones the first in the order (out, in). All utilities start again.
__device__ __forceinline__ void redraw_weights(const Run &run, const Given &given) {
    const double amount = given.numbers[RATE_REINIT * given.runs + run.number];
    int *ties_of = work<int>(run, TIES_AT), count = 0;
#pragma unroll 1
    for (int layer = 0; layer < LAYERS; layer++) {
        const int inputs = INPUTS[layer], stride = STRIDE[layer], outputs = OUTPUTS[layer];
        const real *worth = run.worth + WEIGHT[layer];
        int ties = 0;
        const double limit = limit_of(run, layer, amount, ties);
        if (limit < 0.0) continue;
        for (int j = run.thread; j < outputs; j += THREADS) {
            int equal = 0;
            for (int i = 0; i < inputs; i++) equal += double(worth[i64(i) * stride + j]) == limit;
            ties_of[j] = equal;
        }
        sync();
        if (run.thread == 0)
            for (int j = 0; j < outputs; j++) {
                const int equal = ties_of[j];
                ties_of[j] = ties, ties = max(0, ties - equal);
            }
        sync();
        for (int j = run.thread; j < outputs; j += THREADS) {
            int left = ties_of[j], block = -1;
            Words words;
            for (int i = 0; i < inputs; i++) {
                const double value = double(worth[i64(i) * stride + j]);
                if (!(value < limit || (value == limit && left > 0))) continue;
                left -= value == limit;
                if (i / 4 != block) block = i / 4, words = philox(run.seed, u32(j), run.now, PURPOSE[2 * LAYERS + layer], u32(block));
                const i64 at = WEIGHT[layer] + i64(i) * stride + j;
                write(run, at, real((unit(words.w[i % 4]) * 2.0 - 1.0) * BOUND[layer]));
                if (COUNTS_WEIGHTS) run.drawn[at] = run.now;
                count++;
            }
        }
        sync();
    }
    count = block_sum(run, count);
    if (run.thread == 0) given.redrawn[run.number] += count;
    for (int i = run.thread; i < PARAMETERS; i += THREADS) run.worth[i] = 0;
    sync();
}
