//! What is installed: libraries with our symbols alone, and what build tools find them by.

use crate::header::functions;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// A prefix with the library in it. What was built beside this test is what is installed.
pub(crate) fn prefix() -> &'static Path {
    static PREFIX: LazyLock<PathBuf> = LazyLock::new(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c");
        install(&prefix, &built());
        prefix
    });
    &PREFIX
}

/// Returns the folder that contains this test and the libraries that were built with it.
fn built() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().to_owned()
}

/// Installs what is in the folder `from`, and returns what was printed.
fn install(prefix: &Path, from: &Path) -> String {
    let mut install = Command::new(package().join("install"));
    let install = install.arg("--prefix").arg(prefix).arg("--from").arg(from);
    finished("install", &install.output().unwrap())
}

pub(crate) fn package() -> PathBuf {
    env!("CARGO_MANIFEST_DIR").into()
}

/// What a program wrote, which ended well.
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

/// Whether a tool is there; if not, one line says what was not tested.
pub(crate) fn has(tool: &str, without: &str) -> bool {
    let is_there = Command::new(tool).arg("--version").output().is_ok();
    if !is_there {
        eprintln!("skipped: there is no {tool}, so {without}");
    }
    is_there
}

#[test]
fn the_shared_library_exports_the_headers_functions_alone() {
    if !has("nm", "the exported symbols were not looked at") {
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
fn pkg_config_finds_the_version_that_the_library_says() {
    if !has("pkg-config", "the file for it was not read") {
        return;
    }
    let told = Command::new("pkg-config")
        .args(["--modversion", "ringtree"])
        .env("PKG_CONFIG_PATH", prefix().join("lib/pkgconfig"))
        .output();
    let told = finished("pkg-config", &told.unwrap());
    assert_eq!(told.trim(), env!("CARGO_PKG_VERSION"));
}

#[test]
fn the_lines_that_the_installation_prints_compile_and_run_a_program() {
    if !has("pkg-config", "the lines were not entered") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [from, prefix] = ["from", "prefix"].map(|name| folder.path().join(name));
    std::fs::create_dir(&from).unwrap();
    for library in ["libringtree_c.so", "libringtree_c.a"] {
        std::fs::copy(built().join(library), from.join(library)).unwrap();
    }
    // Stands for the command: starts the program once.
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
    if !has("cmake", "its config file was not read") {
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
