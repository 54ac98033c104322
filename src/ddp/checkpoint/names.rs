//! Names the files of a checkpoint.

const MANIFEST_SUFFIX: &str = ".json";
const TENSORS_SUFFIX: &str = ".safetensors";

/// Returns the name of the manifest for `step`, such as `step-00000120.json`.
pub(crate) fn manifest(step: u64) -> String {
    format!("step-{step:08}{MANIFEST_SUFFIX}")
}

/// Returns a name that is not in `taken` for the tensor file of `step`, such as
/// `step-00000120.safetensors`. If an existing checkpoint uses that name, a number is added to the
/// new name because the existing checkpoint must stay valid until it is replaced.
pub(crate) fn tensors(step: u64, taken: &[String]) -> String {
    let is_free = |name: &String| !taken.contains(name);
    let plain = format!("step-{step:08}{TENSORS_SUFFIX}");
    let numbered = (2_u64..).map(|number| format!("step-{step:08}.{number}{TENSORS_SUFFIX}"));
    std::iter::once(plain)
        .chain(numbered)
        .find(is_free)
        .expect("invariant: there are more numbers than files")
}

/// Returns the step of the manifest `name`, or `None` if `name` is not a manifest.
pub(crate) fn step_of_manifest(name: &str) -> Option<u64> {
    step(name.strip_suffix(MANIFEST_SUFFIX)?)
}

/// Returns the step of the tensor file `name`, or `None` if `name` is not a tensor file.
pub(crate) fn step_of_tensors(name: &str) -> Option<u64> {
    let stem = name.strip_suffix(TENSORS_SUFFIX)?;
    match stem.split_once('.') {
        Some((stem, number)) if is_number(number) => step(stem),
        Some(_) => None,
        None => step(stem),
    }
}

fn step(stem: &str) -> Option<u64> {
    let digits = stem.strip_prefix("step-")?;
    // A name that this module would not have written belongs to another program.
    let step = is_number(digits).then(|| digits.parse().ok())??;
    (format!("{step:08}") == digits).then_some(step)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests;
