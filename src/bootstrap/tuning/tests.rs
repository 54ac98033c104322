use super::*;

#[test]
fn tuning_table_is_compared_by_content() {
    let tuned = |content: &str| {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), content).unwrap();
        TuningSource::of_setting(file.path().to_str().unwrap())
            .unwrap()
            .to_agree()
    };
    assert_eq!(tuned("a"), tuned("a"));
    assert_ne!(tuned("a"), tuned("b"));
    let absent = TuningSource::of_setting("/no/such").unwrap();
    assert_eq!(absent, TuningSource::MeasuredInto("/no/such".into()));
    assert_ne!(absent.to_agree(), tuned("a"));
    assert_ne!(absent.to_agree(), TuningSource::Measured.to_agree());
    assert_ne!(
        TuningSource::Measured.to_agree(),
        TuningSource::BuiltIn.to_agree()
    );
}

#[test]
fn unreadable_tuning_file_is_named_in_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let error = TuningSource::of_setting(path).unwrap_err();
    assert!(error.to_string().contains(path), "{error}");
}
