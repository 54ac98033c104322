//! Folds and casts, to the bit what the CPU's kernels do.

use super::rank::{Orders, Said};
use half::{bf16, f16};
use ringtree::device::{Cast, Device, Fold, Memory, Span, Stream};
use ringtree::limits::{DEVICE_DESTINATIONS_MAX, DEVICE_SOURCES_MAX};
use ringtree::reduce::Kernel;
use ringtree::{Dtype, ReduceOp, Result};
use std::sync::Arc;

/// One fold: `operands` of `elements`, each `skew` bytes behind an aligned address.
#[derive(Clone, Copy, Debug)]
struct Case {
    dtype: Dtype,
    op: ReduceOp,
    elements: usize,
    operands: usize,
    destinations: usize,
    skew: usize,
    is_in_place: bool,
}

/// A device and a stream of it.
struct Bench {
    device: Arc<dyn Device>,
    stream: Arc<dyn Stream>,
}

/// Checks every type and operator; in few shapes, unless `thoroughly`.
pub(super) fn check(orders: &Orders, thoroughly: bool) -> Result<()> {
    let device = orders.device()?;
    let bench = Bench {
        stream: device.stream()?,
        device,
    };
    let cases = cases(thoroughly);
    let mut wrong = Vec::new();
    for case in &cases {
        if !bench.is_right(case)? {
            wrong.push(case);
        }
    }
    if let Some(case) = wrong.first() {
        let count = wrong.len();
        Said::Found(format!(
            "{count} folds differ from the CPU's, such as {case:?}"
        ))
        .say();
    }
    let halves = [Dtype::F16, Dtype::Bf16];
    for half in halves {
        for scale in [1.0, 0.25] {
            if !bench.casts(half, scale)? {
                Said::Found(format!(
                    "casts between f32 and {half} differ from the CPU's"
                ))
                .say();
            }
        }
    }
    Said::Checked(cases.len() + 2 * 2 * halves.len()).say();
    Ok(())
}

fn cases(thoroughly: bool) -> Vec<Case> {
    // Elements, operands, destinations, bytes off alignment.
    const SHAPES: &[(usize, usize, usize, usize)] = &[
        (10_007, 2, 1, 0),
        (1, 3, 2, 0),
        (257, 8, 3, 1),
        (33, 1, 1, 3),
        (100_003, 4, 1, 0),
        (4099, DEVICE_SOURCES_MAX, DEVICE_DESTINATIONS_MAX, 0),
    ];
    let shapes = if thoroughly { SHAPES } else { &SHAPES[..3] };
    let mut cases = Vec::new();
    for &dtype in Dtype::ALL {
        let ops = ReduceOp::ALL.iter().filter(|op| op.supports(dtype));
        for op in ops {
            for &(elements, operands, destinations, skew) in shapes {
                cases.extend([false, true].map(|is_in_place| Case {
                    dtype,
                    op: *op,
                    elements,
                    operands,
                    destinations,
                    skew,
                    is_in_place,
                }));
            }
        }
    }
    cases
}

impl Bench {
    fn memory(&self, content: &[u8]) -> Result<Memory> {
        let memory = self.device.allocate(content.len())?;
        let mut pinned = self.device.pin(content.len())?;
        pinned.bytes_mut()?.copy_from_slice(content);
        let (from, to) = (pinned.whole(), memory.whole());
        self.stream.copy_from_host(&from, &to)?;
        Ok(memory)
    }

    fn read(&self, memory: &Memory) -> Result<Vec<u8>> {
        let mut pinned = self.device.pin(memory.bytes())?;
        self.stream.copy_to_host(&memory.whole(), &pinned.whole())?;
        self.stream.synchronize()?;
        Ok(pinned.bytes_mut()?.to_vec())
    }

    /// Whether the fold leaves what it should, and nothing else is touched.
    fn is_right(&self, case: &Case) -> Result<bool> {
        let Case { dtype, op, .. } = *case;
        let length = case.elements * dtype.size();
        // Bytes to guard on both sides of each span.
        let stride = (length + 64).next_multiple_of(256);
        let spans = case.operands + case.destinations;
        let mut content = bytes(case.elements as u64, stride * spans);
        let memory = self.memory(&content)?;
        let at = |index: usize| index * stride + 32 + case.skew;
        let span = |index: usize| memory.span(at(index), length);
        let operands: Vec<Span> = (0..case.operands).map(span).collect::<Result<_>>()?;
        let mut destinations: Vec<usize> = (case.operands..spans).collect();
        if case.is_in_place {
            destinations[0] = case.operands / 2;
        }
        let into: Result<Vec<Span>> = destinations.iter().map(|index| span(*index)).collect();
        let divisor = (op == ReduceOp::Avg).then_some(case.operands);
        self.stream
            .fold(&Fold::new(dtype, op, &operands, &into?, divisor)?)?;
        let sources: Vec<_> = (0..case.operands)
            .map(|index| &content[at(index)..][..length])
            .collect();
        let mut expected = vec![0; length];
        let kernel = Kernel::new(dtype, op).expect("invariant: cases are of supported operators");
        kernel.fold(&mut expected, None, &sources, divisor);
        for index in destinations {
            content[at(index)..][..length].copy_from_slice(&expected);
        }
        Ok(self.read(&memory)? == content)
    }

    /// Whether a cast to `half` and back are the CPU's.
    fn casts(&self, half: Dtype, scale: f32) -> Result<bool> {
        let numbers = numbers();
        let source = self.memory(bytemuck::cast_slice(&numbers))?;
        let halves = self.device.allocate(numbers.len() * 2)?;
        let (from, to) = (source.whole(), halves.whole());
        self.stream
            .cast(&Cast::new(&from, Dtype::F32, &to, half, scale)?)?;
        let narrowed: Vec<u8> = numbers
            .iter()
            .flat_map(|number| narrow(half, number * scale))
            .collect();
        let is_narrowed = self.read(&halves)? == narrowed;
        self.stream
            .cast(&Cast::new(&to, half, &from, Dtype::F32, 1.0)?)?;
        let widened: Vec<u8> = narrowed
            .chunks_exact(2)
            .flat_map(|bytes| wide(half, [bytes[0], bytes[1]]).to_le_bytes())
            .collect();
        Ok(is_narrowed && self.read(&source)? == widened)
    }
}

/// Numbers of every kind.
fn numbers() -> Vec<f32> {
    let drawn = bytes(9, 4 * 4001);
    let number = |four: &[u8]| f32::from_le_bytes([four[0], four[1], four[2], four[3]]);
    let mut numbers: Vec<f32> = drawn.chunks_exact(4).map(number).collect();
    numbers.extend([0.0, -0.0, 1.0, 1.0 + 1.0 / 256.0, 65504.0, 65520.0, 1e-7]);
    numbers.extend([f32::INFINITY, f32::NEG_INFINITY, -f32::NAN, 1e-40]);
    numbers
}

/// Every NaN becomes the canonical one.
fn narrow(half: Dtype, number: f32) -> [u8; 2] {
    let number = if number.is_nan() { f32::NAN } else { number };
    match half {
        Dtype::F16 => f16::from_f32(number).to_le_bytes(),
        _ => bf16::from_f32(number).to_le_bytes(),
    }
}

fn wide(half: Dtype, bytes: [u8; 2]) -> f32 {
    match half {
        Dtype::F16 => f16::from_le_bytes(bytes).to_f32(),
        _ => bf16::from_le_bytes(bytes).to_f32(),
    }
}

/// Bytes that differ between seeds (xorshift, by G. Marsaglia, 2003).
fn bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..count).map(next).collect()
}
