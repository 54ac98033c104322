// The kernels of the library, by name: `ringtree_OPERATOR_DTYPE`, of `src/dtype.rs` and `src/op.rs`.
//
// Where the sign makes no difference there is one kernel for signed and unsigned integers, named
// after the unsigned ones. A mean is a sum, divided; it has kernels of its own, so that the sums
// carry no division.
#ifdef __CUDACC__
#include "device.cuh"
#else
#include "host_shim.h"
#endif

#include "number.cuh"

#include "cast.cuh"
#include "fold.cuh"

// name, dtype, numbers, operation, whether it divides
#define EVERY_UNSIGNED(FOLD, name, Operation, DIVIDES)                                           \
    FOLD(name, u8, Integers<u8>, Operation, DIVIDES)                                             \
    FOLD(name, u16, Integers<u16>, Operation, DIVIDES)                                           \
    FOLD(name, u32, Integers<u32>, Operation, DIVIDES)                                           \
    FOLD(name, u64, Integers<u64>, Operation, DIVIDES)

#define EVERY_SIGNED(FOLD, name, Operation, DIVIDES)                                             \
    FOLD(name, i8, Integers<i8>, Operation, DIVIDES)                                             \
    FOLD(name, i16, Integers<i16>, Operation, DIVIDES)                                           \
    FOLD(name, i32, Integers<i32>, Operation, DIVIDES)                                           \
    FOLD(name, i64, Integers<i64>, Operation, DIVIDES)

#define EVERY_FLOAT(FOLD, name, Operation, DIVIDES)                                              \
    FOLD(name, f16, F16, Operation, DIVIDES)                                                     \
    FOLD(name, bf16, Bf16, Operation, DIVIDES)                                                   \
    FOLD(name, f32, F32, Operation, DIVIDES)                                                     \
    FOLD(name, f64, F64, Operation, DIVIDES)

#define EVERY_FOLD(FOLD)                                                                         \
    EVERY_UNSIGNED(FOLD, sum, Sum, false)                                                        \
    EVERY_FLOAT(FOLD, sum, Sum, false)                                                           \
    EVERY_UNSIGNED(FOLD, prod, Prod, false)                                                      \
    EVERY_FLOAT(FOLD, prod, Prod, false)                                                         \
    EVERY_UNSIGNED(FOLD, min, Min, false)                                                        \
    EVERY_SIGNED(FOLD, min, Min, false)                                                          \
    EVERY_FLOAT(FOLD, min, Min, false)                                                           \
    EVERY_UNSIGNED(FOLD, max, Max, false)                                                        \
    EVERY_SIGNED(FOLD, max, Max, false)                                                          \
    EVERY_FLOAT(FOLD, max, Max, false)                                                           \
    EVERY_UNSIGNED(FOLD, avg, Sum, true)                                                         \
    EVERY_SIGNED(FOLD, avg, Sum, true)                                                           \
    EVERY_FLOAT(FOLD, avg, Sum, true)                                                            \
    EVERY_UNSIGNED(FOLD, band, Band, false)                                                      \
    EVERY_UNSIGNED(FOLD, bor, Bor, false)                                                        \
    EVERY_UNSIGNED(FOLD, bxor, Bxor, false)

// name, formats: from f32 to a half, and back
#define EVERY_CAST(NARROW, WIDEN)                                                                \
    NARROW(f32_f16, F16)                                                                         \
    NARROW(f32_bf16, Bf16)                                                                       \
    WIDEN(f16_f32, F16)                                                                          \
    WIDEN(bf16_f32, Bf16)

#define FOLD_KERNEL(name, dtype, Numbers, Operation, DIVIDES)                                    \
    KERNEL(ringtree_##name##_##dtype, FoldArguments) {                                           \
        fold<Numbers, Operation, DIVIDES>(arguments);                                            \
    }
EVERY_FOLD(FOLD_KERNEL)

#define NARROW_KERNEL(name, Half)                                                                \
    KERNEL(ringtree_cast_##name, CastArguments) { Cast<ToHalf<Half>>{arguments}.run(); }
#define WIDEN_KERNEL(name, Half)                                                                 \
    KERNEL(ringtree_cast_##name, CastArguments) { Cast<FromHalf<Half>>{arguments}.run(); }
EVERY_CAST(NARROW_KERNEL, WIDEN_KERNEL)
