//! Folding what has arrived.

use super::posting::{Arithmetic, Broken};
use super::program::Operand;
use crate::transport::{Message, Transport};

/// Operands whose views need no allocation.
const OPERANDS_AT_HAND: usize = 32;

/// What a fold folds.
pub(super) struct Fold<'a> {
    /// The messages, in order.
    pub(super) operands: &'a [Operand],
    /// Where the own bytes stand among them.
    pub(super) own: Option<usize>,
    /// What the result is divided by.
    pub(super) divisor: Option<usize>,
    /// The byte of the messages it is at.
    pub(super) from: usize,
}

impl<'a> Fold<'a> {
    #[inline]
    pub(super) fn new(
        operands: &'a [Operand],
        own: Option<usize>,
        completes: bool,
        arithmetic: &Arithmetic,
        from: usize,
    ) -> Self {
        Self {
            operands,
            own,
            divisor: arithmetic.divisor.filter(|_| completes),
            from,
        }
    }

    /// Folds into `into` what is there of every message; returns how many bytes that was.
    #[inline]
    pub(super) fn arrived(
        &self,
        transport: &mut dyn Transport,
        arithmetic: &Arithmetic,
        into: &mut [u8],
        message: impl Fn(u32) -> Message,
    ) -> Result<usize, Broken> {
        let mut bytes = into.len();
        for Operand { peer, number, .. } in self.operands {
            let visible = transport.fetch(*peer, &message(*number), self.from);
            let visible = visible.map_err(|error| Broken { peer: *peer, error })?;
            if visible == 0 {
                return Ok(0);
            }
            bytes = bytes.min(visible);
        }
        bytes -= bytes % arithmetic.element_bytes;
        let Some(kernel) = arithmetic.kernel.filter(|_| bytes > 0) else {
            return Ok(0);
        };
        let into = &mut into[..bytes];
        let view = |operand: &Operand| transport.view(operand.peer, bytes);
        match self.operands {
            [operand] => kernel.fold(into, self.own, &[view(operand)], self.divisor),
            few if few.len() <= OPERANDS_AT_HAND => {
                let mut views = [&[][..]; OPERANDS_AT_HAND];
                for (slot, operand) in views.iter_mut().zip(few) {
                    *slot = view(operand);
                }
                kernel.fold(into, self.own, &views[..few.len()], self.divisor);
            }
            many => {
                let views: Vec<_> = many.iter().map(view).collect();
                kernel.fold(into, self.own, &views, self.divisor);
            }
        }
        for Operand { peer, .. } in self.operands {
            let confirmed = transport.confirm(*peer);
            confirmed.map_err(|error| Broken { peer: *peer, error })?;
        }
        for operand in self.operands {
            transport.consume(operand.peer, bytes);
        }
        Ok(bytes)
    }
}
