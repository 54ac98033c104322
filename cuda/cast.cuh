// Casts between f32 and the 16-bit floats: destination i = source i times the scale, in f32, then
// rounded to nearest even where the destination is the narrower one. A NaN becomes the canonical
// one. Source and destination do not overlap.
#pragma once

// As `src/reduce/gpu.rs` lays them out.
struct CastArguments {
    u64 source;
    u64 destination;
    u64 elements;
    float scale;
    u32 unused;
};

// Four elements at once: a vector of 16 bytes of the wide ones, 8 bytes of the halves.
enum : int { QUAD = 4 };

template <class Half> struct ToHalf {
    enum : int { SOURCE_SIZE = 4, DESTINATION_SIZE = 2 };
    using Source = u32[4];
    using Destination = u32[2];
    DEVICE void convert(const Source &source, Destination &destination, float scale) {
        UNROLLED for (int word = 0; word < 2; word++) {
            const float low = float_of(source[2 * word]) * scale;
            const float high = float_of(source[2 * word + 1]) * scale;
            destination[word] = Half::narrow({low, high});
        }
    }
};

template <class Half> struct FromHalf {
    enum : int { SOURCE_SIZE = 2, DESTINATION_SIZE = 4 };
    using Source = u32[2];
    using Destination = u32[4];
    DEVICE void convert(const Source &source, Destination &destination, float scale) {
        UNROLLED for (int word = 0; word < 2; word++) {
            const Pair wide = Half::widen(source[word]);
            destination[2 * word] = F32::narrow(wide.low * scale);
            destination[2 * word + 1] = F32::narrow(wide.high * scale);
        }
    }
};

// Any address will do for one element.
template <int BYTES> DEVICE u32 load_anywhere(u64 address) {
    u32 word = 0;
    if (address % BYTES == 0) {
        Access<BYTES>::load(address, word);
        return word;
    }
    UNROLLED for (int byte = 0; byte < BYTES; byte++) {
        u32 bits;
        Access<1>::load(address + byte, bits);
        word |= bits << (8 * byte);
    }
    return word;
}

template <int BYTES> DEVICE void store_anywhere(u64 address, u32 word) {
    if (address % BYTES == 0) {
        Access<BYTES>::store(address, word);
        return;
    }
    UNROLLED for (int byte = 0; byte < BYTES; byte++) {
        Access<1>::store(address + byte, (word >> (8 * byte)) & 0xff);
    }
}

template <class Conversion> struct Cast {
    enum : int {
        SOURCE_SIZE = Conversion::SOURCE_SIZE,
        DESTINATION_SIZE = Conversion::DESTINATION_SIZE,
        // Quads a thread reads before it waits for the first.
        QUADS = 4,
    };

    const CastArguments &arguments;

    METHOD void one(u64 index) const {
        typename Conversion::Source source = {};
        typename Conversion::Destination destination;
        source[0] = load_anywhere<SOURCE_SIZE>(arguments.source + index * SOURCE_SIZE);
        Conversion::convert(source, destination, arguments.scale);
        const u64 address = arguments.destination + index * DESTINATION_SIZE;
        store_anywhere<DESTINATION_SIZE>(address, destination[0]);
    }

    METHOD void quads(u64 first) const {
        constexpr u64 STRIDE = WARP * QUAD;
        typename Conversion::Source sources[QUADS];
        UNROLLED for (int quad = 0; quad < QUADS; quad++) {
            const u64 address = arguments.source + (first + quad * STRIDE) * SOURCE_SIZE;
            Access<QUAD * SOURCE_SIZE>::load(address, sources[quad]);
        }
        UNROLLED for (int quad = 0; quad < QUADS; quad++) {
            typename Conversion::Destination destination;
            Conversion::convert(sources[quad], destination, arguments.scale);
            const u64 address = arguments.destination + (first + quad * STRIDE) * DESTINATION_SIZE;
            Access<QUAD * DESTINATION_SIZE>::store(address, destination);
        }
    }

    // The elements before the first that lies at a multiple of a quad, if that is one of both.
    METHOD bool head_of_quads(u64 &head) const {
        const u64 source_quad = QUAD * SOURCE_SIZE;
        const u64 destination_quad = QUAD * DESTINATION_SIZE;
        head = (source_quad - arguments.source % source_quad) % source_quad / SOURCE_SIZE;
        return (arguments.source + head * SOURCE_SIZE) % source_quad == 0 &&
               (arguments.destination + head * DESTINATION_SIZE) % destination_quad == 0 &&
               head <= arguments.elements;
    }

    METHOD void run() const {
        constexpr u64 TILE = WARP * QUADS * QUAD;
        u64 head = 0, body = 0;
        if (head_of_quads(head)) {
            const u64 count = (arguments.elements - head) / TILE;
            const u64 lane_first = head + thread_index() % WARP * QUAD;
            const u64 step = thread_count() / WARP;
            body = count * TILE;
            NOT_UNROLLED for (u64 tile = thread_index() / WARP; tile < count; tile += step) {
                quads(lane_first + tile * TILE);
            }
        }
        const u64 count = arguments.elements - body;
        NOT_UNROLLED for (u64 index = thread_index(); index < count; index += thread_count()) {
            one(index < head ? index : index + body);
        }
    }
};
