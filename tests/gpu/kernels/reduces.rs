//! Tests reductions, comparing them with the CPU kernels.

use super::launched::{Case, Memory, check, request};
use super::values::{Random, random_elements, special_values};
use bytemuck::bytes_of;
use ringtree::internal::compute::{Kernel, gpu};
use ringtree::internal::limits::{DEVICE_SOURCES_MAX, WORLD_SIZE_MAX};
use ringtree::{Dtype, ReduceOp};

/// How the buffers of a launch are aligned, as offsets from multiples of 16 bytes.
#[derive(Clone, Copy, Debug)]
enum Residues {
    /// The same offset for all buffers.
    Alike(usize),
    /// Random multiples of the element size.
    Elements,
    /// Random offsets.
    Bytes,
}

/// A reduction to check.
struct Reduce {
    dtype: Dtype,
    op: ReduceOp,
    divisor: Option<usize>,
    operands: Vec<Vec<u8>>,
    /// Index of the operand whose memory is also the destination.
    own: Option<usize>,
    residues: Residues,
}

impl Reduce {
    fn case(&self, random: &mut Random) -> Case {
        let size = self.dtype.size();
        let mut residue = || match self.residues {
            Residues::Alike(residue) => residue,
            Residues::Elements => random.below(16 / size) * size,
            Residues::Bytes => random.below(16),
        };
        let mut memory = Memory::default();
        let place = |bytes: &Vec<u8>| memory.place(bytes, residue());
        let sources: Vec<u64> = self.operands.iter().map(place).collect();
        let bytes = self.operands[0].len();
        let destination = match self.own {
            Some(own) => sources[own],
            None => memory.place(&vec![0x5a; bytes], residue()),
        };
        let elements = bytes / size;
        let (dtype, op, divisor) = (self.dtype, self.op, self.divisor);
        let processors = 1 + random.below(3) as u32;
        let launch = gpu::reduce(
            dtype,
            op,
            &sources,
            destination,
            elements,
            divisor,
            processors,
        );
        let launch = launch.unwrap();
        let mut expected = memory.bytes.clone();
        expected[destination as usize..][..bytes].copy_from_slice(&self.reduced_by_the_cpu());
        let is_vector = matches!(self.residues, Residues::Alike(residue) if residue % size == 0);
        // Fewer than 16 bytes precede the first vector, and fewer than 16 follow the last one.
        let by_vector = bytes.saturating_sub(30) * (sources.len() + 1) * usize::from(is_vector);
        Case {
            what: format!(
                "{dtype} {op}/{divisor:?}, {elements} elements, {} sources, own {:?}, {:?}",
                sources.len(),
                self.own,
                self.residues
            ),
            request: request(&launch, memory.bytes.len(), random),
            arguments: bytes_of(&launch.arguments).to_vec(),
            memory: memory.bytes,
            expected,
            bytes_read: bytes * sources.len(),
            bytes_written: bytes,
            bytes_by_vector_min: by_vector,
        }
    }

    fn reduced_by_the_cpu(&self) -> Vec<u8> {
        let kernel = Kernel::new(self.dtype, self.op).unwrap();
        let mut sources: Vec<&[u8]> = self.operands.iter().map(Vec::as_slice).collect();
        let own = self.own.filter(|_| sources.len() > 1);
        let mut destination = match own {
            Some(own) => sources.remove(own).to_vec(),
            None => vec![0; sources[0].len()],
        };
        kernel.fold(&mut destination, own, &sources, self.divisor);
        destination
    }

    /// Creates a reduction of random operands.
    fn random(dtype: Dtype, op: ReduceOp, random: &mut Random) -> Reduce {
        // A thread block processes 4 KiB of each operand at a time.
        let bytes_max = [8, 60, 300, 5000, 16_000][random.below(5)];
        let elements = random.below(bytes_max / dtype.size() + 1);
        let operands = 1 + random.below(8);
        let divisors = [2, 3, 7, 8, 1000, 65_535, WORLD_SIZE_MAX];
        let divides = matches!(op, ReduceOp::Avg | ReduceOp::Sum) && random.flip();
        let residue = random.below(16 / dtype.size()) * dtype.size();
        Reduce {
            dtype,
            op,
            divisor: divides.then(|| divisors[random.below(divisors.len())]),
            operands: (0..operands)
                .map(|_| random_elements(dtype, elements, random))
                .collect(),
            own: Some(random.below(operands)).filter(|_| random.flip()),
            residues: match random.below(4) {
                0 => Residues::Elements,
                1 => Residues::Bytes,
                _ => Residues::Alike(residue),
            },
        }
    }

    /// Creates a reduction of two operands into the memory of the first.
    fn pair(dtype: Dtype, op: ReduceOp, left: Vec<u8>, right: Vec<u8>) -> Reduce {
        Reduce {
            dtype,
            op,
            divisor: None,
            operands: vec![left, right],
            own: Some(0),
            residues: Residues::Alike(0),
        }
    }
}

/// Returns every element type with every operator that it supports.
fn table() -> impl Iterator<Item = (Dtype, ReduceOp)> {
    let pairs = Dtype::ALL
        .iter()
        .flat_map(|&dtype| ReduceOp::ALL.iter().map(move |&op| (dtype, op)));
    pairs.filter(|(dtype, op)| op.supports(*dtype))
}

