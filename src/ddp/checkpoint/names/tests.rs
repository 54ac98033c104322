use super::*;

#[test]
fn only_names_written_by_this_module_are_parsed() {
    for step in [0, 7, 12_345_678, 123_456_789, u64::MAX] {
        assert_eq!(step_of_manifest(&manifest(step)), Some(step));
        let mut taken = Vec::new();
        for _ in 0..3 {
            let name = tensors(step, &taken);
            assert!(!taken.contains(&name));
            assert_eq!(step_of_tensors(&name), Some(step));
            taken.push(name);
        }
    }
    for name in [
        "step-1.json",
        "step-0000000001.json",
        "step-+0000001.json",
        "step-99999999999999999999.json",
        "step-00000001.json.bak",
        "../step-00000001.json",
    ] {
        assert_eq!(step_of_manifest(name), None, "{name}");
    }
    for name in [
        "step-00000001..safetensors",
        "step-00000001.a.safetensors",
        "x/step-00000001.safetensors",
        "model.safetensors",
    ] {
        assert_eq!(step_of_tensors(name), None, "{name}");
    }
}
