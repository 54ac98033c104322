//! Tests the installed files: the libraries export only ringtree's symbols, and programs can be
//! built with `ringtree.pc` and the files for CMake.

use crate::header::functions;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// Returns a prefix into which the libraries that were built with this test are installed.
pub(crate) fn prefix() -> &'static Path {
    static PREFIX: LazyLock<PathBuf> = LazyLock::new(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c");
        install(&prefix, &built());
        prefix
    });
    &PREFIX
}

/// Returns the directory that contains this test and the libraries that were built with it.
fn built() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().to_owned()
}

/// Installs the libraries in the directory `from` and returns the output of the installation.
fn install(prefix: &Path, from: &Path) -> String {
    let mut install = Command::new(package().join("install"));
    let install = install.arg("--prefix").arg(prefix).arg("--from").arg(from);
    finished("install", &install.output().unwrap())
}

pub(crate) fn package() -> PathBuf {
    env!("CARGO_MANIFEST_DIR").into()
}

/// Returns the standard output of a program. Panics if the program failed.
pub(crate) fn finished(what: &str, output: &std::process::Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{what}: {}\n{out}{errors}",
        output.status
    );
    out
}

/// Returns `true` if `tool` is installed. Otherwise, prints which check is skipped and returns
/// `false`.
pub(crate) fn has(tool: &str, skipped: &str) -> bool {
    let is_installed = Command::new(tool).arg("--version").output().is_ok();
    if !is_installed {
        eprintln!("skipped: {tool} is not installed, so {skipped}");
    }
    is_installed
}

#[test]
fn shared_library_exports_exactly_the_functions_of_the_header() {
    if !has("nm", "the exported symbols were not checked") {
        return;
    }
    let library = prefix().join("lib/libringtree.so");
    let listed = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library)
        .output();
    let listed = finished("nm", &listed.unwrap());
    let symbols = listed.lines().filter_map(|line| line.rsplit(' ').next());
    let mut symbols: Vec<&str> = symbols.collect();
    symbols.sort_unstable();
    let functions = functions();
    assert!(functions.len() > 30, "{functions:?}");
    assert_eq!(symbols, functions);
}

#[test]
fn pkg_config_reports_the_version_of_the_package() {
    if !has("pkg-config", "its file was not checked") {
        return;
    }
    let version = Command::new("pkg-config")
        .args(["--modversion", "ringtree"])
        .env("PKG_CONFIG_PATH", prefix().join("lib/pkgconfig"))
        .output();
    let version = finished("pkg-config", &version.unwrap());
    assert_eq!(version.trim(), env!("CARGO_PKG_VERSION"));
}

#[test]
fn commands_printed_by_install_compile_and_run_a_program() {
    if !has("pkg-config", "the printed commands were not run") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [from, prefix] = ["from", "prefix"].map(|name| folder.path().join(name));
    std::fs::create_dir(&from).unwrap();
    for library in ["libringtree_c.so", "libringtree_c.a"] {
        std::fs::copy(built().join(library), from.join(library)).unwrap();
    }
    // A stand-in for the `ringtree` command, which starts the program once.
    let command = "#include <stdio.h>\n#include <unistd.h>\n\
                   int main(int count, char **words) {\n\
                   printf(\"%s %s %s %s\\n\", words[1], words[2], words[3], words[4]);\n\
                   return fflush(stdout) || execv(words[count - 1], words + count - 1); }\n";
    let source = folder.path().join("command.c");
    std::fs::write(&source, command).unwrap();
    let mut compiler = Command::new("cc");
    let compiler = compiler.arg(source).arg("-o").arg(from.join("ringtree"));
    finished("cc", &compiler.output().unwrap());
    let printed = install(&prefix, &from);

    let example = package().join("examples/all_reduce.c");
    std::fs::copy(example, folder.path().join("train.c")).unwrap();
    let lines: Vec<&str> = printed
        .lines()
        .filter(|line| line.starts_with("  "))
        .collect();
    let mut shell = Command::new("/bin/sh");
    shell.args(["-ec", &lines.join("\n")]);
    shell.env_remove("LD_LIBRARY_PATH");
    let output = shell.current_dir(folder.path()).output();
    let text = finished(&printed, &output.unwrap());
    let expected = "run --nproc-per-node 4 --\n1 ranks: the largest sum is 999, the mean loss 1\n";
    assert_eq!(text, expected);
}

#[test]
fn cmake_builds_with_both_targets() {
    if !has("cmake", "its config file was not checked") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let example = package().join("examples/all_reduce.c");
    let project = format!(
        "cmake_minimum_required(VERSION 3.10)\nproject(user C)\n\
         find_package(ringtree 0.1 REQUIRED CONFIG)\n\
         foreach(kind ringtree static)\n\
         add_executable(by_${{kind}} \"{}\")\n\
         target_link_libraries(by_${{kind}} ringtree::${{kind}})\nendforeach()\n",
        example.display()
    );
    std::fs::write(folder.path().join("CMakeLists.txt"), project).unwrap();
    let in_folder = |arguments: &[&str]| {
        let mut command = Command::new("cmake");
        command.args(arguments).current_dir(folder.path());
        finished("cmake", &command.output().unwrap());
    };
    let prefix = format!("-DCMAKE_PREFIX_PATH={}", prefix().display());
    in_folder(&["-S", ".", "-B", "built", &prefix]);
    in_folder(&["--build", "built"]);
    for program in ["built/by_ringtree", "built/by_static"] {
        let run = Command::new(folder.path().join(program)).output();
        assert!(finished(program, &run.unwrap()).starts_with("1 ranks: "));
    }
    let too_new = format!("-DVERSION={}", "0.2");
    let refused = "cmake_minimum_required(VERSION 3.10)\nproject(user C)\n\
                   find_package(ringtree ${VERSION} REQUIRED CONFIG)\n";
    std::fs::write(folder.path().join("CMakeLists.txt"), refused).unwrap();
    let mut command = Command::new("cmake");
    command.args(["-S", ".", "-B", "other", &prefix, &too_new]);
    let end = command.current_dir(folder.path()).output().unwrap();
    assert!(!end.status.success());
}
