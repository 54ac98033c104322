//! Builds and runs C programs that use the installed library.

use crate::address::reserved_port;
use crate::installed::{finished, package, prefix};
use ringtree::launch::{Job, Output, run};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Library and compiler options of a test program.
#[derive(Clone, Copy, PartialEq)]
enum Build {
    Shared,
    Static,
    /// With AddressSanitizer.
    Sanitized,
}

/// Returns the command that compiles a program in C or in C++.
fn compiler(source: &Path, build: Build) -> Command {
    let is_c = source.extension().is_some_and(|extension| extension == "c");
    let (name, standard) = match is_c {
        true => ("cc", "-std=c99"),
        false => ("c++", "-std=c++11"),
    };
    let mut command = Command::new(name);
    let warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];
    command.arg(standard).args(warnings).arg(source);
    let (include, library) = (prefix().join("include"), prefix().join("lib"));
    command.arg("-I").arg(include);
    match build {
        Build::Shared | Build::Sanitized => {
            command.arg("-L").arg(&library).arg("-lringtree");
            command.arg(format!("-Wl,-rpath,{}", library.display()));
        }
        Build::Static => {
            command.arg(library.join("libringtree.a"));
            command.args(private_libraries());
        }
    }
    if build == Build::Sanitized {
        command.args(["-g", "-fsanitize=address"]);
    }
    command.arg("-pthread");
    command
}

/// Returns the libraries that `ringtree.pc` lists for static linking.
fn private_libraries() -> Vec<String> {
    let file = std::fs::read_to_string(prefix().join("lib/pkgconfig/ringtree.pc")).unwrap();
    let line = file
        .lines()
        .find_map(|line| line.strip_prefix("Libs.private: "));
    line.unwrap().split(' ').map(str::to_owned).collect()
}

/// A compiled test program.
struct Program {
    folder: TempDir,
}

impl Program {
    fn new(source: &str, build: Build) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = compiler(&package().join(source), build);
        let output = command
            .arg("-o")
            .arg(folder.path().join("program"))
            .output();
        finished(source, &output.unwrap());
        Self { folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("program")
    }

    /// Runs the program as `ranks` processes, as `ringtree run` does, and returns the exit code.
    fn run(&self, ranks: usize) -> i32 {
        let job = Job {
            program: self.path().into(),
            arguments: Vec::new(),
            ranks,
            id: None,
            max_restarts: 0,
            output: Output::Prefixed,
            log_folder: None,
            rendezvous: None,
            cpus: Vec::new(),
            sessions: false,
        };
        run(&job).unwrap()
    }
}

#[test]
fn example_runs_with_both_libraries() {
    for build in [Build::Shared, Build::Static] {
        let program = Program::new("examples/all_reduce.c", build);
        let alone = Command::new(program.path()).output().unwrap();
        let line = finished("the example", &alone);
        assert_eq!(line, "1 ranks: the largest sum is 999, the mean loss 1\n");
        assert_eq!(program.run(2), 0);
    }
}

#[test]
fn every_call_works_as_documented_in_the_header() {
    let program = Program::new("tests/c/collectives.c", Build::Shared);
    for ranks in [1, 2, 3, 4] {
        assert_eq!(program.run(ranks), 0, "{ranks} ranks");
    }
}

#[test]
fn every_configuration_field_has_an_effect() {
    let program = Program::new("tests/c/config.c", Build::Shared);
    for ranks in [2, 3] {
        assert_eq!(program.run(ranks), 0, "{ranks} ranks");
    }
}

#[test]
fn invalid_arguments_are_errors_and_do_no_harm() {
    let program = Program::new("tests/c/misuse.c", Build::Shared);
    for ranks in [2, 4] {
        assert_eq!(program.run(ranks), 0, "{ranks} ranks");
    }
}

#[test]
fn handles_can_be_freed_while_operations_use_them() {
    let program = Program::new("tests/c/lifecycle.c", Build::Shared);
    for ranks in [2, 4] {
        assert_eq!(program.run(ranks), 0, "{ranks} ranks");
    }
}

#[test]
fn calls_of_forked_child_fail_without_harm_to_parent() {
    let program = Program::new("tests/c/forked.c", Build::Shared);
    assert_eq!(program.run(2), 0);
}

#[test]
fn survivors_report_the_killed_rank_and_the_call() {
    let program = Program::new("tests/c/survivor.c", Build::Shared);
    let port = reserved_port().to_string();
    let ranks = [0, 1, 2].map(|rank: usize| {
        let place = [("RANK", rank), ("LOCAL_RANK", rank)];
        let size = [("WORLD_SIZE", 3), ("LOCAL_WORLD_SIZE", 3)];
        let variables = place.into_iter().chain(size);
        Command::new(program.path())
            .envs(variables.map(|(name, number)| (name, number.to_string())))
            .envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    });
    let [first, killed, last] = ranks.map(|rank| rank.wait_with_output().unwrap());
    assert!(!killed.status.success());
    for survivor in [first, last] {
        let output = finished("a survivor", &survivor);
        let names_the_loss = output.starts_with("peer 1, all-reduce #3: rank 1 is gone");
        assert!(
            names_the_loss && output.contains("restart the job"),
            "{output}"
        );
    }
}

#[test]
fn header_works_in_cpp() {
    let program = Program::new("tests/c/header.cpp", Build::Shared);
    finished(
        "header.cpp",
        &Command::new(program.path()).output().unwrap(),
    );
}

/// AddressSanitizer checks the programs' memory, including leaks, and the accesses to that memory
/// that the library makes through functions of the C library.
#[test]
fn address_sanitizer_reports_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.c");
    std::fs::write(&empty, "int main(void) { return 0; }\n").unwrap();
    let mut probe = Command::new("cc");
    probe.arg("-fsanitize=address").arg(&empty);
    let probe = probe.arg("-o").arg(folder.path().join("empty")).output();
    let compiles = probe.is_ok_and(|probe| probe.status.success());
    let runs = || Command::new(folder.path().join("empty")).output();
    if !compiles || !runs().is_ok_and(|end| end.status.success()) {
        return eprintln!("skipped: the compiler's AddressSanitizer is missing or does not run");
    }
    let sources = [
        "tests/c/collectives.c",
        "tests/c/misuse.c",
        "tests/c/lifecycle.c",
    ];
    for source in sources
        .into_iter()
        .chain(["tests/c/config.c", "examples/all_reduce.c"])
    {
        let program = Program::new(source, Build::Sanitized);
        assert_eq!(program.run(2), 0, "{source}");
    }
}
