// The fold: every destination's element i = the left fold of the sources' elements i, in order.
//
// One source is a copy, of integers to the bit. A source may be a destination, at the same address:
// a thread reads all sources of its elements before it writes them, and nobody else touches them.
// Buffers that overlap otherwise are a mistake of the caller's.
//
// Memory is what a fold waits for, so a thread asks for much before it waits: several vectors of
// two sources are under way at any time. Buffers that lie alike in their 16 bytes are moved in
// vectors of 16, but for the elements before the first and after the last tile; others in
// elements; those that do not even lie at multiples of their element in bytes.
#pragma once

// As `src/reduce/gpu.rs` lays them out.
enum : u32 { SOURCES_MAX = 64, DESTINATIONS_MAX = 8 };

struct FoldArguments {
    u64 sources[SOURCES_MAX];
    u64 destinations[DESTINATIONS_MAX];
    u64 elements;
    u32 source_count;
    u32 destination_count;
    // At least 2; read by the kernels of a mean alone.
    u32 divisor;
    u32 unused;
};

enum : u64 { VECTOR_BYTES = 16 };

// How a thread reads and writes one piece of a buffer, as words.
template <class Numbers> struct ByVector {
    using Word = typename Numbers::Word;
    enum : int { BYTES = VECTOR_BYTES, WORDS = BYTES / sizeof(Word) };
    DEVICE void load(u64 address, Word (&words)[WORDS]) { Access<BYTES>::load(address, words); }
    DEVICE void store(u64 address, const Word (&words)[WORDS]) {
        Access<BYTES>::store(address, words);
    }
};

template <class Numbers> struct ByElement {
    using Word = typename Numbers::Word;
    enum : int { BYTES = Numbers::SIZE, WORDS = 1 };
    DEVICE void load(u64 address, Word (&words)[WORDS]) { Access<BYTES>::load(address, words[0]); }
    DEVICE void store(u64 address, const Word (&words)[WORDS]) {
        Access<BYTES>::store(address, words[0]);
    }
};

template <class Numbers> struct ByByte {
    using Word = typename Numbers::Word;
    enum : int { BYTES = Numbers::SIZE, WORDS = 1 };
    DEVICE void load(u64 address, Word (&words)[WORDS]) {
        words[0] = 0;
        UNROLLED for (int byte = 0; byte < BYTES; byte++) {
            u32 bits;
            Access<1>::load(address + byte, bits);
            words[0] |= Word(bits) << (8 * byte);
        }
    }
    DEVICE void store(u64 address, const Word (&words)[WORDS]) {
        UNROLLED for (int byte = 0; byte < BYTES; byte++) {
            Access<1>::store(address + byte, u32(words[0] >> (8 * byte)) & 0xff);
        }
    }
};