#[test]
fn kernels_match_cpu_bit_for_bit() {
    let mut random = Random(1);
    check(table().flat_map(|(dtype, op)| {
        let cases = (0..40).map(|_| Reduce::random(dtype, op, &mut random).case(&mut random));
        cases.collect::<Vec<_>>()
    }));
}

#[test]
fn buffers_may_have_any_alignment() {
    let mut random = Random(2);
    let mut cases = Vec::new();
    for &dtype in Dtype::ALL {
        for residue in 0..16 {
            for elements in [0, 1, 5, 16, 17, 601, 5003 / dtype.size()] {
                let operands = (0..3).map(|_| random_elements(dtype, elements, &mut random));
                let reduce = Reduce {
                    dtype,
                    op: ReduceOp::Sum,
                    divisor: None,
                    operands: operands.collect(),
                    own: Some(1),
                    residues: Residues::Alike(residue),
                };
                cases.push(reduce.case(&mut random));
            }
        }
        for _ in 0..100 {
            let mut reduce = Reduce::random(dtype, ReduceOp::Max, &mut random);
            reduce.residues = Residues::Bytes;
            cases.push(reduce.case(&mut random));
        }
    }
    check(cases.into_iter());
}

#[test]
fn launch_reduces_maximum_number_of_sources() {
    let mut random = Random(3);
    let cases = table().map(|(dtype, op)| {
        let mut reduce = Reduce::random(dtype, op, &mut random);
        let elements = 3000 / dtype.size();
        let operands =
            (0..DEVICE_SOURCES_MAX).map(|_| random_elements(dtype, elements, &mut random));
        reduce.operands = operands.collect();
        reduce.own = Some(random.below(DEVICE_SOURCES_MAX));
        reduce.case(&mut random)
    });
    check(cases);
}

#[test]
fn copy_keeps_every_bit() {
    let mut random = Random(4);
    let mut cases = Vec::new();
    for (dtype, op) in table() {
        for _ in 0..8 {
            let mut reduce = Reduce::random(dtype, op, &mut random);
            reduce.operands.truncate(1);
            reduce.own = None;
            reduce.divisor = None;
            assert_eq!(reduce.reduced_by_the_cpu(), reduce.operands[0]);
            cases.push(reduce.case(&mut random));
        }
    }
    check(cases.into_iter());
}

#[test]
fn special_values_match_cpu_in_all_pairs() {
    let mut random = Random(5);
    let mut cases = Vec::new();
    for (dtype, op) in table() {
        let values = special_values(dtype);
        let encode = |bits: &u64| bits.to_le_bytes()[..dtype.size()].to_vec();
        let once: Vec<u8> = values.iter().flat_map(encode).collect();
        let left = values
            .iter()
            .flat_map(|bits| encode(bits).repeat(values.len()));
        let left: Vec<u8> = left.collect();
        // Repeat the pairs so that they fill many blocks and a partial one.
        let times = 5000_usize.div_ceil(left.len());
        let right = once.repeat(values.len() * times);
        let mut reduce = Reduce::pair(dtype, op, left.repeat(times), right);
        cases.push(reduce.case(&mut random));
        if op == ReduceOp::Avg {
            for divisor in [2, 3, 1 << 10, WORLD_SIZE_MAX - 1] {
                reduce.divisor = Some(divisor);
                cases.push(reduce.case(&mut random));
            }
        }
    }
    check(cases.into_iter());
}

#[test]
fn halves_round_once_to_nearest_even() {
    let mut random = Random(6);
    let every: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let mut cases = Vec::new();
    for dtype in [Dtype::F16, Dtype::Bf16] {
        for other in [0_u16, 1, 0x1001, 0x3c01, 0x3f81, 0x8000, 0xb555, 0x7bff] {
            let others = other.to_le_bytes().repeat(1 << 16);
            for (op, divisor) in [(ReduceOp::Avg, Some(3)), (ReduceOp::Prod, None)] {
                let mut reduce = Reduce::pair(dtype, op, every.clone(), others.clone());
                reduce.divisor = divisor;
                cases.push(reduce.case(&mut random));
            }
            let sum = Reduce::pair(dtype, ReduceOp::Sum, every.clone(), others);
            cases.push(sum.case(&mut random));
        }
    }
    check(cases.into_iter());
}

#[test]
fn means_of_integers_truncate() {
    let mut random = Random(7);
    let mut cases = Vec::new();
    let integers = Dtype::ALL.iter().filter(|dtype| !dtype.is_float());
    for &dtype in integers {
        for divisor in [2, 3, 7, 255, 256, 1023, 65_535, (1 << 20) - 1, 1 << 20] {
            // Use every small integer, and large integers around multiples of the divisor.
            let near = (0..1 << 16).map(|index: u64| match dtype.size() {
                1 | 2 => index,
                _ => {
                    let multiple = random.bits() / divisor * divisor;
                    let sign = random.bits() & 1;
                    (multiple + index % 3).wrapping_sub(1) ^ sign.wrapping_neg()
                }
            });
            let dividends = near.flat_map(|bits| bits.to_le_bytes()[..dtype.size()].to_vec());
            let dividends: Vec<u8> = dividends.collect();
            let zeros = vec![0; dividends.len()];
            let mut reduce = Reduce::pair(dtype, ReduceOp::Avg, dividends, zeros);
            reduce.divisor = Some(divisor as usize);
            cases.push(reduce.case(&mut random));
        }
    }
    check(cases.into_iter());
}
