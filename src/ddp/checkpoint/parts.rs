//! Lets a program name the parts of its training state in a single function, which is used for both
//! saving and loading.

use super::Checkpoint;
use super::exchange::{Entry, Own, WRITER, Whole, entry};
use super::tensor::Tensor;
use crate::ddp::agree::listed;
use crate::dtype::{Dtype, Element};
use crate::error::{Error, Result};
use serde::{Serialize, de::DeserializeOwned};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of names that a message lists. Further names are only counted.
const NAMES_LISTED: usize = 5;

/// The parts of the training state, which are named tensors and values.
///
/// The program names all parts in a single function and passes this function to
/// [`Run::resume`](super::Run::resume) and [`Run::save`](super::Run::save). Saving copies each
/// part, and loading overwrites it. Therefore, no part that was saved can be forgotten when
/// training resumes.
///
/// Loading is strict. It first calls the function to compare names, shapes and types. If the
/// checkpoint does not match, a single error lists the parts that are missing, different or not
/// named, and nothing is overwritten. If it does match, loading calls the function again to
/// overwrite the parts.
///
/// ```
/// use ringtree::ddp::checkpoint::{Checkpoint, Parts};
///
/// fn parts(parts: &mut Parts<'_>, weights: &mut [f32], best: &mut f64) -> ringtree::Result<()> {
///     parts.tensor("model/weights", &[2, 3], weights)?;
///     parts.value("best loss", best)
/// }
///
/// let mut checkpoint = Checkpoint::default();
/// let (mut weights, mut best) = ([1.0; 6], 0.5);
/// checkpoint.insert_parts(|all| parts(all, &mut weights, &mut best))?;
/// let (mut weights, mut best) = ([0.0; 6], 9.0);
/// checkpoint.load_parts("", |all| parts(all, &mut weights, &mut best))?;
/// assert_eq!((weights, best), ([1.0; 6], 0.5));
///
/// let other = checkpoint.load_parts("", |all| all.tensor("model/weights", &[3], &mut [0f32; 3]));
/// let line = "the checkpoint of step 0 does not match the program: it has model/weights as \
///     [2, 3] f32 instead of [3] f32; it has a part that the program does not expect: best loss; \
///     name the same parts as the program that saved it";
/// assert_eq!(other.unwrap_err().to_string(), line);
/// # Ok::<(), ringtree::Error>(())
/// ```
#[derive(Debug)]
pub struct Parts<'a> {
    rank: usize,
    mode: Mode<'a>,
}

#[derive(Debug)]
enum Mode<'a> {
    Saving(&'a mut Contents),
    Comparing(&'a Checkpoint, &'a mut Findings),
    Loading(&'a Checkpoint),
}

/// The parts that a rank has named for a checkpoint.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Complete tensors, on the writer only.
    pub(super) tensors: BTreeMap<String, Tensor>,
    /// Per-rank tensors (except on the writer) and parts of tensors (on every rank).
    own: Vec<(Entry, Tensor)>,
    pub(super) values: serde_json::Map<String, serde_json::Value>,
    names: BTreeSet<String>,
}

impl Contents {
    /// Collects the parts that `name_all` names on `rank`.
    pub(super) fn of(
        rank: usize,
        name_all: impl FnOnce(&mut Parts<'_>) -> Result<()>,
    ) -> Result<Self> {
        let mut contents = Self::default();
        let mode = Mode::Saving(&mut contents);
        name_all(&mut Parts { rank, mode })?;
        Ok(contents)
    }

    /// Returns this rank's contribution to the writer's checkpoint.
    pub(super) fn own(&self) -> Own<'_> {
        let own = self.own.iter();
        Ok(own.map(|(entry, tensor)| (entry.clone(), tensor)).collect())
    }

    /// Adds a tensor that belongs to this rank only.
    pub(super) fn insert_own(&mut self, rank: usize, name: String, tensor: Tensor) {
        if rank == WRITER {
            self.tensors.insert(name, tensor);
        } else {
            self.own.push((entry(&name, &tensor), tensor));
        }
    }
}

/// The results of comparing the names, shapes and types of parts with those in a checkpoint.
#[derive(Debug, Default)]
struct Findings {
    named: BTreeSet<String>,
    lacking: Vec<String>,
    different: Vec<String>,
}

