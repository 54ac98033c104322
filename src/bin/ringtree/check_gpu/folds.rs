//! The speed of folds, beside that of a copy on the same device in the same run.

use super::probe::{batch_s, copy_gbs};
use super::rank::{Orders, Said};
use ringtree::device::{Fold, Span};
use ringtree::{Dtype, ReduceOp, Result};

/// The columns of the table.
pub(super) const COLUMNS: &[&str] = &[
    "dtype", "op", "sources", "bytes", "time_us", "fold_gbs", "copy_gbs", "ratio",
];

/// Bytes of an operand.
const SIZES: &[usize] = &[64 << 20, 256 << 20];

/// What is folded, of how many sources.
const FOLDS: &[(Dtype, ReduceOp, usize)] = &[
    (Dtype::F32, ReduceOp::Sum, 2),
    (Dtype::F32, ReduceOp::Sum, 3),
    (Dtype::F32, ReduceOp::Sum, 8),
    (Dtype::F32, ReduceOp::Avg, 2),
    (Dtype::F16, ReduceOp::Sum, 2),
    (Dtype::Bf16, ReduceOp::Sum, 2),
    (Dtype::Bf16, ReduceOp::Sum, 8),
    (Dtype::I32, ReduceOp::Max, 2),
    (Dtype::F64, ReduceOp::Sum, 2),
    (Dtype::U8, ReduceOp::Sum, 2),
];

/// Times each fold into its first source, as collectives do; every byte read or written counts.
pub(super) fn measure(orders: &Orders) -> Result<()> {
    let device = orders.device()?;
    let stream = device.stream()?;
    let stream = stream.as_ref();
    for bytes in orders.sizes(SIZES) {
        let memory = device.allocate(8 * bytes)?;
        let span = |nth: usize| memory.span(nth * bytes, bytes);
        let spans: Vec<Span> = (0..8).map(span).collect::<Result<_>>()?;
        for &(dtype, op, sources) in FOLDS {
            let copy_gbs = copy_gbs(stream, &spans[0], &spans[1])?;
            let divisor = (op == ReduceOp::Avg).then_some(sources);
            let fold = Fold::new(dtype, op, &spans[..sources], &spans[..1], divisor)?;
            let time_s = batch_s(stream, 20, &|| stream.fold(&fold))?;
            let fold_gbs = ((sources + 1) * bytes) as f64 / time_s / 1e9;
            let cells = [
                dtype.to_string(),
                op.to_string(),
                sources.to_string(),
                bytes.to_string(),
                format!("{:.1}", time_s * 1e6),
                format!("{fold_gbs:.1}"),
                format!("{copy_gbs:.1}"),
                format!("{:.3}", fold_gbs / copy_gbs),
            ];
            Said::Row(cells.into()).say();
            Said::Checked(1).say();
        }
    }
    Ok(())
}
