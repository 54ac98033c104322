//! The variables of a model, for an optimizer of ringtree's.

use crate::builder::Hooked;
use crate::elements::with_slice_mut;
use ringtree::ddp;

/// The variables of a replica, in the order of its parameters; see
/// [`Replica::weights`](crate::Replica::weights). They are f32 in host memory.
pub struct Weights<'a>(pub(crate) &'a [Hooked]);

impl ddp::Weights for Weights<'_> {
    fn visit(&mut self, number: usize, visit: &mut dyn FnMut(&mut [f32])) -> ringtree::Result<()> {
        let Some(Hooked { name, var, .. }) = self.0.get(number) else {
            return Err(ringtree::Error::usage(format!(
                "the model has no parameter {number}"
            )));
        };
        with_slice_mut(var, visit)
            .map_err(|error| ringtree::Error::system(format!("the variable '{name}': {error}")))
    }
}