impl Parts<'_> {
    /// Returns `true` while the parts are being overwritten from a checkpoint. In that case, a
    /// program that passes copies of its tensors must copy the values back.
    #[must_use]
    pub fn is_loading(&self) -> bool {
        matches!(self.mode, Mode::Loading(_))
    }

    /// Names a tensor that is the same on all ranks, such as weights or optimizer state. `values`
    /// contains the tensor's elements, with the last dimension varying fastest. Names are paths,
    /// such as `model/weight`.
    ///
    /// # Errors
    /// Returns an [`Error`] of kind [`ErrorKind::Usage`](crate::ErrorKind::Usage) if `shape` does
    /// not match the number of elements in `values`, if `name` was already used, or if `name`
    /// starts with `rank-`.
    pub fn tensor<T: Element>(
        &mut self,
        name: &str,
        shape: &[usize],
        values: &mut [T],
    ) -> Result<()> {
        check_common(name)?;
        let rank = self.rank;
        self.whole(name, shape, values, |contents, values| {
            if rank == WRITER {
                let tensor = Tensor::new(shape, values)?;
                contents.tensors.insert(name.to_owned(), tensor);
            }
            Ok(())
        })
    }

    /// Names a tensor that belongs only to this rank, such as the state of its random number
    /// generator. If the checkpoint was written by too few ranks to include this rank, the
    /// checkpoint contains no tensor for this rank, and `values` remains unchanged.
    ///
    /// # Errors
    /// Returns an [`Error`] of kind [`ErrorKind::Usage`](crate::ErrorKind::Usage) if `shape` does
    /// not match the number of elements in `values`, or if `name` was already used.
    pub fn own<T: Element>(&mut self, name: &str, shape: &[usize], values: &mut [T]) -> Result<()> {
        let rank = self.rank;
        let name = format!("rank-{rank}/own/{name}");
        if let Mode::Comparing(checkpoint, _) | Mode::Loading(checkpoint) = &self.mode
            && rank >= checkpoint.state.world_size
        {
            return Ok(());
        }
        self.whole(&name, shape, values, |contents, values| {
            contents.insert_own(rank, name.clone(), Tensor::new(shape, values)?);
            Ok(())
        })
    }

    /// Names this rank's part of a tensor that is divided among the ranks, such as sharded
    /// optimizer state. The complete tensor has the shape `shape`, and `values` contains its
    /// elements starting at index `start`. Together, the parts of all ranks must form the complete
    /// tensor. The tensor is saved as a whole, so any number of ranks can load it.
    ///
    /// ```
    /// use ringtree::ddp::checkpoint::{Checkpoints, Directory, Run};
    /// use ringtree::ddp::{DataParallel, Options, Parameter};
    /// use ringtree::Dtype;
    ///
    /// # let scratch = tempfile::tempdir().expect("a scratch folder");
    /// # let folder = scratch.path();
    /// for ranks in [3, 2] {
    ///     let ends = ringtree::simulate(ranks, |comm| {
    ///         let mut run = Run::open(comm, Checkpoints::new(Directory::new(folder), 1))?;
    ///         let parameters = vec![Parameter::new("weight", &[6], Dtype::F32)];
    ///         let mut model = DataParallel::new(run.comm(), parameters, Options::new())?;
    ///         let block = comm.block(6); // the elements that are this rank's
    ///         let mut momentum: Vec<f32> = block.clone().map(|at| at as f32).collect();
    ///         if ranks == 2 {
    ///             momentum.fill(-1.0);
    ///         }
    ///         run.resume(&mut model, None, |parts| {
    ///             parts.shard("optimizer/momentum", &[6], block.start, &mut momentum)
    ///         })?;
    ///         Ok::<_, ringtree::Error>(momentum)
    ///     });
    ///     let all: Vec<f32> = ends.into_iter().flatten().flatten().collect();
    ///     assert_eq!(all, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    /// }
    /// ```
    ///
    /// # Errors
    /// Returns an [`Error`] of kind [`ErrorKind::Usage`](crate::ErrorKind::Usage) if the part
    /// extends beyond the end of the tensor, if `name` was already used, or if `name` starts with
    /// `rank-`. If parts overlap or leave a gap, [`Run::save`](super::Run::save) returns an error
    /// on every rank and saves nothing.
    pub fn shard<T: Element>(
        &mut self,
        name: &str,
        shape: &[usize],
        start: usize,
        values: &mut [T],
    ) -> Result<()> {
        check_common(name)?;
        let all = shape.iter().product::<usize>();
        if start.checked_add(values.len()).is_none_or(|end| end > all) {
            return Err(Error::usage(format!(
                "a part of tensor '{name}' is out of range: it has {} elements starting at index \
                 {start}, but the tensor has only {all}",
                values.len()
            )));
        }
        self.elements(name, shape, start, values, |contents, values| {
            let tensor = Tensor::new(&[values.len()], values)?;
            let shape = shape.to_vec();
            let part = Entry {
                part_of: Some(Whole { shape, start }),
                ..entry(name, &tensor)
            };
            contents.own.push((part, tensor));
            Ok(())
        })
    }

    /// Names a value of any type that serde supports, such as settings, a counter or the best loss.
    /// Finite numbers are restored exactly. JSON cannot represent NaN or infinity, so store such
    /// values in a tensor.
    ///
    /// # Errors
    /// Returns an [`Error`] of kind [`ErrorKind::Usage`](crate::ErrorKind::Usage) if the value
    /// cannot be encoded as JSON or if `name` was already used.
    pub fn value<T: Serialize + DeserializeOwned>(
        &mut self,
        name: &str,
        value: &mut T,
    ) -> Result<()> {
        match &mut self.mode {
            Mode::Saving(contents) => {
                once(&mut contents.names, name)?;
                let json = serde_json::to_value(value)
                    .map_err(|error| Error::usage(format!("cannot encode '{name}': {error}")))?;
                contents.values.insert(name.to_owned(), json);
            }
            Mode::Comparing(checkpoint, findings) => {
                once(&mut findings.named, name)?;
                match checkpoint.state.user.get(name) {
                    None => findings.lacking.push(name.to_owned()),
                    Some(json) => {
                        if let Err(error) = T::deserialize(json) {
                            findings.different.push(format!("{name} ({error})"));
                        }
                    }
                }
            }
            Mode::Loading(checkpoint) => *value = checkpoint.value(name)?,
        }
        Ok(())
    }

    fn whole<T: Element>(
        &mut self,
        name: &str,
        shape: &[usize],
        values: &mut [T],
        save: impl FnOnce(&mut Contents, &[T]) -> Result<()>,
    ) -> Result<()> {
        let count = shape.iter().product::<usize>();
        if count != values.len() {
            return Err(Error::usage(format!(
                "tensor '{name}' of shape {shape:?} has {count} elements, but {} were passed",
                values.len()
            )));
        }
        self.elements(name, shape, 0, values, save)
    }

    /// Names `values`, which are the elements starting at index `start` in a tensor of the shape
    /// `shape`. If the parts are being saved, `save` adds the elements to the contents.
    fn elements<T: Element>(
        &mut self,
        name: &str,
        shape: &[usize],
        start: usize,
        values: &mut [T],
        save: impl FnOnce(&mut Contents, &[T]) -> Result<()>,
    ) -> Result<()> {
        match &mut self.mode {
            Mode::Saving(contents) => {
                once(&mut contents.names, name)?;
                save(contents, values)
            }
            Mode::Comparing(checkpoint, findings) => {
                findings.compare(checkpoint, name, shape, T::DTYPE)
            }
            Mode::Loading(checkpoint) => copy(checkpoint, name, shape, start, values),
        }
    }
}

