//! Tests of reading settings from environment variables.

use super::*;
use crate::error::ErrorKind;

const BASE: &[(&str, &str)] = &[
    ("RANK", "3"),
    ("WORLD_SIZE", "8"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "2"),
    ("MASTER_ADDR", "10.0.0.1"),
    ("MASTER_PORT", "29500"),
];

fn with(changes: &[(&str, &str)]) -> Result<Settings> {
    Settings::from_env(|name| {
        let all = changes.iter().chain(BASE);
        let found = all.clone().find(|(key, _)| *key == name);
        found.map(|(_, value)| (*value).to_owned())
    })
}

fn refusal(changes: &[(&str, &str)]) -> String {
    match with(changes) {
        Err(error) if error.kind() == ErrorKind::Configuration => error.to_string(),
        other => panic!("{changes:?} gave {other:?}"),
    }
}

#[test]
fn torchrun_variables_are_enough() {
    let settings = with(&[]).unwrap();
    assert_eq!((settings.rank, settings.world_size), (3, 8));
    let local = (settings.local_rank, settings.local_world_size);
    assert_eq!(local, (Some(1), Some(2)));
    assert_eq!(settings.rendezvous, "10.0.0.1:29500");
    assert!(settings.next_port_too && settings.secret.is_none());
}

#[test]
fn ringtree_variables_take_precedence() {
    let settings = with(&[
        ("RINGTREE_RENDEZVOUS", "h:1"),
        ("RINGTREE_TIMEOUT_MS", "1500"),
        ("RINGTREE_ALGORITHM", " ring"),
        ("RINGTREE_HOST_ID", "x "),
        ("RINGTREE_SITE", " y "),
        ("RINGTREE_INTERFACE", "eth1"),
        ("RINGTREE_ATTEMPT", "2"),
    ])
    .unwrap();
    assert_eq!(
        (settings.rendezvous.as_str(), settings.next_port_too),
        ("h:1", false)
    );
    assert_eq!(settings.timeout, Duration::from_millis(1500));
    assert_eq!(settings.algorithm.as_deref(), Some("ring"));
    assert_eq!(settings.host_id.as_deref(), Some("x"));
    assert_eq!(settings.site.as_deref(), Some("y"));
    assert_eq!(settings.attempt, 2);
    assert_eq!(settings.interface.as_deref(), Some("eth1"));
    let algorithm = ("RINGTREE_ALGORITHM".to_owned(), "ring".to_owned());
    assert!(settings.to_agree().contains(&algorithm));
}

#[test]
fn errors_name_invalid_variables() {
    for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"] {
        assert!(refusal(&[(name, "")]).starts_with(&format!("{name} is not set")));
    }
    for name in [
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "MASTER_PORT",
        "RINGTREE_TIMEOUT_MS",
        "RINGTREE_LOG",
    ] {
        assert!(refusal(&[(name, "-1x")]).contains(&format!("{name}=\"-1x\"")));
    }
    assert!(refusal(&[("MASTER_PORT", "0")]).contains("1 to 65535"));
    assert!(refusal(&[("RANK", "8")]).contains("ranks are 0 to 7"));
    assert!(refusal(&[("WORLD_SIZE", "0")]).contains("WORLD_SIZE=0"));
    assert!(refusal(&[("RINGTREE_RENDEZVOUS", "nowhere")]).contains("HOST:PORT"));
    assert!(refusal(&[("RINGTREE_TUNING", "/")]).contains("RINGTREE_TUNING=/ cannot be read"));
}

#[test]
fn unimplemented_settings_are_rejected() {
    assert!(refusal(&[("RINGTREE_ENCRYPT", "1")]).starts_with("RINGTREE_ENCRYPT=1 is not"));
    with(&[("RINGTREE_ENCRYPT", "0")]).unwrap();
}

#[test]
fn transport_is_parsed_and_compared_between_ranks() {
    use TransportChoice::{Auto, Shm, Tcp};
    for (value, expected) in [("", Auto), ("auto", Auto), ("tcp", Tcp), (" shm ", Shm)] {
        let settings = with(&[("RINGTREE_TRANSPORT", value)]).unwrap();
        assert_eq!(settings.transport, expected);
        let agreed = ("RINGTREE_TRANSPORT".to_owned(), expected.name().to_owned());
        assert!(settings.to_agree().contains(&agreed));
    }
    let line = refusal(&[("RINGTREE_TRANSPORT", "pigeon")]);
    assert!(line.contains("RINGTREE_TRANSPORT=pigeon") && line.contains("tcp or shm"));
    let pigeon = |name: &str| (name == "RINGTREE_TRANSPORT").then(|| "pigeon".to_owned());
    assert!(check_environment(pigeon).is_err());
}

