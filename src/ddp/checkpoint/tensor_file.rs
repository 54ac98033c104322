//! Encodes and decodes safetensors files.

use super::tensor::Tensor;
use crate::dtype::Dtype;
use crate::limits::TENSOR_HEADER_BYTES_MAX;
use safetensors::tensor::{Dtype as FileDtype, Metadata, SafeTensors, TensorInfo};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Alignment of the header's length. It keeps the tensors aligned in the file.
const HEADER_ALIGNMENT_BYTES: usize = 8;
/// The only tensor name that has a special meaning in the format.
const RESERVED_NAME: &str = "__metadata__";

/// Returns the header of a file that contains `tensors`, and the tensors in the order in which
/// their bytes follow the header. The safetensors crate's own writer would copy all of the bytes.
pub(crate) fn header_and_order<'a>(
    tensors: impl Iterator<Item = (&'a str, &'a Tensor)>,
) -> Result<(Vec<u8>, Vec<&'a Tensor>), String> {
    let mut tensors: Vec<_> = tensors.collect();
    // Put tensors with the largest element types first, so that every tensor is aligned for its
    // element type.
    tensors.sort_by_key(|(name, tensor)| (Reverse(tensor.dtype().size()), *name));
    let mut end = 0_usize;
    let mut entries = Vec::with_capacity(tensors.len());
    for (name, tensor) in &tensors {
        if *name == RESERVED_NAME {
            return Err(format!("the tensor name '{name}' is reserved"));
        }
        let begin = end;
        end += tensor.bytes().len();
        let info = TensorInfo {
            dtype: file_dtype(tensor.dtype()),
            shape: tensor.shape().to_vec(),
            data_offsets: (begin, end),
        };
        entries.push(((*name).to_owned(), info));
    }
    let metadata = Metadata::new(None, entries).map_err(|error| error.to_string())?;
    let mut text = serde_json::to_vec(&metadata).map_err(|error| error.to_string())?;
    text.resize(text.len().next_multiple_of(HEADER_ALIGNMENT_BYTES), b' ');
    if text.len() > TENSOR_HEADER_BYTES_MAX {
        return Err(format!(
            "the names and shapes of {} tensors take {} bytes, which exceeds the limit of \
             {TENSOR_HEADER_BYTES_MAX}",
            tensors.len(),
            text.len()
        ));
    }
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.append(&mut text);
    let order = tensors.into_iter().map(|(_, tensor)| tensor).collect();
    Ok((header, order))
}

/// Decodes the bytes of a safetensors file and returns copies of its tensors.
pub(crate) fn decode(bytes: &[u8]) -> Result<BTreeMap<String, Tensor>, String> {
    let file = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
    let mut tensors = BTreeMap::new();
    for (name, view) in file.iter() {
        let Some(dtype) = own_dtype(view.dtype()) else {
            return Err(format!(
                "tensor '{name}' has unsupported type {}",
                view.dtype()
            ));
        };
        let tensor = Tensor::from_bytes(dtype, view.shape().to_vec(), view.data().to_vec())
            .map_err(|what| format!("tensor '{name}': {what}"))?;
        tensors.insert(name.to_owned(), tensor);
    }
    Ok(tensors)
}

const fn file_dtype(dtype: Dtype) -> FileDtype {
    match dtype {
        Dtype::I8 => FileDtype::I8,
        Dtype::U8 => FileDtype::U8,
        Dtype::I16 => FileDtype::I16,
        Dtype::U16 => FileDtype::U16,
        Dtype::I32 => FileDtype::I32,
        Dtype::U32 => FileDtype::U32,
        Dtype::I64 => FileDtype::I64,
        Dtype::U64 => FileDtype::U64,
        Dtype::F16 => FileDtype::F16,
        Dtype::Bf16 => FileDtype::BF16,
        Dtype::F32 => FileDtype::F32,
        Dtype::F64 => FileDtype::F64,
    }
}

fn own_dtype(dtype: FileDtype) -> Option<Dtype> {
    let mut all = Dtype::ALL.iter().copied();
    all.find(|own| file_dtype(*own) == dtype)
}