impl Findings {
    fn compare(
        &mut self,
        checkpoint: &Checkpoint,
        name: &str,
        shape: &[usize],
        dtype: Dtype,
    ) -> Result<()> {
        once(&mut self.named, name)?;
        match checkpoint.tensors.get(name) {
            None => self.lacking.push(format!("{name} {shape:?} {dtype}")),
            Some(tensor) if tensor.is(shape, dtype) => {}
            Some(tensor) => self.different.push(format!(
                "{name} as {:?} {} instead of {shape:?} {dtype}",
                tensor.shape(),
                tensor.dtype()
            )),
        }
        Ok(())
    }

    /// Returns a message if the parts of `checkpoint` under `prefix` do not match the parts that
    /// were named.
    fn line(self, rank: usize, checkpoint: &Checkpoint, prefix: &str) -> Option<String> {
        let own = format!("rank-{rank}/own/");
        let is_ours = |name: &&str| {
            let is_others = name.starts_with("rank-") && !name.starts_with(&own);
            let rest = name.strip_prefix(prefix);
            let is_under = prefix.is_empty() || rest.is_some_and(|rest| rest.starts_with('/'));
            is_under && !is_others && !self.named.contains(*name)
        };
        let values = checkpoint.state.user.as_object();
        let values = values.into_iter().flatten().map(|(name, _)| name.as_str());
        let tensors = checkpoint.tensors.keys().map(String::as_str);
        let beyond: Vec<_> = tensors.chain(values).filter(is_ours).collect();
        let mut said = Vec::new();
        if !self.lacking.is_empty() {
            said.push(format!("it lacks {}", listed(&self.lacking, NAMES_LISTED)));
        }
        if !self.different.is_empty() {
            said.push(format!("it has {}", listed(&self.different, NAMES_LISTED)));
        }
        match &beyond[..] {
            [] => {}
            [one] => said.push(format!(
                "it has a part that the program does not expect: {one}"
            )),
            some => said.push(format!(
                "it has parts that the program does not expect: {}",
                listed(some, NAMES_LISTED)
            )),
        }
        let step = checkpoint.state.step;
        (!said.is_empty()).then(|| {
            format!(
                "the checkpoint of step {step} does not match the program: {}; name the same parts \
                 as the program that saved it",
                said.join("; ")
            )
        })
    }
}

