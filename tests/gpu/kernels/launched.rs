//! Launches the kernels on this machine's CPU, and checks their results.

use super::values::Random;
use bytemuck::{Pod, Zeroable, bytes_of};
use ringtree::internal::compute::gpu;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// A launch in the format that `cuda/host.cpp` reads.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Request {
    pub(crate) name: [u8; 32],
    pub(crate) blocks: u32,
    pub(crate) block_threads: u32,
    pub(crate) backwards: u32,
    pub(crate) unused: u32,
    pub(crate) memory_bytes: u64,
}

/// The numbers of bytes that a launch accesses.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Answer {
    pub(crate) bytes_by_vector: u64,
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
}

/// A launch and its expected result.
pub(crate) struct Case {
    pub(crate) what: String,
    pub(crate) request: Request,
    pub(crate) arguments: Vec<u8>,
    pub(crate) memory: Vec<u8>,
    pub(crate) expected: Vec<u8>,
    pub(crate) bytes_read: usize,
    pub(crate) bytes_written: usize,
    /// Minimum number of bytes that must be accessed in vectors of 16 bytes.
    pub(crate) bytes_by_vector_min: usize,
}

/// Returns the path of the kernels compiled for this machine's CPU. Compiles them once.
pub(crate) fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gpu_kernels_on_the_cpu");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda/host.cpp");
        let options = ["-std=c++17", "-O1", "-ffp-contract=off", "-w", "-o"];
        let status = Command::new(&compiler)
            .args(options)
            .args([&program, &source])
            .status();
        match status {
            Ok(status) => assert!(
                status.success(),
                "{compiler} cannot compile {}",
                source.display()
            ),
            Err(error) => panic!("no C++ compiler {compiler} ({error}): install g++, or set CXX"),
        }
        program
    })
}

/// Runs the launches and compares everything that they wrote with the expected contents.
pub(crate) fn check(cases: impl Iterator<Item = Case>) {
    let mut child = Command::new(program())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = BufWriter::new(child.stdin.take().unwrap());
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut count = 0;
    for case in cases {
        for part in [bytes_of(&case.request), &case.arguments, &case.memory] {
            input.write_all(part).expect(&case.what);
        }
        input.flush().expect(&case.what);
        let mut memory = vec![0; case.memory.len()];
        let mut answer = Answer::zeroed();
        output.read_exact(&mut memory).expect(&case.what);
        output
            .read_exact(bytemuck::bytes_of_mut(&mut answer))
            .expect(&case.what);
        let wrong = memory
            .iter()
            .zip(&case.expected)
            .position(|(left, right)| left != right);
        assert_eq!(wrong, None, "{}: wrong at this byte", case.what);
        // Each element must be accessed exactly once. A comparison of the contents would detect a
        // double reduction only if the reduction is in place.
        let passed = (answer.bytes_read, answer.bytes_written);
        let expected = (case.bytes_read as u64, case.bytes_written as u64);
        assert_eq!(passed, expected, "{}", case.what);
        let by_vector = answer.bytes_by_vector as usize;
        assert!(
            by_vector >= case.bytes_by_vector_min,
            "{}: {answer:?}",
            case.what
        );
        count += 1;
    }
    drop(input);
    assert!(child.wait().unwrap().success());
    assert!(count > 0);
}

/// Memory in which buffers are placed one after another, with gaps.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) bytes: Vec<u8>,
}

impl Memory {
    /// Places `content` at an address `residue` bytes above a multiple of 16.
    pub(crate) fn place(&mut self, content: &[u8], residue: usize) -> u64 {
        let start = self.bytes.len().next_multiple_of(16) + residue;
        self.bytes.resize(start, 0xa5);
        self.bytes.extend(content);
        self.bytes.resize(self.bytes.len() + 5, 0xa5);
        start as u64
    }
}

/// Creates a request for the launch, with its own grid or a random one.
pub(crate) fn request(launch: &gpu::Launch, memory_bytes: usize, random: &mut Random) -> Request {
    let mut name = [0; 32];
    let entry = launch.entry.to_bytes();
    name[..entry.len()].copy_from_slice(entry);
    let (blocks, block_threads) = if random.flip() {
        (launch.blocks, launch.threads)
    } else {
        let warps = 1 + random.below(8) as u32;
        (1 + random.below(5) as u32, warps * 32)
    };
    Request {
        name,
        blocks,
        block_threads,
        backwards: random.flip().into(),
        unused: 0,
        memory_bytes: memory_bytes as u64,
    }
}
