//! Tests calls on device buffers that fail, or that return an error immediately.

use super::world::{Act, PATHS, Rank, World, ok};
use cudarc::driver::{CudaContext, CudaStream, sys};
use ringtree::cuda::Device;
use ringtree::cuda::DeviceBuffer;
use ringtree::internal::calls::device_path_line;
use ringtree::internal::cuda::allocate;
use ringtree::plan::Algorithm;
use ringtree::{Communicator, Error, ErrorKind, ReduceOp, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub(crate) fn act(role: &str) -> Option<Act> {
    Some(match role {
        "deadline" => deadline,
        "killed" => killed,
        "host calls" => host_calls,
        "stuck" => stuck,
        "many" => many,
        "strange" => strange,
        "mismatch" => mismatch,
        "unsupported" => unsupported,
        "left unchanged" => left_unchanged,
        "success" => success,
        "attach again" => attach_again,
        "leaving" => leaving,
        "dropping" => dropping,
        _ => return None,
    })
}

const DRIVERS: [&[(&str, &str)]; 3] = [
    &[],
    &[("STRICT", "1"), ("ONE_THREAD", "1")],
    &[("STRICT", "1"), ("CHANNELS", "one")],
];

/// Runs the role on every path, with every configuration of the driver.
fn everywhere(ranks: usize, configure: fn(World) -> World, role: &str, expected: &[&str]) {
    for (path, settings) in PATHS.iter().flat_map(|path| DRIVERS.map(|one| (path, one))) {
        let settings = settings.iter();
        let world = configure(World::new(ranks, path));
        let world = settings.fold(world, |world, (name, value)| world.with(name, value));
        world.expect(role, expected.to_vec());
    }
}

fn unchanged(world: World) -> World {
    world
}

fn buffer(rank: &Rank) -> Result<DeviceBuffer<f32>> {
    DeviceBuffer::new(&rank.device, &rank.stream, &[1.0; 3000])
}

/// A stream that [`Held::hold`] blocks until `word` is 1.
struct Held {
    user: Arc<CudaStream>,
    word: &'static AtomicU32,
}

impl Held {
    fn new() -> Self {
        let context = CudaContext::new(0).unwrap();
        let user = context.new_stream().unwrap();
        let mut start = std::ptr::null_mut();
        // SAFETY: the context is current; the memory is never freed, and is used only as a word.
        let word = unsafe {
            let code = sys::cuMemHostAlloc(&raw mut start, 4096, 3);
            assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
            &*start.cast::<AtomicU32>()
        };
        word.store(0, Ordering::Release);
        Self { user, word }
    }

    fn hold(&self) {
        let address = self.word.as_ptr() as u64;
        // SAFETY: the stream is alive, the word is pinned for good.
        let code = unsafe { sys::cuStreamWaitValue32_v2(self.user.cu_stream(), address, 1, 0) };
        assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
    }

    fn buffer<T: ringtree::Element>(&self, rank: &Rank, content: &[T]) -> Result<DeviceBuffer<T>> {
        let stream = rank.device.wrap_stream(self.user.clone())?;
        DeviceBuffer::new(&rank.device, &stream, content)
    }
}

#[test]
fn timeout_is_reported_and_streams_continue() {
    everywhere(2, World::impatient, "deadline", &["deadline", "late"]);
}

/// Also covers a caller that waits for the stream inside the driver, holding the driver's lock.
fn deadline(rank: &Rank) -> Result<String> {
    if rank.comm.rank() == 1 {
        // This rank stays connected, but does not issue the call.
        std::thread::sleep(Duration::from_secs(5));
        return Ok("late".into());
    }
    let held = Held::new();
    let mut buffer = held.buffer(rank, &[1.0f32; 3000])?;
    let loss = held.user.clone_htod(&[0.5f32]).unwrap();
    rank.comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
    held.user.clone_dtoh(&loss).unwrap();
    let first = rank.comm.synchronize();
    let Err(error) = &first else {
        return Ok(format!("{first:?}"));
    };
    assert!(error.kind() == ErrorKind::Deadline, "{error:?}");
    let text = error.to_string();
    assert!(text.contains("rank 1"), "{text}");
    assert_eq!(
        rank.comm.synchronize(),
        first,
        "the error must be reported again"
    );
    assert_eq!(rank.comm.all_reduce(&mut buffer, ReduceOp::Sum), first);
    buffer.read()?;
    Ok("deadline".into())
}

#[test]
fn killed_rank_fails_calls_in_flight_and_later_ones() {
    let gone = "rank 2 is gone";
    everywhere(3, unchanged, "killed", &[gone, gone, "nothing: "]);
}

fn killed(rank: &Rank) -> Result<String> {
    let mut buffer = buffer(rank)?;
    rank.comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
    rank.comm.synchronize()?;
    rank.comm.barrier()?;
    if rank.comm.rank() == 2 {
        std::thread::sleep(Duration::from_millis(100));
        // SAFETY: ends the process, as a kill does.
        unsafe { libc::_exit(0) };
    }
    let start = Instant::now();
    rank.comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
    buffer.read()?;
    let Err(error) = rank.comm.synchronize() else {
        return Ok("no error".into());
    };
    assert!(error.kind() == ErrorKind::PeerLost, "{error:?}");
    assert_eq!(error.peer(), Some(2));
    rank.comm
        .all_reduce(&mut buffer, ReduceOp::Sum)
        .unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(15));
    Ok("rank 2 is gone".into())
}

