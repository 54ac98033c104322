//! Builds models from stand-ins for their variables.

use crate::elements::same_bits;
use crate::report::{Channel, Report};
use candle_core::{DType, Device, Result, Shape, Tensor, Var};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder, VarMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Returns a `VarBuilder` for `varmap`, and hooks that report the gradients of the model that is
/// built with it. Once the model is complete, pass the hooks to
/// [`Replica::new`](crate::Replica::new).
///
/// The builder replaces `VarBuilder::from_varmap`. As usual, the optimizer updates the variables in
/// `varmap`, and you save the variables from `varmap`.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_nn::{VarMap, linear};
///
/// let varmap = VarMap::new();
/// let (builder, hooks) = ringtree_candle::var_builder(&varmap, DType::F32, &Device::Cpu);
/// let layer = linear(3, 2, builder.pp("layer"))?;
/// assert_eq!(hooks.names(), ["layer.weight", "layer.bias"]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[must_use]
pub fn var_builder(varmap: &VarMap, dtype: DType, device: &Device) -> (VarBuilder<'static>, Hooks) {
    let hooks = Hooks {
        varmap: varmap.clone(),
        parameters: Arc::default(),
        channel: Channel::default(),
    };
    let backend = Box::new(Backend(hooks.clone()));
    let builder = VarBuilder::from_backend(backend, dtype, device.clone());
    (builder, hooks)
}

/// The parameters of a model that is built with [`var_builder`], in the order in which the model
/// requested them, and the hooks on their gradients.
#[derive(Clone)]
pub struct Hooks {
    pub(crate) varmap: VarMap,
    parameters: Arc<Mutex<Vec<Hooked>>>,
    pub(crate) channel: Channel,
}

/// A variable and the stand-in that the model uses instead of it.
#[derive(Clone)]
pub(crate) struct Hooked {
    pub(crate) name: String,
    pub(crate) var: Var,
    stand_in: Tensor,
}

impl Hooked {
    /// Copies the variable to the stand-in.
    pub(crate) fn refresh(&self) -> Result<()> {
        let count = self.var.elem_count();
        if count == 0 {
            return Ok(());
        }
        // `slice_set` needs at least one dimension, so copy between one-dimensional views.
        let source = self.var.as_detached_tensor().reshape(count)?;
        self.stand_in
            .detach()
            .reshape(count)?
            .slice_set(&source, 0, 0)
    }

    /// Returns `true` if the stand-in equals the variable. Always returns `true` on devices other
    /// than the CPU.
    pub(crate) fn is_fresh(&self) -> Result<bool> {
        same_bits(&self.var, &self.stand_in)
    }
}

impl Hooks {
    /// Returns the names of the parameters.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.lock().iter().map(|each| each.name.clone()).collect()
    }

    /// Returns the name and the variable of each parameter. Unlike the order in a `VarMap`, this
    /// order is the same on every rank and in every run.
    #[must_use]
    pub fn variables(&self) -> Vec<(String, Var)> {
        let parameters = self.lock();
        let pair = |each: &Hooked| (each.name.clone(), each.var.clone());
        parameters.iter().map(pair).collect()
    }

    /// Returns the parameters that the model has requested.
    pub(crate) fn parameters(&self) -> Vec<Hooked> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Hooked>> {
        self.parameters
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the stand-in for the variable `name`. Creates it on the first request.
    fn stand_in(&self, name: &str, variable: &Tensor) -> Result<Tensor> {
        let mut parameters = self.lock();
        if let Some(known) = parameters.iter().find(|each| each.name == name) {
            return Ok(known.stand_in.clone());
        }
        let report = Report {
            parameter: parameters.len(),
            channel: self.channel.clone(),
        };
        let stand_in = variable.apply_op1(report)?;
        parameters.push(Hooked {
            name: name.to_owned(),
            var: Var::from_tensor(variable)?,
            stand_in: stand_in.clone(),
        });
        Ok(stand_in)
    }
}

/// The backend of the `VarBuilder`.
struct Backend(Hooks);

impl SimpleBackend for Backend {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        init: Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let variable = self.0.varmap.get(shape, name, init, dtype, device)?;
        self.0.stand_in(name, &variable)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        let variables = self.0.varmap.data().lock();
        let variables = variables.unwrap_or_else(PoisonError::into_inner);
        match variables.get(name) {
            Some(variable) => self.0.stand_in(name, variable),
            None => candle_core::bail!("there is no variable named {name}"),
        }
    }

    fn contains_tensor(&self, name: &str) -> bool {
        let variables = self.0.varmap.data().lock();
        let variables = variables.unwrap_or_else(PoisonError::into_inner);
        variables.contains_key(name)
    }
}
