// What only a GPU has, and tests on the host replace (tests/support/cuda_on_host.h): whole vectors stored at once, which
// the compiler does not see by itself here, and the promise that an address is one of global memory.

constexpr int WARP = 32, LANES = 8;

__device__ __forceinline__ void put(float *to, const float (&v)[4]) {
    asm volatile("st.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]) : "memory");
}

__device__ __forceinline__ void put(double *to, const double (&v)[2]) {
    asm volatile("st.v2.f64 [%0], {%1, %2};" ::"l"(to), "d"(v[0]), "d"(v[1]) : "memory");
}

template <class T> __device__ __forceinline__ T *global(T *address) {
    __builtin_assume(__isGlobal(address));
    return address;
}