/// A stream is blocked, so a collective on it cannot start. Collectives on host memory continue.
#[test]
fn host_collectives_do_not_wait_for_gpu() {
    everywhere(2, unchanged, "host calls", &ok(2));
}

fn host_calls(rank: &Rank) -> Result<String> {
    let other = rank.comm.duplicate()?;
    let held = Held::new();
    let mut buffer = held.buffer(rank, &[1.0f32; 3000])?;
    if rank.comm.rank() == 0 {
        held.hold();
    }
    rank.comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
    for _ in 0..100 {
        let mut sum = [1u32; 1000];
        other.all_reduce(&mut sum, ReduceOp::Sum)?;
        assert_eq!(sum, [2; 1000]);
    }
    held.word.store(1, Ordering::Release);
    rank.comm.synchronize()?;
    assert_eq!(buffer.read()?, [2.0; 3000]);
    rank.comm.barrier()?;
    Ok("ok".into())
}

/// Rank 0's own stream is late, so the error blames no other rank. Dropping the buffer and the
/// communicator does not wait for the stream.
#[test]
fn timeout_names_blocked_user_stream() {
    for settings in DRIVERS {
        let settings = settings.iter();
        let world = World::new(1, "mapped").impatient();
        let world = settings.fold(world, |world, (name, value)| world.with(name, value));
        world.expect("stuck", vec!["ok"]);
    }
}

fn stuck(rank: &Rank) -> Result<String> {
    let builder = Communicator::builder().rank(0).world_size(1);
    let builder = builder.rendezvous("127.0.0.1:0");
    let comm = builder.timeout(Duration::from_millis(500)).connect()?;
    comm.attach(&rank.device)?;
    let held = Held::new();
    let mut buffer = held.buffer(rank, &[1.0f32; 3000])?;
    comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
    comm.synchronize()?;
    held.hold();
    comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
    let Err(error) = comm.synchronize() else {
        return Ok("no error".into());
    };
    assert!(error.kind() == ErrorKind::Deadline, "{error:?}");
    let text = error.to_string();
    assert!(text.contains("the buffer's stream"), "{text}");
    let start = Instant::now();
    drop(comm);
    drop(buffer);
    assert!(start.elapsed() < Duration::from_secs(15));
    Ok("ok".into())
}

