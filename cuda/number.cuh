// Layout of elements within words, and their arithmetic. The results have the same bits as in
// `src/reduce`.
//
// A word has 32 bits, or 64 for elements that need them. Small elements share a word, the first one
// in the lowest bits. A type of numbers defines how a word is converted for the computation
// (`widen`), how two converted words are combined, how a mean is divided, and how the result
// becomes a word (`narrow`): rounded once, to nearest even, with every NaN replaced by the
// canonical quiet NaN. A lane never depends on its neighbors, so the same code processes a word
// with a single element.
#pragma once

struct First {};
struct Sum {};
struct Prod {};
struct Min {};
struct Max {};
struct Band {};
struct Bor {};
struct Bxor {};

template <int BYTES> struct WordOf { using Type = u32; };
template <> struct WordOf<8> { using Type = u64; };

// Divides integers of at most 32 bits by a fixed number from 2 to 2³², truncating.
//
// With M = ⌈2⁶⁴/d⌉, the quotient ⌊a/d⌋ is the upper half of a·M. M·d exceeds 2⁶⁴ by less than d, so
// a·M/2⁶⁴ exceeds a/d by less than a/2⁶⁴ < 2⁻³² ≤ 1/d. This is too little to reach the next
// integer.
struct SmallDivisor {
    u64 reciprocal;
    DEVICE SmallDivisor of(u32 divisor) { return {~u64(0) / divisor + 1}; }
};

struct LargeDivisor {
    u32 value;
    DEVICE LargeDivisor of(u32 divisor) { return {divisor}; }
};

template <class Element> DEVICE Element divide(Element dividend, SmallDivisor divisor) {
    const bool negative = dividend < 0;
    const u32 magnitude = negative ? 0 - u32(dividend) : u32(dividend);
    const u32 quotient = u32(high_product(magnitude, divisor.reciprocal));
    return Element(negative ? 0 - quotient : quotient);
}

template <class Element> DEVICE Element divide(Element dividend, LargeDivisor divisor) {
    return dividend / Element(divisor.value);
}

template <int BYTES> struct DivisorOf { using Type = SmallDivisor; };
template <> struct DivisorOf<8> { using Type = LargeDivisor; };

template <class Element> DEVICE Element combine_one(Prod, Element left, Element right) {
    using Word = typename WordOf<sizeof(Element)>::Type;
    return Element(Word(left) * Word(right));
}
template <class Element> DEVICE Element combine_one(Min, Element left, Element right) {
    return left < right ? left : right;
}
template <class Element> DEVICE Element combine_one(Max, Element left, Element right) {
    return left > right ? left : right;
}

template <class Element> struct Integers {
    using Word = typename WordOf<sizeof(Element)>::Type;
    using Wide = Word;
    using Divisor = typename DivisorOf<sizeof(Element)>::Type;
    enum : int { SIZE = sizeof(Element), LANES = sizeof(Word) / SIZE, IS_INTEGER = true };

    DEVICE Wide widen(Word word) { return word; }
    DEVICE Word narrow(Wide wide) { return wide; }

    DEVICE Wide combine(First, Wide, Wide right) { return right; }
    // The highest bits of the lanes are added separately, so that no carry leaves a lane.
    DEVICE Wide combine(Sum, Wide left, Wide right) {
        const Word ones = Word(~Word(0)) / (Word(~Word(0)) >> (8 * (sizeof(Word) - SIZE)));
        const Word highest = ones << (8 * SIZE - 1);
        if (LANES == 1) {
            return left + right;
        }
        return ((left & ~highest) + (right & ~highest)) ^ ((left ^ right) & highest);
    }
    DEVICE Wide combine(Band, Wide left, Wide right) { return left & right; }
    DEVICE Wide combine(Bor, Wide left, Wide right) { return left | right; }
    DEVICE Wide combine(Bxor, Wide left, Wide right) { return left ^ right; }

    template <class Operation> DEVICE Wide combine(Operation operation, Wide left, Wide right) {
        Word word = 0;
        UNROLLED for (int lane = 0; lane < LANES; lane++) {
            word |= packed(combine_one(operation, element(left, lane), element(right, lane)), lane);
        }
        return word;
    }

    template <int COUNT> DEVICE void divide(Wide (&wides)[COUNT], Divisor divisor) {
        UNROLLED for (int index = 0; index < COUNT; index++) {
            Word word = 0;
            UNROLLED for (int lane = 0; lane < LANES; lane++) {
                word |= packed(::divide(element(wides[index], lane), divisor), lane);
            }
            wides[index] = word;
        }
    }

  private:
    DEVICE Element element(Word word, int lane) { return Element(word >> (8 * SIZE * lane)); }
    DEVICE Word packed(Element element, int lane) {
        const Word lowest = Word(~Word(0)) >> (8 * (sizeof(Word) - SIZE));
        return (Word(element) & lowest) << (8 * SIZE * lane);
    }
};

