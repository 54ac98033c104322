//! Gives ringtree's optimizers access to a model's variables.

use crate::builder::Hooked;
use crate::elements::with_slice_mut;
use ringtree::ddp;

/// The variables of a replica, in the order of its parameters. They must be f32 variables in host
/// memory. [`Replica::weights`](crate::Replica::weights) returns this type.
pub struct Weights<'a>(pub(crate) &'a [Hooked]);

impl ddp::Weights for Weights<'_> {
    fn visit(&mut self, number: usize, visit: &mut dyn FnMut(&mut [f32])) -> ringtree::Result<()> {
        let Some(Hooked { name, var, .. }) = self.0.get(number) else {
            return Err(ringtree::Error::new(
                ringtree::ErrorKind::Usage,
                format!(
                    "parameter {number} is out of range: the model has {} parameters",
                    self.0.len()
                ),
            ));
        };
        with_slice_mut(var, visit).map_err(|error| {
            ringtree::Error::new(
                ringtree::ErrorKind::System,
                format!("variable '{name}': {error}"),
            )
        })
    }
}