/// Returns an error if `name` starts with `rank-`, because such names are reserved for per-rank
/// tensors.
fn check_common(name: &str) -> Result<()> {
    match name.starts_with("rank-") {
        true => Err(Error::usage(format!(
            "tensor name '{name}' is reserved: names that start with 'rank-' are for `Parts::own`"
        ))),
        false => Ok(()),
    }
}

fn once(names: &mut BTreeSet<String>, name: &str) -> Result<()> {
    match names.insert(name.to_owned()) {
        true => Ok(()),
        false => Err(Error::usage(format!(
            "two parts of the checkpoint have the name '{name}'; use unique names"
        ))),
    }
}

impl Checkpoint {
    /// Adds the parts named by `name_all` to this checkpoint, as rank 0 would save them.
    ///
    /// # Errors
    /// Returns any error that `name_all` returns, and an [`Error`] of kind
    /// [`ErrorKind::Usage`](crate::ErrorKind::Usage) if `name_all` uses [`Parts::shard`] to name a
    /// part of a tensor.
    pub fn insert_parts(
        &mut self,
        name_all: impl FnOnce(&mut Parts<'_>) -> Result<()>,
    ) -> Result<()> {
        let contents = Contents::of(WRITER, name_all)?;
        if !contents.own.is_empty() {
            return Err(Error::usage(
                "cannot insert a part of a tensor: only `Run::save` assembles parts",
            ));
        }
        self.tensors.extend(contents.tensors);
        if !contents.values.is_empty() {
            self.state.user = contents.values.into();
        }
        Ok(())
    }

    /// Overwrites the parts named by `name_all` with the contents of this checkpoint, as rank 0
    /// would when it resumes. Use this method in a separate program that validates or serves the
    /// model.
    ///
    /// The checkpoint must not contain any other parts whose names start with `prefix` followed by
    /// a slash. If `prefix` is empty, this applies to all parts.
    ///
    /// # Errors
    /// Returns an [`Error`] of kind [`ErrorKind::Usage`](crate::ErrorKind::Usage) if the checkpoint
    /// does not match. In that case, the message lists the parts that are missing, different or not
    /// named, and nothing is overwritten. Also returns any error that `name_all` returns.
    pub fn load_parts(
        &self,
        prefix: &str,
        mut name_all: impl FnMut(&mut Parts<'_>) -> Result<()>,
    ) -> Result<()> {
        match self.compare_parts(WRITER, prefix, &mut name_all)? {
            Some(line) => Err(Error::usage(line)),
            None => self.overwrite_parts(WRITER, &mut name_all),
        }
    }

    /// Returns the value that [`Parts::value`] saved as `name`.
    ///
    /// # Errors
    /// Returns an [`Error`] of kind [`ErrorKind::Usage`](crate::ErrorKind::Usage) if there is no
    /// such value or if it has a different type.
    pub fn value<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        self.state.value(name)
    }

    /// Compares the parts that `name_all` names on `rank` with this checkpoint. Returns a message
    /// if they do not match.
    pub(super) fn compare_parts(
        &self,
        rank: usize,
        prefix: &str,
        name_all: &mut dyn FnMut(&mut Parts<'_>) -> Result<()>,
    ) -> Result<Option<String>> {
        let mut findings = Findings::default();
        let mode = Mode::Comparing(self, &mut findings);
        name_all(&mut Parts { rank, mode })?;
        Ok(findings.line(rank, self, prefix))
    }

    pub(super) fn overwrite_parts(
        &self,
        rank: usize,
        name_all: &mut dyn FnMut(&mut Parts<'_>) -> Result<()>,
    ) -> Result<()> {
        let mode = Mode::Loading(self);
        name_all(&mut Parts { rank, mode })
    }
}

/// Copies the elements starting at index `start` of the tensor `name` to `values`. The tensor's
/// shape and type have already been compared with the checkpoint.
fn copy<T: Element>(
    checkpoint: &Checkpoint,
    name: &str,
    shape: &[usize],
    start: usize,
    values: &mut [T],
) -> Result<()> {
    let values: &mut [u8] = bytemuck::cast_slice_mut(values);
    let place = start * size_of::<T>()..start * size_of::<T>() + values.len();
    let tensor = checkpoint.tensors.get(name);
    let tensor = tensor.filter(|tensor| tensor.is(shape, T::DTYPE));
    let Some(bytes) = tensor.and_then(|tensor| tensor.bytes().get(place)) else {
        return Err(Error::usage(format!(
            "cannot load tensor '{name}': it was described differently when the checkpoint was \
             compared; name the same parts in every call"
        )));
    };
    values.copy_from_slice(bytes);
    Ok(())
}
