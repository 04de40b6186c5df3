// A team of threads trains one run: a warp (tiny networks), a block, or a cluster of blocks (large ones).
//
// What stands before this file is written by source.py for one learner: its options, its layout (see pack.Layout) and
// the offsets *_AT of every array on the "workspace", a block's working memory, in shared memory where it fits. The blocks of
// a cluster own the units of each hidden layer in equal parts, and with them the columns of the matrix that leads to
// them; of the last matrix they own rows. What they tell each other goes through `exchange`, global memory of the run.

constexpr int VECTOR = THREADS == 32 ? 1 : 16 / sizeof(real);  // a warp's networks are too narrow for vectors
constexpr int LAST = LAYERS - 1;
constexpr int WARPS = THREADS / 32;
constexpr bool MOMENTUM = OPTIMIZER == 1;
constexpr bool ADAM = OPTIMIZER == 2;
constexpr int MOMENTS = OPTIMIZER;
constexpr bool SUMS_LATE = NOISE && NOISE_FIRST;  // the sums follow the noise, which follows the update
constexpr bool LAZY = SHRINK && !DENSE;

extern __shared__ __align__(16) unsigned char memory[];

__host__ __device__ constexpr int least(int a, int b) { return a < b ? a : b; }
__host__ __device__ constexpr int most(int a, int b) { return a > b ? a : b; }

struct alignas(VECTOR * sizeof(real)) Chunk {
    real v[VECTOR];
};

// Everything a thread knows about its run.
struct Run {
    int thread, team, rank;
    unsigned char *workspace;  // only if the workspace is not in shared memory
    unsigned char *exchange;
    real *p, *first, *second;
    u64 seed;
    real step_size, momentum, shrink, noise_std, decay;
    double keep, exact[LAYERS]; // a factor of 1 - 1e-8 a step is none in float32, so the lazy scales are kept in double
    double rate;
    int threshold;
    int now;     // updates so packed, this one included
    int parity;  // of the update: which half of a double buffer is in use
    int count[LAYERS];
    real scale[LAYERS];
    real before;  // the lazy scale of a matrix before its update
    real step_scale, root_scale;  // Adam's corrections for what was never reset
    double power1, power2;
    double due[LAYERS];
    int eligible[LAYERS], next_mature[LAYERS];
    int released;  // units replaced since the sums of |w| were last taken from the weights
    const i64 *dropout_seed;
};

template <class T> __device__ __forceinline__ T *workspace(const Run &run, int offset) {
    if constexpr (WORKSPACE_INSIDE) return reinterpret_cast<T *>(memory + run.team * WORKSPACE_BYTES + offset);
    else return reinterpret_cast<T *>(run.workspace + offset);
}

template <class T> __device__ __forceinline__ T *exchange(const Run &run, int offset) {
    return reinterpret_cast<T *>(run.exchange + offset);
}

// Of a layer's units, those of this block begin here; without a cluster and in the last layer, all are its own.
template <int L> __device__ __forceinline__ int first_unit(const Run &run) {
    if constexpr (BLOCKS == 1 || L == LAST) return 0;
    else return run.rank * OWN[L];
}

template <int L> __device__ __forceinline__ int own_units(const Run &run) {
    if constexpr (BLOCKS == 1 || L == LAST) return OUTPUTS[L];
    else return max(0, min(OWN[L], OUTPUTS[L] - first_unit<L>(run)));
}

// Waits for the team's threads in this block.
__device__ __forceinline__ void sync_block() {
    if constexpr (THREADS == 32) __syncwarp();
    else __syncthreads();
}

// Waits for the whole team; what was written to the exchange before is seen after it.
__device__ __forceinline__ void sync_team() {
    if constexpr (BLOCKS == 1) sync_block();
    else {
        __threadfence();
        asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    }
}

// Copies 16 bytes to shared memory while the thread goes on, or puts zeros there. `copies_left<N>` waits until at most N
// of its batches are under way.
__device__ __forceinline__ void copy_ahead(void *to, const void *from, bool wanted) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(u32(__cvta_generic_to_shared(to))),
                 "l"(__cvta_generic_to_global(from)), "r"(wanted ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void end_batch() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int N> __device__ __forceinline__ void copies_left() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// The sum over the team's threads in this block, for all of them.
template <class T> __device__ __forceinline__ T block_sum(const Run &run, T x) {
    x = lane_sum<32>(x);
    if constexpr (WARPS == 1) return x;
    T *scratch = workspace<T>(run, SCRATCH_AT);
    sync_block();
    if (run.thread % 32 == 0) scratch[run.thread / 32] = x;
    sync_block();
    T total = 0;
    for (int warp = 0; warp < WARPS; warp++) total += scratch[warp];
    return total;
}

// The sum over the whole team; `slot`, 0 or 1, must differ from the call before.
__device__ __forceinline__ real team_sum(const Run &run, real x, int slot) {
    x = block_sum(run, x);
    if constexpr (BLOCKS == 1) return x;
    real *exchanged = exchange<real>(run, TEAM_SUM_AT) + slot * BLOCKS;
    if (run.thread == 0) __stcg(exchanged + run.rank, x);
    sync_team();
    real total = 0;
    for (int rank = 0; rank < BLOCKS; rank++) total += __ldcg(exchanged + rank);
    return total;
}

// The place of the smallest of a block's values (x of index i for each thread), ties to the lower index.
__device__ __forceinline__ int block_lowest(const Run &run, real x, int i) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        real other = __shfl_xor_sync(ALL, x, offset);
        int j = __shfl_xor_sync(ALL, i, offset);
        if (other < x || (other == x && j < i)) x = other, i = j;
    }
    if constexpr (WARPS == 1) return i;
    real *values = workspace<real>(run, SCRATCH_AT);
    int *places = workspace<int>(run, SCRATCH_AT) + 64;
    sync_block();
    if (run.thread % 32 == 0) values[run.thread / 32] = x, places[run.thread / 32] = i;
    sync_block();
    x = values[0], i = places[0];
    for (int warp = 1; warp < WARPS; warp++)
        if (values[warp] < x || (values[warp] == x && places[warp] < i)) x = values[warp], i = places[warp];
    return i;
}
