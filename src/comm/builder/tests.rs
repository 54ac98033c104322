//! Tests the precedence between values set on a builder and the environment.

use super::*;
use crate::bootstrap::environment::VARIABLES;

/// Every variable that ringtree reads, with a value other than its default.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("RANK", "3"),
    ("WORLD_SIZE", "8"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "2"),
    ("MASTER_ADDR", "10.0.0.1"),
    ("MASTER_PORT", "29501"),
    ("RINGTREE_RENDEZVOUS", "10.0.0.2:29502"),
    (
        "RINGTREE_SECRET",
        "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    ),
    ("RINGTREE_SECRET_FILE", "/dev/null"),
    ("RINGTREE_TIMEOUT_MS", "1500"),
    ("RINGTREE_STALL_WARNING_S", "7"),
    ("RINGTREE_TRANSPORT", "tcp"),
    ("RINGTREE_DEVICE_PATH", "staged"),
    ("RINGTREE_INTERFACE", "eth1"),
    ("RINGTREE_HOST_ID", "x"),
    ("RINGTREE_SITE", "y"),
    ("RINGTREE_ALGORITHM", "ring"),
    ("RINGTREE_TUNING", "built-in"),
    ("RINGTREE_REPRODUCIBLE", "1"),
    ("RINGTREE_CHECK", "calls"),
    ("RINGTREE_ATTEMPT", "2"),
    ("RINGTREE_LISTENER_FD", "5"),
    ("RINGTREE_REPORT_FD", "6"),
    ("RINGTREE_JOB_TUNING", "a table"),
    ("RINGTREE_ENCRYPT", "1"),
    ("RINGTREE_LOG", "debug"),
];

/// Creates an environment from rows of variables. If a name occurs twice, the first value counts.
fn environment_of(all: &[&[(&'static str, &'static str)]]) -> Environment {
    let rows = all.iter().rev().flat_map(|rows| rows.iter().rev());
    let text = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Environment(rows.map(text).collect())
}

/// Formats settings so that equal settings give equal text.
fn text_of(settings: Result<Settings>) -> String {
    format!("{settings:?}")
}

/// Variables that are sufficient to connect.
const PLACE: &[(&str, &str)] = &[
    ("RANK", "3"),
    ("WORLD_SIZE", "8"),
    ("MASTER_ADDR", "10.0.0.1"),
    ("MASTER_PORT", "29501"),
];

#[test]
fn builder_without_values_reads_environment_like_from_env() {
    let plain = text_of(Builder::with_environment(environment_of(&[PLACE])).resolved_settings());
    for one in VARIABLES {
        let given = ENVIRONMENT.iter().find(|(name, _)| *name == one.name);
        let given = given.unwrap_or_else(|| panic!("{} is missing from ENVIRONMENT", one.name));
        for value in [given.1, "-1x\n"] {
            let extra = [(given.0, value)];
            let environment = environment_of(&[&extra, PLACE]);
            let expected = text_of(Settings::from_env(|name| environment.get(name)));
            let built = text_of(Builder::with_environment(environment).resolved_settings());
            assert_eq!(built, expected, "{given:?}");
            // `RINGTREE_LOG` applies to the process, not to a communicator.
            let is_elsewhere = PLACE.contains(given) || extra == [("RINGTREE_LOG", "debug")];
            assert!(is_elsewhere || built != plain, "{given:?} is ignored");
        }
    }
}

