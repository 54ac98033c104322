// GPU-specific code of the kernels: memory accesses, thread index, and float conversions.
// `host_shim.h` has the same functions for a CPU, so that tests run the same loops.
//
// Every access specifies its width and global memory, and is volatile. So the compiler keeps the
// order of accesses, which makes a destination that is also a source sound.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long long;

#define DEVICE static __device__ __forceinline__
#define METHOD __device__ __forceinline__
#define UNROLLED _Pragma("unroll")
#define NOT_UNROLLED _Pragma("unroll 1")

// A multiprocessor runs five blocks of 256 threads at the same time. Its 65,536 registers give each
// thread 51. They are allocated in multiples of eight, so 48.
#define KERNEL(name, Arguments)                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 5)                                         \
        name(const __grid_constant__ Arguments arguments)

DEVICE u64 thread_index() { return u64(blockIdx.x) * blockDim.x + threadIdx.x; }
DEVICE u64 thread_count() { return u64(gridDim.x) * blockDim.x; }

template <int BYTES> struct Access;

template <> struct Access<1> {
    DEVICE void load(u64 address, u32 &word) {
        asm volatile("ld.global.u8 %0, [%1];" : "=r"(word) : "l"(address));
    }
    DEVICE void store(u64 address, u32 word) {
        asm volatile("st.global.u8 [%0], %1;" : : "l"(address), "r"(word));
    }
};

template <> struct Access<2> {
    DEVICE void load(u64 address, u32 &word) {
        asm volatile("ld.global.u16 %0, [%1];" : "=r"(word) : "l"(address));
    }
    DEVICE void store(u64 address, u32 word) {
        asm volatile("st.global.u16 [%0], %1;" : : "l"(address), "r"(word));
    }
};

template <> struct Access<4> {
    DEVICE void load(u64 address, u32 &word) {
        asm volatile("ld.global.u32 %0, [%1];" : "=r"(word) : "l"(address));
    }
    DEVICE void store(u64 address, u32 word) {
        asm volatile("st.global.u32 [%0], %1;" : : "l"(address), "r"(word));
    }
};

template <> struct Access<8> {
    DEVICE void load(u64 address, u64 &word) {
        asm volatile("ld.global.u64 %0, [%1];" : "=l"(word) : "l"(address));
    }
    DEVICE void store(u64 address, u64 word) {
        asm volatile("st.global.u64 [%0], %1;" : : "l"(address), "l"(word));
    }
};

template <> struct Access<16> {
    DEVICE void load(u64 address, u32 (&words)[4]) {
        asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "l"(address));
    }
    DEVICE void store(u64 address, const u32 (&words)[4]) {
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                     :
                     : "l"(address), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]));
    }
    DEVICE void load(u64 address, u64 (&words)[2]) {
        asm volatile("ld.global.v2.u64 {%0, %1}, [%2];"
                     : "=l"(words[0]), "=l"(words[1])
                     : "l"(address));
    }
    DEVICE void store(u64 address, const u64 (&words)[2]) {
        asm volatile("st.global.v2.u64 [%0], {%1, %2};"
                     :
                     : "l"(address), "l"(words[0]), "l"(words[1]));
    }
};

DEVICE u32 bits_of(float value) { return __float_as_uint(value); }
DEVICE u64 bits_of(double value) { return u64(__double_as_longlong(value)); }
DEVICE float float_of(u32 bits) { return __uint_as_float(bits); }
DEVICE double float_of(u64 bits) { return __longlong_as_double(i64(bits)); }

// Returns the upper half of the product.
DEVICE u64 high_product(u64 left, u64 right) { return __umul64hi(left, right); }

// Returns the exact value of an f16.
DEVICE float widen_f16(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// Returns the nearest f16 of each value, ties to even. The result of a NaN is unspecified.
DEVICE u32 narrow_f16(float low, float high) {
    u32 word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

// Like `narrow_f16`, with bf16 instead of f16.
DEVICE u32 narrow_bf16(float low, float high) {
    u32 word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