#[test]
fn call_checking_is_parsed_and_compared_between_ranks() {
    let settings = with(&[("RINGTREE_CHECK", " calls ")]).unwrap();
    assert!(settings.checks_calls && !with(&[]).unwrap().checks_calls);
    assert_ne!(settings.to_agree(), with(&[]).unwrap().to_agree());
    let line = refusal(&[("RINGTREE_CHECK", "everything")]);
    assert_eq!(line, "RINGTREE_CHECK=everything: unknown check; use calls");
    let wrong = |name: &str| (name == "RINGTREE_CHECK").then(|| "1".to_owned());
    assert!(check_environment(wrong).is_err());
}

#[test]
fn reproducibility_is_parsed_and_compared_between_ranks() {
    for (value, expected) in [("", false), ("0", false), (" 1 ", true)] {
        let settings = with(&[("RINGTREE_REPRODUCIBLE", value)]).unwrap();
        assert_eq!(settings.is_reproducible, expected);
        let agreed = u8::from(expected).to_string();
        let agreed = ("RINGTREE_REPRODUCIBLE".to_owned(), agreed);
        assert!(settings.to_agree().contains(&agreed));
    }
    let line = refusal(&[("RINGTREE_REPRODUCIBLE", "yes")]);
    assert_eq!(line, "RINGTREE_REPRODUCIBLE=yes: expected 0 or 1");
    let wrong = |name: &str| (name == "RINGTREE_REPRODUCIBLE").then(|| "yes".to_owned());
    assert!(check_environment(wrong).is_err());
}

#[test]
fn device_path_is_parsed() {
    use DevicePathChoice::{Auto, Mapped, Staged};
    for (value, expected) in [
        ("", Auto),
        ("auto", Auto),
        ("staged", Staged),
        (" mapped ", Mapped),
    ] {
        let settings = with(&[("RINGTREE_DEVICE_PATH", value)]).unwrap();
        assert_eq!(settings.device_path, expected);
    }
    let line = refusal(&[("RINGTREE_DEVICE_PATH", "pigeon")]);
    assert!(line.contains("RINGTREE_DEVICE_PATH: ") && line.contains("auto staged mapped"));
    let pigeon = |name: &str| (name == "RINGTREE_DEVICE_PATH").then(|| "pigeon".to_owned());
    assert!(check_environment(pigeon).is_err());
}

#[test]
fn secrets_are_read_and_never_shown() {
    let digits = "c0ffee".repeat(11)[..64].to_owned();
    let settings = with(&[("RINGTREE_SECRET", &digits)]).unwrap();
    assert!(settings.secret.is_some());
    assert!(!format!("{settings:?}").contains("c0ffee"));
    let message = refusal(&[("RINGTREE_SECRET", "c0ffee")]);
    assert!(message.contains("64 hexadecimal digits") && !message.contains("c0ffee"));

    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    fs::write(path, format!("{digits}\n")).unwrap();
    assert!(
        with(&[("RINGTREE_SECRET_FILE", path)])
            .unwrap()
            .secret
            .is_some()
    );
    assert!(refusal(&[("RINGTREE_SECRET_FILE", "/no/such")]).contains("/no/such"));
}

#[test]
fn tuning_source_is_compared_between_ranks() {
    let to_agree = |changes| with(changes).unwrap().to_agree();
    assert_eq!(to_agree(&[]), to_agree(&[("RINGTREE_TUNING", "")]));
    assert_ne!(to_agree(&[]), to_agree(&[("RINGTREE_TUNING", "built-in")]));
    assert_ne!(to_agree(&[]), to_agree(&[("RINGTREE_TUNING", "/no/such")]));
}

/// Reads the settings of a program that may be a single rank. Only the variables in `all` are set.
fn from_env_or_alone(all: &[(&str, &str)]) -> Result<Settings> {
    Settings::from_env_or_alone(|name| {
        let found = all.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| (*value).to_owned())
    })
}

#[test]
fn program_without_launcher_is_single_rank() {
    let alone = from_env_or_alone(&[("RINGTREE_ALGORITHM", "ring"), ("RANK", " ")]).unwrap();
    assert_eq!((alone.rank, alone.world_size), (0, 1));
    assert_eq!((alone.local_rank, alone.local_world_size), (None, None));
    assert_eq!(alone.algorithm.as_deref(), Some("ring"));
    // `mpirun -n 1` starts a single process, and so does a shell within an allocation.
    assert!(from_env_or_alone(&[("OMPI_COMM_WORLD_SIZE", "1"), ("SLURM_NTASKS", "8")]).is_ok());
    assert_eq!(from_env_or_alone(BASE).unwrap().rank, 3);
}

