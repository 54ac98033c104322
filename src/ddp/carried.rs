//! Creates models whose gradients a [`Carrier`] stores, and locates these gradients.

use super::carrier::{Carrier, Place};
use super::hooks::{Hook, Plain};
use super::options::Options;
use super::parallel::DataParallel;
use super::parameter::Parameter;
use crate::comm::Communicator;
use crate::error::{Error, Result};

/// Like [`DataParallel::new`], but `carrier` stores and averages the gradients and no hook is
/// used.
///
/// Use a carrier either on all ranks or on none of them.
///
/// # Errors
/// Returns the same errors as [`DataParallel::new`] and [`Carrier::attach`]. Also returns
/// [`ErrorKind::Usage`](crate::ErrorKind::Usage) if `options` sets a hook, `non_finite`,
/// `clip_norm` or `sharded`.
pub fn with_carrier(
    comm: &Communicator,
    parameters: Vec<Parameter>,
    options: Options,
    carrier: impl Carrier + 'static,
) -> Result<DataParallel> {
    if options.hook.name() != Plain.name() {
        return Err(Error::usage(format!(
            "the hook {} requires gradients in host memory; remove the hook",
            options.hook.name()
        )));
    }
    let mut model = DataParallel::register(comm, parameters, options, Some(Box::new(carrier)))?;
    if let Some(carrier) = &mut model.carrier {
        carrier.attach(&model.comms[0])?;
    }
    Ok(model)
}

/// Returns the place to which the parameter's gradient must be written or added, and marks the
/// parameter as used.
///
/// Call [`DataParallel::ready`] once the gradient is complete.
///
/// # Errors
/// Returns the same errors as [`DataParallel::report`].
pub fn place(model: &mut DataParallel, parameter: usize) -> Result<Place<'_>> {
    model.begin(parameter.into())?;
    if model.readiness.is_ready(parameter) {
        return Err(model.complete_already(parameter));
    }
    let is_first = !std::mem::replace(&mut model.is_used[parameter], true);
    Ok(place_of(model, parameter, is_first))
}

/// Returns the place of the parameter's averaged gradient after [`DataParallel::wait`]. Returns
/// `None` if no rank reported a gradient for the parameter.
///
/// # Errors
/// Returns [`ErrorKind::Usage`](crate::ErrorKind::Usage) if called before `wait` or if
/// `parameter` does not exist. If a step has failed, returns the first error that occurred.
pub fn averaged_place(model: &DataParallel, parameter: usize) -> Result<Option<Place<'_>>> {
    model.number(parameter.into())?;
    model.check_averaged()?;
    Ok(model.is_used[parameter].then(|| place_of(model, parameter, false)))
}

fn place_of(model: &DataParallel, parameter: usize, is_first: bool) -> Place<'_> {
    let place = &model.layout.places[parameter];
    Place {
        bucket: &model.infos[place.bucket],
        range: place.range.clone(),
        is_first,
    }
}
