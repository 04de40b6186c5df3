// A weight matrix as the threads of a block see it: who reads which part of a row, where it lies, and how rows are fetched.
//
// A row of a matrix is read by LANES threads, DEEP chunks of 16 bytes each; GROUPS rows are read side by side, and each
// group has several rows under way.

template <int L> struct Matrix {
    static constexpr bool BY_ROWS = BLOCKS > 1 && L == LAST;
    static constexpr bool INSIDE = MATRIX_AT[L] >= 0;
    static constexpr int COLUMNS = OWN[L];
    static constexpr int PITCH = INSIDE ? COLUMNS : STRIDE[L];
    static constexpr int CHUNKS = COLUMNS / VECTOR;
    static constexpr int LANES = CHUNKS > 16 ? 32 : CHUNKS > 8 ? 16 : CHUNKS > 4 ? 8 : CHUNKS > 2 ? 4 : CHUNKS;
    static constexpr int DEEP = CHUNKS <= LANES ? 1 : CHUNKS <= 2 * LANES ? 2 : CHUNKS <= 3 * LANES ? 3 : 4;
    static constexpr int TILE = LANES * DEEP * VECTOR;  // columns of one pass
    static constexpr int TILES = (COLUMNS + TILE - 1) / TILE;
    static constexpr bool DIRECT = (BLOCKS == 1 || BY_ROWS) && TILES == 1;  // one sum is the whole gradient of an input
    static constexpr int GROUPS = THREADS / LANES;
    static constexpr int MOST = BY_ROWS ? OWN[L > 0 ? L - 1 : 0] : INPUTS[L];
    static constexpr int EACH = (MOST + GROUPS - 1) / GROUPS;
    static constexpr int BUSY = MOST > 16 ? 32 : MOST > 8 ? 16 : MOST > 4 ? 8 : MOST > 2 ? 4 : MOST;
    static constexpr int SPAN = least(32, LANES * BUSY);  // lanes of a warp that ever have a row
    // Rows under way in each group: in registers, or STAGES batches of them on their way to a ring in shared memory.
    static constexpr bool RINGED = STAGES > 0 && !INSIDE && MOMENTS == 0;
    static constexpr int ROWS_FORWARD = RINGED ? 1 : least(EACH, most(1, IN_FLIGHT / DEEP));
    static constexpr int ROWS_BACK = RINGED ? 1 : least(EACH, most(1, IN_FLIGHT / DEEP / (1 + MOMENTS)));
};

template <int L> __device__ __forceinline__ int own_rows(const Run &run) {
    if constexpr (Matrix<L>::BY_ROWS) return own_units<L - 1>(run);
    else return INPUTS[L];
}

template <int L> __device__ __forceinline__ int first_row(const Run &run) {
    if constexpr (Matrix<L>::BY_ROWS) return first_unit<L - 1>(run);
    else return 0;
}

// Element (0, first own column) of a matrix, or of one of its moments.
template <int L, int KIND = 0> __device__ __forceinline__ real *matrix(const Run &run) {
    if constexpr (Matrix<L>::INSIDE)
        return workspace<real>(run, MATRIX_AT[L] + KIND * INPUTS[L] * OWN[L] * int(sizeof(real)));
    real *from = KIND == 0 ? run.p : KIND == 1 ? run.first : run.second;
    return from + WEIGHT[L] + first_unit<L>(run);
}

template <int L> __device__ __forceinline__ row_index *row_list(const Run &run) {
    return workspace<row_index>(run, ROW_AT[L]) + (L == 0 ? run.parity * INPUTS[0] : 0);
}

template <int L> __device__ __forceinline__ real *value_list(const Run &run) {
    return workspace<real>(run, VALUE_AT[L]) + (L == 0 ? run.parity * INPUTS[0] : 0);
}

// Adds up over the groups of the block what each thread has for the columns of a tile, and hands out the totals.
template <int L, class Function>
__device__ __forceinline__ void over_groups(const Run &run, int tile, real (&sum)[Matrix<L>::DEEP][VECTOR], Function take) {
    using M = Matrix<L>;
    int lane = run.thread % M::LANES, warp = run.thread / 32;
    real *partial = workspace<real>(run, PARTIAL_AT);
    constexpr bool ALONE = WARPS == 1 && VECTOR == 1;  // every thread already has the totals of its own columns
#pragma unroll
    for (int d = 0; d < M::DEEP; d++) {
        Chunk chunk;
#pragma unroll
        for (int v = 0; v < VECTOR; v++) {
            real x = sum[d][v];
#pragma unroll
            for (int offset = M::LANES; offset < M::SPAN; offset *= 2) x += __shfl_xor_sync(ALL, x, offset);
            chunk.v[v] = x;
        }
        int column = (tile * M::DEEP + d) * M::LANES + lane;
        if (ALONE && run.thread < M::LANES && column < M::COLUMNS) take(column, chunk.v[0]);
        if (!ALONE && run.thread % 32 < M::LANES)
            *reinterpret_cast<Chunk *>(partial + warp * M::TILE + (d * M::LANES + lane) * VECTOR) = chunk;
    }
    if constexpr (ALONE) return;
    sync_block();
    int columns = min(M::TILE, M::COLUMNS - tile * M::TILE);
    for (int column = run.thread; column < columns; column += THREADS) {
        real total = partial[column];
#pragma unroll
        for (int w = 1; w < WARPS; w++) total += partial[w * M::TILE + column];
        take(tile * M::TILE + column, total);
    }
}

// Rows of a matrix on their way to this thread: `begin`, then `row` for one after the other.
template <int L> struct Ring {
    using M = Matrix<L>;
    const Run &run;
    const real *weights;
    int tile, stage = 0;

    __device__ __forceinline__ Ring(const Run &run, const real *weights, int tile) : run(run), weights(weights), tile(tile) {}

    __device__ __forceinline__ Chunk *slot(int stage, int d) const {
        return workspace<Chunk>(run, PARTIAL_AT) + (stage * M::DEEP + d) * THREADS + run.thread;
    }

    // Asks for a row (-1: zeros); `any`: whether any thread of the block asks for one.
    __device__ __forceinline__ void ask(int row, bool any, int ahead) {
        int to = stage + ahead < STAGES ? stage + ahead : stage + ahead - STAGES;
        if (any)
#pragma unroll
            for (int d = 0; d < M::DEEP; d++) {
                int chunk = (tile * M::DEEP + d) * M::LANES + run.thread % M::LANES;
                bool wanted = row >= 0 && chunk < M::CHUNKS;
                copy_ahead(slot(to, d), weights + (wanted ? row * M::PITCH + chunk * VECTOR : 0), wanted);
            }
        end_batch();
    }

    __device__ __forceinline__ void take(Chunk (&w)[M::DEEP]) {
        copies_left<STAGES - 1>();
#pragma unroll
        for (int d = 0; d < M::DEEP; d++) w[d] = *slot(stage, d);
        stage = stage + 1 < STAGES ? stage + 1 : 0;
    }
};