#[test]
fn incomplete_environment_is_an_error() {
    let missing = [
        ("RANK", "0", "WORLD_SIZE"),
        ("WORLD_SIZE", "1", "RANK"),
        ("LOCAL_RANK", "0", "RANK"),
        ("MASTER_ADDR", "10.0.0.1", "RANK"),
        ("RINGTREE_RENDEZVOUS", "10.0.0.1:1", "RANK"),
    ];
    for (name, value, what) in missing {
        let line = from_env_or_alone(&[(name, value)]).unwrap_err().to_string();
        assert!(line.contains(&format!("{what} is not set")), "{line}");
    }
    let step = [("SLURM_PROCID", "1"), ("SLURM_STEP_ID", "0")];
    let line = from_env_or_alone(&step).unwrap_err().to_string();
    assert!(line.contains("SLURM_STEP_NUM_TASKS is not set"), "{line}");
}

#[test]
fn ranks_of_other_launchers_meet_over_their_channel_or_address() {
    let hydra = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("PMI_FD", "9")];
    let channel = |more: &[(&'static str, &'static str)]| {
        let settings = from_env_or_alone(&[&hydra[..], more].concat()).unwrap();
        assert_eq!((settings.rank, settings.world_size), (1, 2));
        (settings.channel, settings.rendezvous)
    };
    let over_pmi = (Some(Meeting::Pmi(9)), String::new());
    assert_eq!(channel(&[]), over_pmi);
    assert_eq!(
        channel(&[("MASTER_ADDR", "n1"), ("MASTER_PORT", "1")]),
        over_pmi
    );
    let address = (None, "10.0.0.1:7".to_owned());
    assert_eq!(channel(&[("RINGTREE_RENDEZVOUS", "10.0.0.1:7")]), address);

    let slurm = [
        ("SLURM_PROCID", "1"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NUM_TASKS", "2"),
        ("SLURM_STEP_NODELIST", "n[7-8]"),
        ("SLURM_STEP_RESV_PORTS", "21000-21001"),
    ];
    let rendezvous = |more: &[(&'static str, &'static str)]| {
        let all = [&slurm[..], more].concat();
        from_env_or_alone(&all).map(|settings| settings.rendezvous)
    };
    assert_eq!(rendezvous(&[]), Ok("n7:21000".to_owned()));
    let master = [("MASTER_ADDR", "n8"), ("MASTER_PORT", "29500")];
    assert_eq!(rendezvous(&master), Ok("n8:29500".to_owned()));
    let arbitrary = rendezvous(&[("SLURM_DISTRIBUTION", "arbitrary")]).unwrap_err();
    assert!(
        arbitrary.to_string().contains("srun --mpi=pmi2"),
        "{arbitrary}"
    );
    // Slurm has not started this process, although it runs in one of Slurm's jobs.
    let body = [("SLURM_JOB_ID", "1"), ("SLURM_NTASKS", "8")];
    assert_eq!(from_env_or_alone(&body).unwrap().world_size, 1);
    let in_body = Settings::from_env(|name| {
        let found = body.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| (*value).to_owned())
    });
    assert!(in_body.unwrap_err().to_string().contains("`srun`"));
}

#[test]
fn only_launchers_make_a_process_a_rank() {
    let is_rank_in = |all: &[(&str, &str)]| {
        is_rank(|name| {
            let found = all.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    };
    let task = [("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "0")];
    let tasks = |count| [&task[..], &[("SLURM_STEP_NUM_TASKS", count)]].concat();
    assert!(is_rank_in(BASE));
    assert!(is_rank_in(&tasks("2")));
    assert!(is_rank_in(&[("PMI_RANK", "0"), ("PMI_SIZE", "1")]));
    assert!(is_rank_in(&[("RANK", "0")]), "`from_env` returns the error");
    assert!(is_rank_in(&task), "`from_env` returns the error");
    assert!(!is_rank_in(&[]));
    assert!(!is_rank_in(&[("RANK", " ")]));
    assert!(!is_rank_in(&tasks("1")), "it may be a shell");
    assert!(!is_rank_in(&[("SLURM_JOB_ID", "1"), ("SLURM_NTASKS", "8")]));
}

#[test]
fn rank_set_in_code_overrides_environment() {
    let settings = Settings::for_rank(1, 2, |name| match name {
        "RANK" => Some("7".into()),
        "RINGTREE_TIMEOUT_MS" => Some("5000".into()),
        _ => None,
    });
    let settings = settings.unwrap();
    assert_eq!((settings.rank, settings.timeout.as_secs()), (1, 5));
}
