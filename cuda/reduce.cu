// The library's kernels: `ringtree_reduce_DTYPE` for every element type in `src/dtype.rs`.
//
// A kernel combines element i of every source, in the order of the sources. For a mean, it divides
// the result. It writes the result to element i of the destination. One source without a divisor is
// a copy, and for integers it keeps every bit. The operator and the divisor are arguments, so all
// threads of a launch take the same branches.
//
// The destination may also be a source, at the same address: a thread reads every source of its
// elements before it writes them, and no other thread reads or writes them. The caller must not
// pass buffers that overlap in any other way.
//
// A reduction mostly waits for memory. So a thread loads a vector of 16 bytes from each of
// four sources before it combines any of them. Vectors require buffers with equal offsets within 16
// bytes. The elements before the first vector and after the last one are processed one by one, as
// is everything in buffers with different offsets. If an address is not a multiple of the element
// size, elements are processed byte by byte.
#ifdef __CUDACC__
#include "device.cuh"
#else
#include "host_shim.h"
#endif

#include "number.cuh"

enum : u32 { SOURCES_MAX = 64 };

// Positions in the table of `src/op.rs`. A mean is a sum with a divisor.
enum : u32 { PROD = 1, MIN = 2, MAX = 3, BAND = 5, BOR = 6, BXOR = 7 };

// Same layout as in `src/sys/cuda/launch.rs`.
struct Arguments {
    u64 sources[SOURCES_MAX];
    u64 destination;
    u64 elements;
    u32 source_count;
    u32 op;
    // 1 means no division.
    u32 divisor;
    // Size of the widest access that all addresses allow: 16 bytes, an element, or less.
    u32 access_bytes;
};

// A piece is the unit that a thread reads or writes with one offset.
template <class Numbers> struct Vector {
    using Word = typename Numbers::Word;
    enum : int { BYTES = 16, WORDS = BYTES / sizeof(Word) };
    DEVICE void load(u64 address, Word (&words)[WORDS]) { Access<BYTES>::load(address, words); }
    DEVICE void store(u64 address, const Word (&words)[WORDS]) {
        Access<BYTES>::store(address, words);
    }
};

template <class Numbers> struct Element {
    using Word = typename Numbers::Word;
    enum : int { BYTES = Numbers::SIZE, WORDS = 1 };
    DEVICE void load(u64 address, Word (&words)[WORDS]) { Access<BYTES>::load(address, words[0]); }
    DEVICE void store(u64 address, const Word (&words)[WORDS]) {
        Access<BYTES>::store(address, words[0]);
    }
};

template <class Numbers> struct ElementOfBytes {
    using Word = typename Numbers::Word;
    enum : int { BYTES = Numbers::SIZE, WORDS = 1 };
    DEVICE void load(u64 address, Word (&words)[WORDS]) {
        words[0] = 0;
        NOT_UNROLLED for (int byte = 0; byte < BYTES; byte++) {
            u32 bits;
            Access<1>::load(address + byte, bits);
            words[0] |= Word(bits) << (8 * byte);
        }
    }
    DEVICE void store(u64 address, const Word (&words)[WORDS]) {
        NOT_UNROLLED for (int byte = 0; byte < BYTES; byte++) {
            Access<1>::store(address + byte, u32(words[0] >> (8 * byte)) & 0xff);
        }
    }
};

