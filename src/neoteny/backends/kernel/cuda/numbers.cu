// Numbers and draws, the same in every CUDA kernel: their types, limits and functions, sums over lanes, Philox.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

constexpr real LARGEST = sizeof(real) == 8 ? real(1.7976931348623157e308) : real(3.402823466e38);
constexpr real TINY = sizeof(real) == 8 ? real(2.2250738585072014e-308) : real(1.175494351e-38);
constexpr u32 ALL = 0xFFFFFFFFu;

__device__ __forceinline__ float magnitude(float x) { return fabsf(x); }
__device__ __forceinline__ double magnitude(double x) { return fabs(x); }
__device__ __forceinline__ float root(float x) { return sqrtf(x); }
__device__ __forceinline__ double root(double x) { return sqrt(x); }
__device__ __forceinline__ float exponential(float x) { return expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }
__device__ __forceinline__ real infinite() {
    return sizeof(real) == 8 ? real(__longlong_as_double(0x7FF0000000000000LL)) : real(__int_as_float(0x7F800000));
}

template <int WIDTH, class T> __device__ __forceinline__ T lane_sum(T x) {
#pragma unroll
    for (int offset = WIDTH / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(ALL, x, offset);
    return x;
}

struct Words {
    u32 w[4];
};

// Philox4x32-10 with the counters and keys of draws.rng, whose ten rounds stand here when this is compiled.
__device__ __forceinline__ Words philox(u64 seed, u32 row, int step, u32 purpose, u32 block) {
    u32 c0 = block, c1 = row, c2 = u32(step), c3 = purpose, k0 = u32(seed), k1 = u32(seed >> 32);
#pragma unroll
    PHILOX_ROUNDS
    return {c0, c1, c2, c3};
}

__device__ __forceinline__ double unit(u32 word) { return (double(word) + 0.5) * 2.3283064365386963e-10; }

// What the hardware computes in one operation, to some 22 bits. Tests on the host bring functions of their own.
#ifdef __CUDA_ARCH__
__device__ __forceinline__ float quick_log2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float quick_root(float x) {
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float quick_sine(float x) {
    float y;
    asm("sin.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float quick_cosine(float x) {
    float y;
    asm("cos.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

// A pair of normal numbers from a pair of words. In float32 they are noise to some 1e-6: the logarithm may come out
// above 0 where it is nearest to it, so its sign is dropped; as a signed number, a word is an angle in half turns.
__device__ __forceinline__ void box_muller(u32 a, u32 b, real &x, real &y) {
    if constexpr (sizeof(real) == 8) {
        double radius = sqrt(-2.0 * log(unit(a))), angle = 6.283185307179586 * unit(b);
        x = radius * cos(angle), y = radius * sin(angle);
    } else {
        float share = fmaf(float(a), 2.3283064365386963e-10f, 1.1641532182693481e-10f);
        float radius = quick_root(1.3862943611198906f * fabsf(quick_log2(share)));
        float angle = float(int(b)) * 1.4629180792671596e-9f;
        x = radius * quick_cosine(angle), y = radius * quick_sine(angle);
    }
}
