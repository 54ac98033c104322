//! Gets and restores the parts of a model's state that a checkpoint contains.

use super::agree::agree;
use super::parallel::DataParallel;
use crate::error::Result;

/// Returns the indices of the parameters in bucket order, and the first step (counted from 0) that
/// uses this order.
///
/// Returns `None` while the registration order is used. A checkpoint stores both values because,
/// with a different order, gradients may be summed in different buckets and with different
/// algorithms, which can change the sums.
#[must_use]
pub fn order(model: &DataParallel) -> Option<(&[usize], u64)> {
    let since = model.order_since?;
    Some((model.next_order.as_deref().unwrap_or(&model.order), since))
}

/// Sets the number of completed steps and the bucket order to the values from a checkpoint.
///
/// All ranks must call this function between steps, with the same values. `Run::resume` restores
/// these values as well as the hook's state ([`restore_hook`]).
///
/// # Errors
/// Returns [`ErrorKind::Usage`](crate::ErrorKind::Usage) if `order` does not contain every
/// parameter exactly once. If a step has failed, returns the first error that occurred.
pub fn restore(
    model: &mut DataParallel,
    steps: u64,
    order: Option<(Vec<usize>, u64)>,
) -> Result<()> {
    model.check_alive()?;
    if let Some((order, since)) = order {
        model.take_order(order, since)?;
    }
    model.steps = steps;
    Ok(())
}

/// Returns the hook's state on this rank, for use in a checkpoint.
///
/// `Run::save` saves this state automatically.
#[must_use]
pub fn hook_state(model: &DataParallel) -> Vec<(String, Vec<f32>)> {
    model.options.hook.state()
}

/// Restores the hook state that was returned by [`hook_state`] in an earlier run.
///
/// Any state that is the same on all ranks is taken from rank 0, because there may be more
/// ranks than before. All ranks must call this function between steps.
///
/// # Errors
/// In addition to the [errors that all calls share](crate::Communicator#errors), returns
/// [`ErrorKind::Usage`](crate::ErrorKind::Usage) on every rank if the hook of any rank rejects
/// its state.
pub fn restore_hook(model: &mut DataParallel, state: Vec<(String, Vec<f32>)>) -> Result<()> {
    model.check_alive()?;
    let taken = model.take_hook_state(state);
    agree(&model.comms[0], taken)
}
