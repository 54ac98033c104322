//! Folds and casts: to the bit what the CPU's kernels do.

use super::{Bench, bytes, devices};
use half::{bf16, f16};
use ringtree::device::{Cast, Fold, Span};
use ringtree::reduce::Kernel;
use ringtree::{Dtype, ReduceOp};

/// One fold on the device, compared with the CPU's: `operands` of `elements`, each `skew` bytes
/// behind an aligned address, into `destinations`.
struct Case {
    dtype: Dtype,
    op: ReduceOp,
    elements: usize,
    operands: usize,
    destinations: usize,
    skew: usize,
    divisor: Option<usize>,
    in_place: bool,
}

impl Case {
    fn check(&self, bench: &Bench, name: &str) {
        let length = self.elements * self.dtype.size();
        // Guard bytes on both sides of each span.
        let stride = (length + 64).next_multiple_of(256);
        let spans = self.operands + self.destinations;
        let mut content = bytes(self.elements as u64, stride * spans);
        let memory = bench.memory(&content);
        let at = |index: usize| index * stride + 32 + self.skew;
        let span = |index: usize| memory.span(at(index), length).unwrap();
        let operands: Vec<Span> = (0..self.operands).map(span).collect();
        let mut destinations: Vec<usize> = (self.operands..spans).collect();
        if self.in_place {
            destinations[0] = self.operands / 2;
        }
        let into: Vec<Span> = destinations.iter().map(|index| span(*index)).collect();
        let fold = Fold::new(self.dtype, self.op, &operands, &into, self.divisor).unwrap();
        bench.stream.fold(&fold).unwrap();

        let mut expected = vec![0; length];
        let sources: Vec<_> = (0..self.operands)
            .map(|index| &content[at(index)..][..length])
            .collect();
        let kernel = Kernel::new(self.dtype, self.op).unwrap();
        kernel.fold(&mut expected, None, &sources, self.divisor);
        for index in destinations {
            content[at(index)..][..length].copy_from_slice(&expected);
        }
        let found = bench.read(&memory.whole());
        let (dtype, op) = (self.dtype, self.op);
        let what = (self.elements, self.operands, self.destinations, self.skew);
        assert!(found == content, "{name}: {op} of {dtype}, {what:?}");
    }
}

#[test]
fn every_type_and_operator_is_folded_as_on_the_cpu() {
    for (name, device) in devices() {
        let bench = Bench::new(&device);
        for &dtype in Dtype::ALL {
            for &op in ReduceOp::ALL {
                if !op.supports(dtype) {
                    continue;
                }
                for (elements, operands, destinations, skew) in [
                    (0, 2, 1, 0),
                    (1, 3, 2, 0),
                    (257, 2, 1, 0),
                    (1000, 8, 3, 1),
                    (33, 1, 1, 3),
                ] {
                    let divisor = (op == ReduceOp::Avg).then_some(operands);
                    for in_place in [false, true] {
                        let case = Case {
                            dtype,
                            op,
                            elements,
                            operands,
                            destinations,
                            skew,
                            divisor,
                            in_place,
                        };
                        case.check(&bench, name);
                    }
                }
            }
        }
    }
}

#[test]
fn as_many_operands_and_destinations_as_are_promised() {
    use ringtree::limits::{DEVICE_DESTINATIONS_MAX, DEVICE_SOURCES_MAX};
    for (name, device) in devices() {
        let bench = Bench::new(&device);
        let case = Case {
            dtype: Dtype::F16,
            op: ReduceOp::Avg,
            elements: 100_003,
            operands: DEVICE_SOURCES_MAX,
            destinations: DEVICE_DESTINATIONS_MAX,
            skew: 0,
            divisor: Some(7),
            in_place: false,
        };
        case.check(&bench, name);
    }
}

#[test]
fn casts_round_to_nearest_even_and_back_exactly() {
    let mut numbers: Vec<f32> = bytes(9, 4 * 4001)
        .chunks(4)
        .map(|chunk| f32::from_le_bytes(chunk.try_into().unwrap()))
        .collect();
    numbers.extend([0.0, -0.0, 1.0, 1.0 + 1.0 / 256.0, 65504.0, 65520.0, 1e-7]);
    numbers.extend([f32::INFINITY, f32::NEG_INFINITY, -f32::NAN, 1e-40]);
    let narrow = |dtype: Dtype, number: f32| -> [u8; 2] {
        // Every NaN becomes the canonical one.
        let number = if number.is_nan() { f32::NAN } else { number };
        match dtype {
            Dtype::F16 => f16::from_f32(number).to_le_bytes(),
            _ => bf16::from_f32(number).to_le_bytes(),
        }
    };
    let wide = |dtype: Dtype, half: [u8; 2]| match dtype {
        Dtype::F16 => f16::from_le_bytes(half).to_f32(),
        _ => bf16::from_le_bytes(half).to_f32(),
    };
    for (name, device) in devices() {
        let bench = Bench::new(&device);
        for dtype in [Dtype::F16, Dtype::Bf16] {
            for scale in [1.0, 0.25] {
                let source = bench.memory(bytemuck::cast_slice(&numbers));
                let halves = device.allocate(numbers.len() * 2).unwrap();
                let (from, to) = (source.whole(), halves.whole());
                let cast = Cast::new(&from, Dtype::F32, &to, dtype, scale).unwrap();
                bench.stream.cast(&cast).unwrap();
                let expected: Vec<[u8; 2]> = numbers
                    .iter()
                    .map(|number| narrow(dtype, number * scale))
                    .collect();
                let found = bench.read(&to);
                assert!(found == expected.concat(), "{name}: to {dtype}");
                let cast = Cast::new(&to, dtype, &from, Dtype::F32, 1.0).unwrap();
                bench.stream.cast(&cast).unwrap();
                let back: Vec<u8> = expected
                    .iter()
                    .flat_map(|half| wide(dtype, *half).to_le_bytes())
                    .collect();
                assert!(bench.read(&from) == back, "{name}: from {dtype}");
            }
        }
    }
}