/// Issues hundreds of calls and a long one while a stream is blocked. The library's queues must
/// stay short.
#[test]
fn library_queues_are_bounded_and_do_not_deadlock() {
    for path in PATHS {
        let world = || World::new(2, path).with("STRICT", "1");
        world()
            .with("LIBRARY_QUEUE_MAX", "256")
            .expect("many", ok(2));
        // The entries of all the library's streams and of the user's stream share one queue.
        world()
            .with("LIBRARY_QUEUE_MAX", "768")
            .with("CHANNELS", "one")
            .expect("many", ok(2));
        world().with("QMAX", "40").expect("many", ok(2));
    }
}

fn many(rank: &Rank) -> Result<String> {
    let held = Held::new();
    let mut buffer = held.buffer(rank, &[1u64; 3])?;
    let mut long = held.buffer(rank, &vec![1u8; 90_000_001])?;
    held.hold();
    let word = held.word;
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        word.store(1, Ordering::Release);
    });
    for _ in 0..300 {
        rank.comm.all_reduce(&mut buffer, ReduceOp::Avg)?;
    }
    rank.comm.all_reduce(&mut long, ReduceOp::Sum)?;
    for _ in 0..10 {
        rank.comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
    }
    rank.comm.synchronize()?;
    assert_eq!(buffer.read()?, [1024; 3]);
    assert!(long.read()?.iter().all(|one| *one == 2));
    rank.comm.barrier()?;
    Ok("ok".into())
}

/// A newer driver may return codes that this library does not know.
#[test]
fn unknown_driver_error_is_shown_as_number() {
    World::new(1, "mapped")
        .with("STRANGE_CODE", "99999")
        .expect("strange", vec!["ok"]);
}

fn strange(rank: &Rank) -> Result<String> {
    // A communicator without a device has no device path, and synchronizing it succeeds.
    let alone = Communicator::builder().rank(0).world_size(1);
    let alone = alone.rendezvous("127.0.0.1:0").connect()?;
    assert_eq!(
        (alone.info().device_path, alone.synchronize()),
        (None, Ok(()))
    );
    let Err(error) = allocate(&rank.device, 100) else {
        return Ok("no error".into());
    };
    assert!(error.kind() == ErrorKind::Device, "{error:?}");
    let text = error.to_string();
    assert!(text.contains("99999"), "{text}");
    Ok("ok".into())
}

/// The error quotes the call as the user issued it, not its pieces.
#[test]
fn host_and_device_buffers_in_one_call_mismatch() {
    for path in PATHS {
        World::new(2, path).expect("mismatch", ok(2));
    }
}

fn mismatch(rank: &Rank) -> Result<String> {
    const COUNT: usize = 3_000_001;
    let end = match rank.comm.rank() {
        0 => {
            let mut buffer = DeviceBuffer::new(&rank.device, &rank.stream, &vec![1.0f32; COUNT])?;
            let called = rank.comm.all_reduce(&mut buffer, ReduceOp::Sum);
            called.and_then(|()| rank.comm.synchronize())
        }
        _ => rank
            .comm
            .all_reduce(&mut vec![1.0f32; COUNT], ReduceOp::Sum),
    };
    let Err(error) = end else {
        return Ok(format!("{end:?}"));
    };
    assert!(error.kind() == ErrorKind::Mismatch, "{error:?}");
    let text = error.to_string();
    assert!(text.contains("on devices"), "{text}");
    assert_eq!(text.matches(" of 3000001 f32").count(), 2, "{text}");
    Ok("ok".into())
}

#[test]
fn unsupported_calls_return_errors_and_lose_nothing() {
    for path in PATHS {
        World::new(2, path).expect("unsupported", ok(2));
    }
}