template <class Numbers> struct Reduce {
    using Word = typename Numbers::Word;
    using Wide = typename Numbers::Wide;
    // Number of sources that a thread loads before it combines them.
    enum : u32 { SOURCES = 4 };

    const Arguments &arguments;
    typename Numbers::Divisor divisor;

    METHOD void run() const {
        const u64 bytes = arguments.elements * Numbers::SIZE;
        const u64 thread = thread_index();
        u64 head = 0, tail = 0;
        if (arguments.access_bytes == Vector<Numbers>::BYTES) {
            head = (0 - arguments.destination) % Vector<Numbers>::BYTES;
            head = head < bytes ? head : bytes;
            tail = bytes - (bytes - head) % Vector<Numbers>::BYTES;
            pieces<Vector<Numbers>>(thread, head, tail);
        } else if (arguments.access_bytes < Numbers::SIZE) {
            pieces<ElementOfBytes<Numbers>>(thread, 0, bytes);
            return;
        }
        // The first threads process the head and the last ones the tail, at the same time.
        NOT_UNROLLED for (int side = 0; side < 2; side++) {
            const bool is_head = side == 0;
            pieces<Element<Numbers>>(is_head ? thread : thread_count() - 1 - thread,
                                     is_head ? 0 : tail, is_head ? head : bytes);
        }
    }

  private:
    // Reduces the bytes from `start` to `end`, one piece per thread at a time.
    template <class Piece> METHOD void pieces(u64 thread, u64 start, u64 end) const {
        u64 offset = start + thread * Piece::BYTES;
        NOT_UNROLLED for (; offset < end; offset += thread_count() * Piece::BYTES) {
            piece<Piece>(offset);
        }
    }

    template <class Piece> METHOD void piece(u64 offset) const {
        Wide result[Piece::WORDS];
        u32 source = 0;
        NOT_UNROLLED while (source < arguments.source_count) {
            Word loaded[SOURCES][Piece::WORDS];
            UNROLLED for (u32 next = 0; next < SOURCES; next++) {
                if (source + next < arguments.source_count) {
                    Piece::load(arguments.sources[source + next] + offset, loaded[next]);
                }
            }
            const u32 left = arguments.source_count - source;
            const u32 end = source + (left < SOURCES ? left : SOURCES);
            NOT_UNROLLED for (; source < end; source++) {
                combine(source == 0, result, loaded[0]);
                // Move up the others, because registers cannot be indexed.
                UNROLLED for (u32 next = 1; next < SOURCES; next++) {
                    UNROLLED for (int word = 0; word < Piece::WORDS; word++) {
                        loaded[next - 1][word] = loaded[next][word];
                    }
                }
            }
        }
        if (arguments.divisor > 1) {
            Numbers::divide(result, divisor);
        }
        Word words[Piece::WORDS];
        UNROLLED for (int word = 0; word < Piece::WORDS; word++) {
            words[word] = Numbers::narrow(result[word]);
        }
        Piece::store(arguments.destination + offset, words);
    }

    template <int WORDS>
    METHOD void combine(bool first, Wide (&result)[WORDS], const Word (&words)[WORDS]) const {
        if (first) {
            return each<First>(result, words);
        }
        switch (arguments.op) {
        case PROD:
            return each<Prod>(result, words);
        case MIN:
            return each<Min>(result, words);
        case MAX:
            return each<Max>(result, words);
        }
        if constexpr (Numbers::IS_INTEGER) {
            switch (arguments.op) {
            case BAND:
                return each<Band>(result, words);
            case BOR:
                return each<Bor>(result, words);
            case BXOR:
                return each<Bxor>(result, words);
            }
        }
        each<Sum>(result, words);
    }

    template <class Operation, int WORDS>
    DEVICE void each(Wide (&result)[WORDS], const Word (&words)[WORDS]) {
        UNROLLED for (int word = 0; word < WORDS; word++) {
            const Wide right = Numbers::widen(words[word]);
            result[word] = Numbers::combine(Operation(), result[word], right);
        }
    }
};

template <class Numbers> DEVICE void reduce(const Arguments &arguments) {
    using Divisor = typename Numbers::Divisor;
    const u32 divisor = arguments.divisor;
    Reduce<Numbers>{arguments, divisor > 1 ? Divisor::of(divisor) : Divisor()}.run();
}

#define EVERY_DTYPE(KERNEL_OF)                                                                   \
    KERNEL_OF(i8, Integers<i8>)                                                                  \
    KERNEL_OF(u8, Integers<u8>)                                                                  \
    KERNEL_OF(i16, Integers<i16>)                                                                \
    KERNEL_OF(u16, Integers<u16>)                                                                \
    KERNEL_OF(i32, Integers<i32>)                                                                \
    KERNEL_OF(u32, Integers<u32>)                                                                \
    KERNEL_OF(i64, Integers<i64>)                                                                \
    KERNEL_OF(u64, Integers<u64>)                                                                \
    KERNEL_OF(f16, F16)                                                                          \
    KERNEL_OF(bf16, Bf16)                                                                        \
    KERNEL_OF(f32, F32)                                                                          \
    KERNEL_OF(f64, F64)

#define REDUCE_KERNEL(dtype, Numbers)                                                            \
    KERNEL(ringtree_reduce_##dtype, Arguments) { reduce<Numbers>(arguments); }
EVERY_DTYPE(REDUCE_KERNEL)
