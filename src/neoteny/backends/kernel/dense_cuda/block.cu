// A block of threads trains one run: where its numbers lie, and what its threads do together.
//
// What stands before this file is written by source.py for one learner: its options, its layout (see dense/pack.py) and
// the places *_AT of its working memory, in shared memory from the front, else as -1 - place in `outside`.

constexpr int VECTOR = 16 / sizeof(real);  // columns that a thread reads at once
constexpr int ROWS = 4;                    // rows of a tile: one word of a draw each
constexpr int GROUPS = 16;                 // most groups of threads that share the rows of a column

extern __shared__ __align__(16) unsigned char memory[];

// What a wrong place does: with CHECKED it is told and the kernel stops.
#ifdef CHECKED
#define check(good, what)                                                                        \
    if (!(good)) {                                                                               \
        printf("dense CUDA kernel: %s (block %d, thread %d)\n", what, int(blockIdx.x), int(threadIdx.x)); \
        __trap();                                                                                \
    }
#else
#define check(good, what)
#endif

struct alignas(16) Chunk {
    real v[VECTOR];
};

// Everything a thread knows about its run.
struct Run {
    int number, thread, warp, lane;
    int now;  // updates so far, this one included
    u64 seed;
    real *p, *first, *second, *anchor, *slow, *worth;
    i64 *drawn;
    unsigned char *outside;
    real step_size, momentum, l2, pull, keep, noise_std, step_noise_std, share, decay, reinit_decay;
    double clip;
    bool copies;       // at this update the slow weights are copied
    real old1, old2;   // Adam's corrections for what was never reset
    real inverse;      // of UPGD's largest utility
};

__device__ __forceinline__ real rate(const Given &given, int which, int run) { return real(given.numbers[which * given.runs + run]); }

template <class T> __device__ __forceinline__ T *work(const Run &run, int place) {
    if (OUTSIDE_BYTES == 0 || place >= 0) return reinterpret_cast<T *>(memory + place);
    return reinterpret_cast<T *>(run.outside + (-1 - place));
}

__device__ __forceinline__ Chunk chunk(const real *from) { return *reinterpret_cast<const Chunk *>(from); }
__device__ __forceinline__ int pitch(int layer) { return STRIDE[layer] + VECTOR; }  // of rows per example: other banks
__device__ __forceinline__ void sync() { __syncthreads(); }

// The sum over the block, for all threads, always added up in the same order.
template <class T> __device__ __forceinline__ T block_sum(const Run &run, T x) {
    x = lane_sum<WARP>(x);
    T *scratch = work<T>(run, SCRATCH_AT);
    sync();
    if (run.lane == 0) scratch[run.warp] = x;
    sync();
    T total = 0;
    for (int warp = 0; warp < THREADS / WARP; warp++) total += scratch[warp];
    return total;
}

__device__ __forceinline__ real block_max(const Run &run, real x) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        real other = __shfl_xor_sync(ALL, x, offset);
        x = other > x ? other : x;
    }
    real *scratch = work<real>(run, SCRATCH_AT);
    sync();
    if (run.lane == 0) scratch[run.warp] = x;
    sync();
    for (int warp = 0; warp < THREADS / WARP; warp++) x = scratch[warp] > x ? scratch[warp] : x;
    return x;
}

// The index of the smallest value of the block, ties to the lower index.
__device__ __forceinline__ int block_lowest(const Run &run, real x, int i) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        real other = __shfl_xor_sync(ALL, x, offset);
        int j = __shfl_xor_sync(ALL, i, offset);
        if (other < x || (other == x && j < i)) x = other, i = j;
    }
    real *values = work<real>(run, SCRATCH_AT);
    int *places = work<int>(run, SCRATCH_AT) + 4 * 32;
    sync();
    if (run.lane == 0) values[run.warp] = x, places[run.warp] = i;
    sync();
    for (int warp = 0; warp < THREADS / WARP; warp++)
        if (values[warp] < x || (values[warp] == x && places[warp] < i)) x = values[warp], i = places[warp];
    return i;
}

// Calls `each(row, column)` for every tile of a matrix, ROWS x VECTOR elements; then, for every column of tiles and by all
// threads together, `done(column, group, groups)`, with group -1 where a thread had none.
template <class Each, class Done> __device__ __forceinline__ void over_tiles(const Run &run, int layer, Each each, Done done) {
    const int chunks = STRIDE[layer] / VECTOR, width = min(chunks, THREADS), groups = min(THREADS / width, GROUPS);
    const int group = run.thread / width, inputs = INPUTS[layer];
    for (int base = 0; base < chunks; base += width) {
        const int place = base + run.thread % width, column = place * VECTOR;
        const bool mine = group < groups && place < chunks;
        if (mine) {
#pragma unroll 1
            for (int row = ROWS * group; row < inputs; row += ROWS * groups) each(row, column);
        }
        done(column, mine ? group : -1, groups);
    }
}

template <class Each> __device__ __forceinline__ void over_tiles(const Run &run, int layer, Each each) {
    over_tiles(run, layer, each, [](int, int, int) {});
}

// Adds up the groups' sums of a column, one group after the other. For all threads together.
__device__ __forceinline__ void take_turns(real *out, real (&sum)[VECTOR], int column, int group, int groups) {
    for (int turn = 0; turn < groups; turn++) {
        if (group == turn) {
#pragma unroll
            for (int v = 0; v < VECTOR; v++) {
                out[column + v] = turn == 0 ? sum[v] : out[column + v] + sum[v];
                sum[v] = 0;
            }
        }
        sync();
    }
}