fn unsupported(rank: &Rank) -> Result<String> {
    let comm = &rank.comm;
    let mut own = buffer(rank)?;
    let elsewhere = Device::open(1)?;
    let mut other = DeviceBuffer::new(&elsewhere, &elsewhere.stream()?, &[1.0f32; 10])?;
    let refused = [
        comm.send(&own, 1 - comm.rank()),
        comm.scope(|scope| scope.all_reduce(&mut own, ReduceOp::Sum)?.wait().map(drop)),
        comm.all_gather_into(&[1.0f32; 1500], &mut own),
        comm.all_reduce(&mut own, ReduceOp::Band),
        comm.broadcast(&mut own, 7),
        comm.all_reduce(&mut other, ReduceOp::Sum),
        own.write(&[1.0; 3001]),
    ];
    for (nth, end) in refused.into_iter().enumerate() {
        assert!(
            matches!(&end, Err(error) if error.kind() == ErrorKind::Usage),
            "{nth}: {end:?}"
        );
    }
    comm.all_reduce(&mut own, ReduceOp::Sum)?;
    comm.synchronize()?;
    assert_eq!(own.read()?, [2.0; 3000]);
    let path = device_path_line(&comm.info());
    let staged = "staged: through pinned host memory, over ";
    let expected = match super::world::transport(comm).unwrap().as_str() {
        "mapped" => "mapped: ".to_owned(),
        "shm" => format!("{staged}shm: rank 0: cuMem"),
        _ => format!("{staged}tcp: rank 0: not all ranks share memory"),
    };
    assert!(
        path.starts_with(&expected) && !path.contains('\n'),
        "{path}"
    );
    comm.barrier()?;
    Ok("ok".into())
}

/// A failed call does not later overwrite data that the stream writes after it.
#[test]
fn failed_call_does_not_overwrite_later_writes() {
    everywhere(2, unchanged, "left unchanged", &ok(2));
}

fn left_unchanged(rank: &Rank) -> Result<String> {
    let comm = &rank.comm;
    let mut buffer = DeviceBuffer::new(&rank.device, &rank.stream, &vec![1i64; 1_000_000])?;
    comm.barrier()?;
    // On a slow machine, the other rank may have failed by now.
    let _ = comm.all_reduce(&mut buffer, ReduceOp::Sum);
    if comm.rank() == 1 {
        // Abort somewhere in the middle of the call.
        std::thread::sleep(Duration::from_millis(6));
        comm.abort(&Error::new(ErrorKind::System, "enough"));
    }
    let _ = comm.synchronize();
    buffer.write(&vec![7; 1_000_000])?;
    rank.stream.synchronize()?;
    std::thread::sleep(Duration::from_millis(30));
    assert!(buffer.read()?.iter().all(|element| *element == 7));
    Ok("ok".into())
}

/// A rank that reports success has the right sum, even if another rank aborts at the same time.
#[test]
fn reported_success_is_right_even_if_a_rank_aborts() {
    for pause in ["0", "1", "3", "10"] {
        for path in ["mapped", "shm"] {
            World::new(3, path)
                .with("PAUSE_MS", pause)
                .expect("success", ok(3));
        }
    }
}

fn success(rank: &Rank) -> Result<String> {
    let comm = &rank.comm;
    let pause = std::env::var("PAUSE_MS").unwrap().parse().unwrap();
    let mut buffer = DeviceBuffer::new(&rank.device, &rank.stream, &vec![1i64; 300_000])?;
    comm.use_algorithm(Some(Algorithm::Ring))?;
    // Rank 0 may complete the barrier and abort while another rank is still in it.
    let ready = comm.barrier();
    let called = ready.and_then(|()| comm.all_reduce(&mut buffer, ReduceOp::Sum));
    if comm.rank() == 0 {
        std::thread::sleep(Duration::from_millis(pause));
        comm.abort(&Error::new(ErrorKind::System, "enough"));
    }
    if called.and_then(|()| comm.synchronize()).is_ok() {
        assert!(buffer.read()?.iter().all(|one| *one == 3));
    }
    Ok("ok".into())
}

/// A device may be attached again, and another device may be attached, between calls.
#[test]
fn attaching_again_loses_no_call() {
    everywhere(2, unchanged, "attach again", &ok(2));
}

