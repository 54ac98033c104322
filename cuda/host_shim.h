// The CPU counterpart of `device.cuh`, for tests.
//
// A kernel is a function, and its threads are calls of it, one after another. Every access is
// checked: its address must be a multiple of its width, and it must be completely inside a buffer
// of the launch.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using i8 = int8_t;
using i16 = int16_t;
using i32 = int32_t;
using i64 = int64_t;

#define DEVICE static inline
#define METHOD inline
#define UNROLLED
#define NOT_UNROLLED
#define KERNEL(name, Arguments) static void name(const Arguments &arguments)

struct Range {
    u64 start;
    u64 end;
};

// The simulated launch, and its effects on memory.
struct Launch {
    u64 threads;
    u64 thread;
    std::vector<Range> readable;
    std::vector<Range> writable;
    // Bytes that the kernel accessed 16 at a time, and all bytes that it read and wrote.
    u64 bytes_by_vector;
    u64 bytes_read;
    u64 bytes_written;
};

static Launch launch;

DEVICE u64 thread_index() { return launch.thread; }
DEVICE u64 thread_count() { return launch.threads; }

DEVICE void check_access(u64 address, u64 bytes, const std::vector<Range> &ranges, const char *what) {
    bool inside = false;
    for (const Range &range : ranges) {
        inside = inside || (range.start <= address && address + bytes <= range.end);
    }
    if (!inside || address % bytes != 0) {
        const char *reason = inside ? "misaligned" : "outside of the buffers";
        std::fprintf(stderr, "a %s of %u bytes %s\n", what, unsigned(bytes), reason);
        std::exit(1);
    }
    launch.bytes_by_vector += bytes == 16 ? bytes : 0;
}

template <int BYTES> struct Access {
    template <class Words> static void load(u64 address, Words &words) {
        static_assert(BYTES <= sizeof(Words), "the words must have space for the loaded bytes");
        check_access(address, BYTES, launch.readable, "read");
        launch.bytes_read += BYTES;
        std::memset(&words, 0, sizeof(words));
        std::memcpy(&words, reinterpret_cast<const void *>(address), BYTES);
    }
    template <class Words> static void store(u64 address, const Words &words) {
        static_assert(BYTES <= sizeof(Words), "the words must contain the stored bytes");
        check_access(address, BYTES, launch.writable, "write");
        launch.bytes_written += BYTES;
        std::memcpy(reinterpret_cast<void *>(address), &words, BYTES);
    }
};

template <class To, class From> DEVICE To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "both types must have the same size");
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}

DEVICE u32 bits_of(float value) { return same_bits<u32>(value); }
DEVICE u64 bits_of(double value) { return same_bits<u64>(value); }
DEVICE float float_of(u32 bits) { return same_bits<float>(bits); }
DEVICE double float_of(u64 bits) { return same_bits<double>(bits); }

DEVICE u64 high_product(u64 left, u64 right) {
    return u64((static_cast<unsigned __int128>(left) * right) >> 64);
}

// Returns `value` without its lowest `places` bits, rounded to nearest, ties to even.
DEVICE u32 round_off(u32 value, u32 places) {
    const u32 below = value & ((u32(1) << places) - 1);
    const u32 half = u32(1) << (places - 1);
    const u32 kept = value >> places;
    return kept + (below > half || (below == half && kept % 2 == 1) ? 1 : 0);
}

DEVICE float widen_f16(u16 bits) {
    const u32 sign = u32(bits & 0x8000) << 16;
    const u32 exponent = bits >> 10 & 0x1f;
    const u32 mantissa = bits & 0x3ff;
    if (exponent == 0) {
        const float magnitude = float(mantissa) * float_of(u32(127 - 24) << 23);
        return float_of(bits_of(magnitude) | sign);
    }
    const u32 wide_exponent = exponent == 0x1f ? 0xff : exponent + 127 - 15;
    return float_of(sign | wide_exponent << 23 | mantissa << 13);
}

DEVICE u32 narrow_one_f16(float value) {
    const u32 sign = bits_of(value) >> 16 & 0x8000;
    const u32 magnitude = bits_of(value) & 0x7fffffff;
    // From half a place above the largest f16 on, every value becomes infinite.
    if (magnitude >= 0x477ff000) {
        return sign | 0x7c00;
    }
    const u32 exponent = magnitude >> 23;
    if (exponent >= 127 - 14) {
        return sign | (round_off(magnitude, 13) - (u32(127 - 15) << 10));
    }
    // A subnormal f16 counts units of 2⁻²⁴. A value below half a unit has nothing to shift.
    if (exponent < 127 - 25) {
        return sign;
    }
    const u32 significand = (magnitude & 0x7fffff) | 0x800000;
    return sign | round_off(significand, 23 - 24 + 127 - exponent);
}

DEVICE u32 narrow_one_bf16(float value) { return round_off(bits_of(value), 16) & 0xffff; }

DEVICE u32 narrow_f16(float low, float high) {
    return narrow_one_f16(low) | narrow_one_f16(high) << 16;
}

DEVICE u32 narrow_bf16(float low, float high) {
    return narrow_one_bf16(low) | narrow_one_bf16(high) << 16;
}
