use super::*;

fn manifest() -> Manifest {
    Manifest {
        format: FORMAT,
        state: State {
            run_id: "a \"name\"".to_owned(),
            step: 7,
            seed: u64::MAX,
            user: serde_json::json!({ "loss": 0.1 + 0.2, "lines": "a\n}" }),
            ..State::default()
        },
        tensors: TensorFile {
            file: "step-00000007.safetensors".to_owned(),
            bytes: 12,
            sha256: sha256([]),
        },
    }
}

#[test]
fn manifest_round_trips_and_is_json() {
    let bytes = manifest().encode().unwrap();
    assert_eq!(Manifest::decode(&bytes), Ok(manifest()));
    let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(json["tensors"]["bytes"], 12);
    assert!(json["sha256"].is_string());
}

#[test]
fn decode_rejects_flipped_bits_and_truncation() {
    let complete = manifest().encode().unwrap();
    for length in 0..complete.len() {
        assert!(
            Manifest::decode(&complete[..length]).is_err(),
            "truncated to {length} bytes"
        );
    }
    for bit in 0..complete.len() * 8 {
        let mut damaged = complete.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(Manifest::decode(&damaged).is_err(), "bit {bit}");
    }
    let longer = [&complete[..], b"\n"].concat();
    assert!(Manifest::decode(&longer).is_err());
}

#[test]
fn decode_explains_why_foreign_file_is_rejected() {
    let error_for = |body: &str| {
        let mut bytes = body.as_bytes().to_vec();
        bytes.extend(end(body.as_bytes()));
        Manifest::decode(&bytes).unwrap_err()
    };
    let next = error_for("{\n  \"ringtree_checkpoint\": 2");
    assert!(next.contains("format 2"), "{next}");
    assert!(error_for("{\n  \"ringtree_checkpoint\": 1").contains("malformed"));
    assert!(error_for("no JSON").contains("malformed"));
    assert_eq!(Manifest::decode(b"{}"), Err("it is truncated".to_owned()));
}
