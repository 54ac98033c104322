use super::*;
use crate::limits;

#[test]
fn unknown_variable_error_suggests_closest_name() {
    let nearest = [
        ("RINGTREE_TIMEOUT", "RINGTREE_TIMEOUT_MS"),
        ("RINGTREE_TRANSPROT", "RINGTREE_TRANSPORT"),
        ("RINGTREE_ALGORYTHM", "RINGTREE_ALGORITHM"),
        ("RINGTREE_transport", "RINGTREE_TRANSPORT"),
        ("RINGTREE_\u{1b}[2J", "RINGTREE_LOG"),
    ];
    for (misspelled, meant) in nearest {
        let error = check_names([misspelled.into()]).unwrap_err().to_string();
        assert!(
            error.contains(&format!("the closest match is {meant};")),
            "{error}"
        );
        assert!(!error.contains('\u{1b}'), "{error:?}");
    }
}

#[test]
fn kubernetes_and_known_variables_are_accepted() {
    let kubernetes = [
        "RINGTREE_SERVICE_HOST",
        "RINGTREE_PORT_29500_TCP_ADDR",
        "RINGTREE_PORT",
    ];
    assert_eq!(check_names(kubernetes.map(Into::into)), Ok(()));
    assert_eq!(
        check_names(VARIABLES.iter().map(|one| one.name.into())),
        Ok(())
    );
}

#[test]
fn default_texts_equal_limits() {
    let default = |name| {
        VARIABLES
            .iter()
            .find(|one| one.name == name)
            .unwrap()
            .default
    };
    let timeout = limits::DEADLINE_DEFAULT.as_millis().to_string();
    assert_eq!(default("RINGTREE_TIMEOUT_MS"), timeout);
    let warning = limits::STALL_WARNING_DEFAULT.as_secs().to_string();
    assert_eq!(default("RINGTREE_STALL_WARNING_S"), warning);
}

#[test]
fn settings_page_lists_every_variable() {
    let document = include_str!("../../../docs/settings.md");
    let rows: Vec<_> = document
        .lines()
        .filter(|line| line.starts_with("| `"))
        .collect();
    let row = |one: &Variable| format!("| `{}` | {} | {} |", one.name, one.default, one.meaning);
    let expected: Vec<_> = VARIABLES.iter().map(row).collect();
    assert_eq!(
        rows, expected,
        "left: rows of docs/settings.md, right: VARIABLES"
    );
}