template <class Float> DEVICE Float combine_floats(Sum, Float left, Float right) {
    return left + right;
}
template <class Float> DEVICE Float combine_floats(Prod, Float left, Float right) {
    return left * right;
}
// If neither operand is smaller, they are equal, zeros of either sign, or unordered. The bitwise OR
// is then the value itself, −0 if an operand is −0, or still a NaN.
template <class Float> DEVICE Float combine_floats(Min, Float left, Float right) {
    const Float either = float_of(bits_of(left) | bits_of(right));
    return left < right ? left : right < left ? right : either;
}
// The negated minimum of the negated operands. Negating −0 gives +0.
template <class Float> DEVICE Float combine_floats(Max, Float left, Float right) {
    return -combine_floats(Min(), -left, -right);
}

// The divisor of floats. A number of at most 2²⁴ is exact in f32. Dividing by a power of two equals
// multiplying by its reciprocal, which is also exact and much faster on a GPU.
template <class Float> struct FloatDivisor {
    Float value;
    // Zero if the reciprocal is not exact.
    Float reciprocal;
    DEVICE FloatDivisor of(u32 divisor) {
        const bool is_power = (divisor & (divisor - 1)) == 0;
        return {Float(divisor), is_power ? 1 / Float(divisor) : 0};
    }
};

DEVICE float quotient(float wide, float divisor) { return wide / divisor; }
DEVICE float product(float wide, float factor) { return wide * factor; }
DEVICE double quotient(double wide, double divisor) { return wide / divisor; }
DEVICE double product(double wide, double factor) { return wide * factor; }

template <class Wide, class Float, int COUNT>
DEVICE void divide_floats(Wide (&wides)[COUNT], FloatDivisor<Float> divisor) {
    if (divisor.reciprocal != 0) {
        UNROLLED for (int index = 0; index < COUNT; index++) {
            wides[index] = product(wides[index], divisor.reciprocal);
        }
    } else {
        UNROLLED for (int index = 0; index < COUNT; index++) {
            wides[index] = quotient(wides[index], divisor.value);
        }
    }
}

template <class Float, class Bits, Bits CANONICAL_NAN> struct Floats {
    using Word = Bits;
    using Wide = Float;
    using Divisor = FloatDivisor<Float>;
    enum : int { SIZE = sizeof(Float), IS_INTEGER = false };

    DEVICE Wide widen(Word word) { return float_of(word); }
    DEVICE Word narrow(Wide wide) { return wide != wide ? CANONICAL_NAN : bits_of(wide); }
    DEVICE Wide combine(First, Wide, Wide right) { return right; }
    template <class Operation> DEVICE Wide combine(Operation operation, Wide left, Wide right) {
        return combine_floats(operation, left, right);
    }
    template <int COUNT> DEVICE void divide(Wide (&wides)[COUNT], Divisor divisor) {
        divide_floats(wides, divisor);
    }
};

using F32 = Floats<float, u32, 0x7fc00000>;
using F64 = Floats<double, u64, 0x7ff8000000000000>;

struct Pair {
    float low;
    float high;
};

DEVICE Pair quotient(Pair wide, float divisor) { return {wide.low / divisor, wide.high / divisor}; }
DEVICE Pair product(Pair wide, float factor) { return {wide.low * factor, wide.high * factor}; }

struct F16Format {
    enum : u32 { CANONICAL_NAN = 0x7e00 };
    DEVICE Pair widen(u32 word) { return {widen_f16(u16(word)), widen_f16(u16(word >> 16))}; }
    DEVICE u32 narrow(Pair wide) { return narrow_f16(wide.low, wide.high); }
};

// A bf16 is the upper half of an f32.
struct Bf16Format {
    enum : u32 { CANONICAL_NAN = 0x7fc0 };
    DEVICE Pair widen(u32 word) { return {float_of(word << 16), float_of(word & 0xffff0000)}; }
    DEVICE u32 narrow(Pair wide) { return narrow_bf16(wide.low, wide.high); }
};

// Two 16-bit floats per word, computed as f32.
template <class Format> struct Halves {
    using Word = u32;
    using Wide = Pair;
    using Divisor = FloatDivisor<float>;
    enum : int { SIZE = 2, IS_INTEGER = false };

    DEVICE Wide widen(Word word) { return Format::widen(word); }
    DEVICE Word narrow(Wide wide) {
        Word word = Format::narrow(wide);
        word = wide.low != wide.low ? (word & 0xffff0000) | Format::CANONICAL_NAN : word;
        return wide.high != wide.high ? (word & 0xffff) | Format::CANONICAL_NAN << 16 : word;
    }
    DEVICE Wide combine(First, Wide, Wide right) { return right; }
    template <class Operation> DEVICE Wide combine(Operation operation, Wide left, Wide right) {
        return {combine_floats(operation, left.low, right.low),
                combine_floats(operation, left.high, right.high)};
    }
    template <int COUNT> DEVICE void divide(Wide (&wides)[COUNT], Divisor divisor) {
        divide_floats(wides, divisor);
    }
};

using F16 = Halves<F16Format>;
using Bf16 = Halves<Bf16Format>;
