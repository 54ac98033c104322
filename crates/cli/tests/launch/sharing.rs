//! Tests shared memory as a user sees it: `doctor`, `--transport`, and machines without shared
//! memory.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

/// Returns the command without the settings of this process's environment.
fn ringtree(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringtree"));
    command.args(arguments);
    for name in ["RANK", "RINGTREE_TRANSPORT", "RINGTREE_HOST_ID"] {
        command.env_remove(name);
    }
    command
}

/// Makes the kernel reject memfds for `command`, as a container's seccomp filter may.
fn refuse_memory(command: &mut Command) {
    let instruction = |code: u32, jump_if_not: u8, constant: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: jump_if_not,
        k: constant,
    };
    let mut filter = [
        // The system call number is the first word of the filter's input.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        instruction(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            1,
            libc::SYS_memfd_create as u32,
        ),
        instruction(
            libc::BPF_RET | libc::BPF_K,
            0,
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        ),
        instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let install = move || {
        let program = libc::sock_fprog {
            len: filter.len() as u16,
            filter: filter.as_mut_ptr(),
        };
        // SAFETY: prctl is a plain system call; it copies the filter, which lives until then.
        let done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
        };
        done.then_some(()).ok_or_else(io::Error::last_os_error)
    };
    // SAFETY: the closure makes two system calls on its own memory and allocates nothing.
    unsafe { command.pre_exec(install) };
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

const BENCH: &[&str] = &[
    "bench",
    "all-reduce",
    "--ranks",
    "2",
    "--sizes",
    "8",
    "--iters",
    "3",
    "--format",
    "csv",
];

#[test]
fn doctor_reports_how_memory_is_shared() {
    let output = ringtree(&["doctor"])
        .env("RINGTREE_HOST_ID", "here")
        .env("RINGTREE_TRANSPORT", "shm")
        .output()
        .unwrap();
    let printed = text(&output.stdout);
    assert_eq!(code(&output), 0, "{printed}{}", text(&output.stderr));
    for part in [
        "shm (RINGTREE_TRANSPORT)",
        "sealed",
        "here (RINGTREE_HOST_ID)",
        "boot id",
        "user",
        "\n  GPU ",
        "GPU buffers ",
    ] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
}

#[test]
fn doctor_reports_forbidden_memory_and_fails_if_required() {
    for (transport, expected) in [("auto", 0), ("shm", 1)] {
        let mut doctor = ringtree(&["doctor"]);
        refuse_memory(&mut doctor);
        let output = doctor
            .env("RINGTREE_TRANSPORT", transport)
            .output()
            .unwrap();
        let printed = text(&output.stdout);
        assert!(
            printed.contains("memfd_create") && printed.contains("cannot create"),
            "{printed}"
        );
        assert_eq!(code(&output), expected, "{transport}");
    }
}

#[test]
fn forbidden_memory_makes_auto_use_tcp_and_shm_fail() {
    let mut auto = ringtree(BENCH);
    refuse_memory(&mut auto);
    let output = auto.output().unwrap();
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains(",tcp,"));

    let mut shared = ringtree(BENCH);
    refuse_memory(&mut shared);
    let output = shared.args(["--transport", "shm"]).output().unwrap();
    let printed = text(&output.stderr);
    assert_eq!(code(&output), 1, "{printed}");
    assert!(
        printed.contains("rank 0") && printed.contains("memfd_create"),
        "{printed}"
    );
}

#[test]
fn shm_across_hosts_names_first_remote_rank() {
    let script = "RINGTREE_HOST_ID=host$((RANK / 2)) exec \"$0\" bench barrier --transport shm";
    let program = env!("CARGO_BIN_EXE_ringtree");
    let line = [
        "run",
        "--nproc-per-node",
        "3",
        "--",
        "sh",
        "-c",
        script,
        program,
    ];
    let output = ringtree(&line).output().unwrap();
    let printed = text(&output.stderr);
    assert_eq!(code(&output), 1, "{printed}");
    assert!(
        printed.contains("rank 2 ") && printed.contains("host0 and host1"),
        "{printed}"
    );
}

#[test]
fn option_and_variable_select_transport() {
    let by_option = ringtree(BENCH).args(["--transport", "tcp"]).output();
    let by_setting = ringtree(BENCH).env("RINGTREE_TRANSPORT", "tcp").output();
    for output in [by_option.unwrap(), by_setting.unwrap()] {
        assert_eq!(code(&output), 0, "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains(",tcp,"));
    }
    let output = ringtree(BENCH)
        .args(["--transport", "dove"])
        .output()
        .unwrap();
    assert_eq!(code(&output), 2);
    let printed = text(&output.stderr);
    assert!(
        printed.contains("dove") && printed.contains("auto, tcp, shm"),
        "{printed}"
    );
}
