// Enough of CUDA for a host compiler to build the dense kernel's text: a block's threads are threads of the process that
// wait for each other at every barrier, a warp is one thread, blocks run one after the other. Before this: typedef `real`.

#include <atomic>
#include <barrier>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

using std::max;
using std::min;

#define __global__
#define __device__
#define __host__
#define __shared__
#define __forceinline__ inline
#define __restrict__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __trap() abort()
#define CHECKED

struct Place {
    int x;
};
static thread_local Place threadIdx, blockIdx;
static std::unique_ptr<std::barrier<>> at_barrier;

static inline void __syncthreads() {
    if (at_barrier) at_barrier->arrive_and_wait();
}
static inline void __syncwarp() {}
template <class T> static inline T __shfl_xor_sync(unsigned, T x, int) { return x; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
template <class To, class From> static inline To same_bits(From x) {
    To found;
    static_assert(sizeof found == sizeof x);
    memcpy(&found, &x, sizeof x);
    return found;
}
static inline double __longlong_as_double(long long x) { return same_bits<double>(x); }
static inline long long __double_as_longlong(double x) { return same_bits<long long>(x); }
static inline float __int_as_float(int x) { return same_bits<float>(x); }
static inline int __float_as_int(float x) { return same_bits<int>(x); }
static inline float __uint_as_float(unsigned x) { return same_bits<float>(x); }
static inline float quick_log2(float x) { return log2f(x); }
static inline float quick_root(float x) { return sqrtf(x); }
static inline float quick_sine(float x) { return sinf(x); }
static inline float quick_cosine(float x) { return cosf(x); }

template <class T, int MANY> static inline void put(T *to, const T (&v)[MANY]) { memcpy(to, v, sizeof v); }
template <class T> static inline T *global(T *address) { return address; }

constexpr int WARP = 1, LANES = 1, TILE_ROOM = 8;
alignas(16) unsigned char memory[1 << 20];
