//! Decodes files: tuning tables, recordings, and checkpoints (their manifests, tensors and file
//! names).

use super::{Decoder, Input};
use crate::ddp::checkpoint::manifest::{FORMAT, Manifest, TensorFile, end};
use crate::ddp::checkpoint::tensor_file::{decode, header_and_order};
use crate::ddp::checkpoint::{State, Tensor, names};
use crate::ddp::trace::{self, Timeline, clock::Reading};
use crate::dtype::Dtype;
use crate::plan::TuningTable;
use crate::plan::internal::tuning::hash;
use std::collections::BTreeMap;

pub(super) const TUNING: Decoder = Decoder {
    name: "tuning",
    run: tuning,
    seeds: || vec![TuningTable::default().to_string().into_bytes()],
};

/// A complete manifest, or a manifest without its final checksum.
pub(super) const MANIFEST: Decoder = Decoder {
    name: "manifest",
    run: |bytes| {
        manifest(bytes);
        manifest(&[bytes, &end(bytes)].concat());
    },
    seeds: manifests,
};

pub(super) const TENSORS: Decoder = Decoder {
    name: "tensors",
    run: tensors,
    seeds: || vec![file(&BTreeMap::new()), file(&one_of_each())],
};

pub(super) const NAMES: Decoder = Decoder {
    name: "names",
    run: name,
    seeds: || {
        let taken = [names::tensors(120, &[])];
        let again = names::tensors(120, &taken);
        let [first] = taken;
        [names::manifest(120), first, again]
            .map(String::into_bytes)
            .to_vec()
    },
};

/// Two readings of another rank's clocks, followed by that rank's recording.
pub(super) const RECORDING: Decoder = Decoder {
    name: "recording",
    run: recording,
    seeds: || {
        let spans = |from: &str, to: &str| {
            let span = format!(
                r#"{{"track":"step","name":"0","start":{from},"end":{to},"numbers":[["n",3]]}}"#
            );
            format!(r#"{{"spans":[{span},{span}],"dropped":0}}"#).into_bytes()
        };
        let (early, late) = (
            r#"{"secs":1,"nanos":1}"#,
            r#"{"secs":18446744074,"nanos":0}"#,
        );
        let mut clocks = vec![0; 32];
        (clocks[1], clocks[18]) = (9, 9);
        let honest = [clocks, spans(early, late)].concat();
        // These clocks drift by centuries, and the span ends before it begins.
        let clocks = [[0; 8], [255; 8], [255; 8], [0; 8]].concat();
        vec![honest, [clocks, spans(late, early)].concat()]
    },
};

fn recording(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut time = || i128::from(u64::from_le_bytes(input.array()));
    let mut reading = || Reading::new(0, time(), time());
    let (begin, end) = (reading(), reading());
    if let Ok(recording) = trace::decode(1, input.0) {
        let json = Timeline::new(vec![recording], &[begin], &[end]).json();
        assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok());
    }
}

fn tuning(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(table) = TuningTable::parse(text) {
        let again = TuningTable::parse(&table.to_string());
        assert_eq!(again, Ok(table));
        assert_eq!(again.map(|again| hash(&again)), Ok(hash(&table)));
    }
}

fn manifest(bytes: &[u8]) {
    if let Ok(manifest) = Manifest::decode(bytes) {
        let once = manifest.encode().expect("a decoded manifest is valid");
        assert_eq!(Manifest::decode(&once), Ok(manifest));
    }
}

fn manifests() -> Vec<Vec<u8>> {
    let manifest = Manifest {
        format: FORMAT,
        state: State {
            run_id: "a \"name\"".to_owned(),
            world_size: 4,
            step: 120,
            order: Some((vec![2, 0, 1], 5)),
            tuning: Some(TuningTable::default().to_string()),
            user: serde_json::json!({ "loss": 0.25, "lines": ["a\n}", null, -1] }),
            ..State::default()
        },
        tensors: TensorFile {
            file: "step-00000120.safetensors".to_owned(),
            bytes: 4096,
            sha256: "0".repeat(64),
        },
    };
    let whole = manifest.encode().expect("the manifest is valid");
    let body = whole[..whole.len() - end(&[]).len()].to_vec();
    vec![whole, body]
}

fn tensors(bytes: &[u8]) {
    if let Ok(tensors) = decode(bytes) {
        // A file may contain tensors that this library's writer rejects with an error.
        if header_and_order(named(&tensors)).is_ok() {
            assert_eq!(decode(&file(&tensors)), Ok(tensors));
        }
    }
}

fn named(tensors: &BTreeMap<String, Tensor>) -> impl Iterator<Item = (&str, &Tensor)> {
    tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
}

fn file(tensors: &BTreeMap<String, Tensor>) -> Vec<u8> {
    let (mut bytes, order) = header_and_order(named(tensors)).expect("the tensors are valid");
    for tensor in order {
        bytes.extend_from_slice(tensor.bytes());
    }
    bytes
}

fn one_of_each() -> BTreeMap<String, Tensor> {
    let tensor = |dtype: Dtype| {
        let shape = vec![1, 3];
        let tensor = Tensor::from_bytes(dtype, shape, vec![7; 3 * dtype.size()]);
        (format!("model/{dtype}"), tensor.expect("the bytes fit"))
    };
    Dtype::ALL.iter().copied().map(tensor).collect()
}

fn name(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Some(step) = names::step_of_manifest(text) {
        assert_eq!(names::manifest(step), text);
    }
    if names::step_of_tensors(text).is_some() {
        assert!(!text.contains(['/', '\0']), "a name must not be a path");
    }
}