fn attach_again(rank: &Rank) -> Result<String> {
    let mut buffer = buffer(rank)?;
    for _ in 0..3 {
        rank.comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
        rank.comm.attach(&rank.device)?;
    }
    let mut more = rank.comm.alloc_on_device::<f32>(&rank.stream, 10)?;
    rank.comm.all_reduce(&mut more, ReduceOp::Sum)?;
    rank.comm.synchronize()?;
    assert_eq!(
        (buffer.read()?, more.read()?),
        (vec![8.0; 3000], vec![0.0; 10])
    );
    let other = Device::open(1)?;
    rank.comm.attach(&other)?;
    let mut on_other = DeviceBuffer::new(&other, &other.stream()?, &[1.0f32])?;
    rank.comm.all_reduce(&mut on_other, ReduceOp::Sum)?;
    assert_eq!(on_other.read()?, [2.0]);
    rank.comm.barrier()?;
    Ok("ok".into())
}

/// A rank may exit as soon as its call has returned: its part of the call is complete by then.
#[test]
fn call_completes_before_its_rank_exits() {
    everywhere(2, unchanged, "leaving", &ok(2));
}

fn leaving(rank: &Rank) -> Result<String> {
    let own = rank.comm.duplicate()?;
    own.attach(&rank.device)?;
    let mut buffer = buffer(rank)?;
    if own.rank() == 1 {
        std::thread::sleep(Duration::from_millis(300));
    }
    own.all_reduce(&mut buffer, ReduceOp::Sum)?;
    drop(own);
    assert_eq!(buffer.read()?, [2.0; 3000]);
    rank.comm.barrier()?;
    Ok("ok".into())
}

/// Attaching another communicator unmaps the memory of a dropped one, and the driver may then wait
/// for all streams. No other call may be delayed by this.
#[test]
fn drop_does_not_wait_for_thread_in_driver() {
    World::new(1, "mapped").expect("dropping", ok(1));
}

fn dropping(rank: &Rank) -> Result<String> {
    let attached = || {
        let comm = rank.comm.duplicate()?;
        comm.attach(&rank.device).map(|()| comm)
    };
    let (first, second, third) = (attached()?, attached()?, attached()?);
    drop(first);
    let held = Held::new();
    held.hold();
    std::thread::scope(|scope| {
        let attaching = scope.spawn(|| third.attach(&rank.device));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!attaching.is_finished(), "attach must wait for the stream");
        let dropping = scope.spawn(move || drop(second));
        let end = Instant::now() + Duration::from_secs(10);
        while !dropping.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        let is_dropped = dropping.is_finished();
        held.word.store(1, Ordering::Release);
        attaching.join().unwrap()?;
        Ok(if is_dropped {
            "ok"
        } else {
            "the drop waits for the stream"
        }
        .into())
    })
}

#[test]
fn attach_rejects_ranks_that_are_threads_of_one_process() {
    if Device::open(0).is_err() {
        // This process has no device, so run the test in a process that has one.
        let here = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["attach_rejects_ranks_that_are_threads", "--nocapture"])
            .env("LD_LIBRARY_PATH", crate::driver::folder())
            .status();
        assert!(here.unwrap().success());
        return;
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let rendezvous = listener.local_addr().unwrap().to_string();
    drop(listener);
    let rank = |rank: usize| {
        let builder = Communicator::builder().rank(rank).world_size(2);
        let comm = builder.rendezvous(&rendezvous).connect().unwrap();
        let end = comm.attach(&Device::open(0).unwrap());
        comm.barrier().unwrap();
        end
    };
    let ends = std::thread::scope(|scope| {
        let other = scope.spawn(|| rank(1));
        [rank(0), other.join().unwrap()]
    });
    for end in ends {
        let Err(error) = end else {
            panic!("{end:?}");
        };
        assert!(error.kind() == ErrorKind::Usage, "{error:?}");
        let text = error.to_string();
        assert!(
            text.contains("threads of one process") && !text.contains('\n'),
            "{text}"
        );
    }
    let simulated = ringtree::simulate(1, |comm| comm.attach(&Device::open(0).unwrap()));
    assert!(
        matches!(&simulated[0], Err(error) if error.kind() == ErrorKind::Usage),
        "{simulated:?}"
    );
}
