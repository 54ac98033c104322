//! Hands stand-ins of variables to the model that is being built.

use crate::elements::same_bits;
use crate::report::{Channel, Report};
use candle_core::{DType, Device, Result, Shape, Tensor, Var};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder, VarMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A `VarBuilder` over `varmap` for a model whose gradients are to be reported, and the hooks that
/// report them, which [`Replica::new`](crate::Replica::new) wants once the model is built.
///
/// It replaces `VarBuilder::from_varmap`. The variables in `varmap` are what an optimizer updates
/// and what is saved, as always.
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

/// The parameters of a model built with [`var_builder`], in the order in which the model asked for
/// them, and the hooks on their gradients.
#[derive(Clone)]
pub struct Hooks {
    pub(crate) varmap: VarMap,
    parameters: Arc<Mutex<Vec<Hooked>>>,
    pub(crate) channel: Channel,
}

/// A variable and what the model computes with instead.
#[derive(Clone)]
pub(crate) struct Hooked {
    pub(crate) name: String,
    pub(crate) var: Var,
    stand_in: Tensor,
}

impl Hooked {
    /// Renews the stand-in after the variable has changed.
    pub(crate) fn refresh(&self) -> Result<()> {
        let count = self.var.elem_count();
        if count == 0 {
            return Ok(());
        }
        // Views of one dimension, which is what `slice_set` wants at least.
        let source = self.var.as_detached_tensor().reshape(count)?;
        self.stand_in
            .detach()
            .reshape(count)?
            .slice_set(&source, 0, 0)
    }

    /// Whether the stand-in has what the variable has. Not looked at on devices other than the CPU.
    pub(crate) fn is_fresh(&self) -> Result<bool> {
        same_bits(&self.var, &self.stand_in)
    }
}

impl Hooks {
    /// The names of the parameters.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.lock().iter().map(|each| each.name.clone()).collect()
    }

    /// The variables by name, in the same order, which is the same on every rank and in every run
    /// (the order of a `VarMap` is not).
    #[must_use]
    pub fn variables(&self) -> Vec<(String, Var)> {
        let parameters = self.lock();
        let pair = |each: &Hooked| (each.name.clone(), each.var.clone());
        parameters.iter().map(pair).collect()
    }

    /// What the model was given.
    pub(crate) fn parameters(&self) -> Vec<Hooked> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Hooked>> {
        self.parameters
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The stand-in of the variable `name`, which may be new.
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

/// What stands behind the `VarBuilder`.
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
            None => candle_core::bail!("no variable has the name {name}"),
        }
    }

    fn contains_tensor(&self, name: &str) -> bool {
        let variables = self.0.varmap.data().lock();
        let variables = variables.unwrap_or_else(PoisonError::into_inner);
        variables.contains_key(name)
    }
}