// The loops of one kernel.
template <class Numbers, class Operation, bool DIVIDES> struct Fold {
    using Word = typename Numbers::Word;
    using Wide = typename Numbers::Wide;
    using Divisor = typename Numbers::Divisor;
    enum : u64 { SIZE = Numbers::SIZE };
    // Vectors of a source that a thread asks for at once: as many as 64 registers hold, of two
    // sources and what is computed with.
    enum : int {
        VECTORS = DIVIDES || sizeof(Wide) > sizeof(Word) ? 2 : 4,
        ELEMENTS = 4,
    };

    const FoldArguments &arguments;
    Divisor divisor;

    // Folds the pieces at `offset` and every `stride` bytes after it, `PIECES` in all.
    template <class Piece, int PIECES> METHOD void pieces(u64 offset, u64 stride) const {
        constexpr int WORDS = Piece::WORDS;
        Word first[PIECES][WORDS], next[PIECES][WORDS];
        load<Piece>(first, arguments.sources[0] + offset, stride);
        if (arguments.source_count > 1) {
            load<Piece>(next, arguments.sources[1] + offset, stride);
        }
        Wide folded[PIECES][WORDS];
        UNROLLED for (int piece = 0; piece < PIECES; piece++) {
            UNROLLED for (int word = 0; word < WORDS; word++) {
                folded[piece][word] = Numbers::widen(first[piece][word]);
            }
        }
        NOT_UNROLLED for (u32 source = 1; source < arguments.source_count; source++) {
            Word current[PIECES][WORDS];
            UNROLLED for (int piece = 0; piece < PIECES; piece++) {
                UNROLLED for (int word = 0; word < WORDS; word++) {
                    current[piece][word] = next[piece][word];
                }
            }
            if (source + 1 < arguments.source_count) {
                load<Piece>(next, arguments.sources[source + 1] + offset, stride);
            }
            UNROLLED for (int piece = 0; piece < PIECES; piece++) {
                UNROLLED for (int word = 0; word < WORDS; word++) {
                    folded[piece][word] = Numbers::combine(
                        Operation(), folded[piece][word], Numbers::widen(current[piece][word]));
                }
            }
        }
        UNROLLED for (int piece = 0; piece < PIECES; piece++) {
            if (DIVIDES) {
                Numbers::divide(folded[piece], divisor);
            }
            UNROLLED for (int word = 0; word < WORDS; word++) {
                first[piece][word] = Numbers::narrow(folded[piece][word]);
            }
        }
        NOT_UNROLLED for (u32 index = 0; index < arguments.destination_count; index++) {
            const u64 address = arguments.destinations[index] + offset;
            UNROLLED for (int piece = 0; piece < PIECES; piece++) {
                Piece::store(address + piece * stride, first[piece]);
            }
        }
    }

    template <class Piece, int PIECES>
    METHOD void load(Word (&words)[PIECES][Piece::WORDS], u64 address, u64 stride) const {
        UNROLLED for (int piece = 0; piece < PIECES; piece++) {
            Piece::load(address + piece * stride, words[piece]);
        }
    }

    // Folds whole tiles from the byte `start` on. Neighbouring threads take neighbouring pieces.
    template <class Piece, int PIECES> METHOD void tiles(u64 start, u64 count) const {
        constexpr u64 STRIDE = WARP * Piece::BYTES;
        const u64 lane_offset = start + thread_index() % WARP * Piece::BYTES;
        const u64 step = thread_count() / WARP;
        NOT_UNROLLED for (u64 tile = thread_index() / WARP; tile < count; tile += step) {
            pieces<Piece, PIECES>(lane_offset + tile * PIECES * STRIDE, STRIDE);
        }
    }

    // Folds one element a thread, all but those from `head` to `head + body`.
    template <class Piece> METHOD void elements_around(u64 head, u64 body) const {
        const u64 count = arguments.elements - body;
        NOT_UNROLLED for (u64 index = thread_index(); index < count; index += thread_count()) {
            pieces<Piece, 1>((index < head ? index : index + body) * SIZE, 0);
        }
    }

    // How far apart the buffers lie in their 16 bytes, as bits that differ anywhere.
    METHOD u64 differences() const {
        u64 bits = 0;
        NOT_UNROLLED for (u32 index = 0; index < arguments.source_count; index++) {
            bits |= arguments.sources[index] ^ arguments.sources[0];
        }
        NOT_UNROLLED for (u32 index = 0; index < arguments.destination_count; index++) {
            bits |= arguments.destinations[index] ^ arguments.sources[0];
        }
        return bits;
    }

    METHOD void run() const {
        const u64 apart = differences();
        const u64 beyond = arguments.sources[0] % VECTOR_BYTES;
        const u64 elements = arguments.elements;
        u64 head = 0, body = 0;
        if (apart % VECTOR_BYTES == 0 && beyond % SIZE == 0) {
            constexpr u64 TILE = WARP * VECTORS * VECTOR_BYTES / SIZE;
            head = (VECTOR_BYTES - beyond) % VECTOR_BYTES / SIZE;
            head = head < elements ? head : elements;
            const u64 count = (elements - head) / TILE;
            body = count * TILE;
            tiles<ByVector<Numbers>, VECTORS>(head * SIZE, count);
        } else if ((apart | beyond) % SIZE == 0) {
            constexpr u64 TILE = WARP * ELEMENTS;
            const u64 count = elements / TILE;
            body = count * TILE;
            tiles<ByElement<Numbers>, ELEMENTS>(0, count);
        } else {
            elements_around<ByByte<Numbers>>(0, 0);
            return;
        }
        elements_around<ByElement<Numbers>>(head, body);
    }
};

template <class Numbers, class Operation, bool DIVIDES>
DEVICE void fold(const FoldArguments &arguments) {
    using Divisor = typename Numbers::Divisor;
    const Divisor divisor = DIVIDES ? Divisor::of(arguments.divisor) : Divisor();
    Fold<Numbers, Operation, DIVIDES>{arguments, divisor}.run();
}