#[test]
fn builder_defaults_to_one_rank_but_rejects_partial_place_and_srun() {
    let alone = Builder::with_environment(environment_of(&[]))
        .resolved_settings()
        .unwrap();
    assert_eq!((alone.rank, alone.world_size), (0, 1));
    let half = environment_of(&[&[("RANK", "1")]]);
    let error = Builder::with_environment(half)
        .resolved_settings()
        .unwrap_err();
    assert!(error.to_string().starts_with("WORLD_SIZE is not set"));
    let step = [
        ("SLURM_PROCID", "2"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("SLURM_STEP_NODELIST", "n1"),
    ];
    let begun = || Builder::with_environment(environment_of(&[&step]));
    assert_eq!(begun().resolved_settings().unwrap().rank, 2);
    let complete = begun().rank(1).world_size(4).rendezvous("10.0.0.9:1");
    assert_eq!(complete.resolved_settings().unwrap().rank, 1);
}

#[test]
fn rendezvous_error_names_source_of_value() {
    let line = |one: Builder| one.resolved_settings().unwrap_err().to_string();
    let begun = |all: &'static [(&str, &str)]| Builder::with_environment(environment_of(&[all]));
    for wrong in ["localhost", "", ":1", "h:http"] {
        for builder in [begun(&[]), begun(PLACE)] {
            let line = line(builder.rank(0).world_size(2).rendezvous(wrong));
            let start = format!("rendezvous={wrong:?} is malformed; set it to the HOST:PORT");
            assert!(line.starts_with(&start), "{line}");
        }
    }
    let missing = line(begun(&[]).rank(0).world_size(2));
    let start = "MASTER_ADDR is not set; pass `rendezvous` or `store`, or";
    assert!(missing.starts_with(start), "{missing}");
    let variable = line(
        begun(&[("RINGTREE_RENDEZVOUS", "localhost")])
            .rank(0)
            .world_size(2),
    );
    assert!(
        variable.starts_with("RINGTREE_RENDEZVOUS=\"localhost\" is malformed"),
        "{variable}"
    );
    assert!(
        begun(PLACE)
            .rank(0)
            .world_size(2)
            .resolved_settings()
            .is_ok()
    );
    assert!(begun(&[]).rank(0).world_size(1).resolved_settings().is_ok());
}

type Set = fn(Builder) -> Builder;
type Show = fn(&Settings) -> String;

/// Calls that set values on a builder, functions that format the affected settings, and the
/// expected text.
const VALUES: &[(Set, Show, &str)] = &[
    (
        |one| one.rank(5),
        |all| format!("{} {:?}", all.rank, all.local_rank),
        "5 None",
    ),
    (
        |one| one.local(2, 4).rank(5),
        |all| format!("{:?}", all.local_rank),
        "Some(2)",
    ),
    (
        |one| one.world_size(16),
        |all| format!("{} {:?}", all.world_size, all.local_world_size),
        "16 None",
    ),
    (
        |one| one.local(2, 4),
        |all| format!("{:?}", all.local_world_size),
        "Some(4)",
    ),
    (
        |one| one.rendezvous("10.0.0.9:7"),
        |all| {
            format!(
                "{} {:?} {:?}",
                all.rendezvous, all.listener_fd, all.report_fd
            )
        },
        "10.0.0.9:7 None Some(6)",
    ),
    (
        |one| one.interface("lo"),
        |all| format!("{:?}", all.interface),
        "Some(\"lo\")",
    ),
    (
        |one| one.site("z"),
        |all| format!("{:?}", all.site),
        "Some(\"z\")",
    ),
    (
        |one| {
            one.timeout(Duration::from_secs(9))
                .stall_warning(Duration::ZERO)
        },
        |all| format!("{:?} {:?}", all.timeout, all.stall_warning),
        "9s 0ns",
    ),
    (
        |one| {
            one.transport(TransportChoice::Shm)
                .device_path(DevicePathChoice::Mapped)
        },
        |all| format!("{:?} {:?}", all.transport, all.device_path),
        "Shm Mapped",
    ),
    (
        |one| one.check_calls(false).reproducible(false),
        |all| format!("{} {}", all.checks_calls, all.is_reproducible),
        "false false",
    ),
    (
        |one| one.tuning(&TuningTable::default()),
        |all| format!("{}", matches!(&all.tuning, TuningSource::Text { .. })),
        "true",
    ),
];

#[test]
fn builder_values_override_environment() {
    let is_implemented = |one: &&(&str, &str)| one.0 != "RINGTREE_ENCRYPT";
    let all: Vec<_> = ENVIRONMENT.iter().filter(is_implemented).copied().collect();
    let environment = || environment_of(&[&all]);
    for (nth, (set, show, expected)) in VALUES.iter().enumerate() {
        let settings = set(Builder::with_environment(environment())).resolved_settings();
        assert_eq!(show(&settings.unwrap()), *expected, "row {nth}");
    }
    // All other settings come from the environment.
    let settings = Builder::with_environment(environment())
        .rank(5)
        .resolved_settings()
        .unwrap();
    assert_eq!(settings.algorithm.as_deref(), Some("ring"));
    assert_eq!((settings.attempt, settings.listener_fd), (2, None));
    let settings = Builder::with_environment(environment())
        .rank(3)
        .resolved_settings();
    assert_eq!(
        settings.unwrap().listener_fd,
        Some(5),
        "the rank is the one that the launcher has set"
    );
}
