//! What a machine with a GPU allows two processes, and what each hand-over costs there.

use super::rank::{Orders, Rank, Said};
use ringtree::device::{Device, Event, Exported, HANDLE_BYTES, Memory, Span, Stream, Word, Words};
use ringtree::{Communicator, Error, Result};
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Hand-overs that are timed, after the first few.
const TURNS: usize = 200;
const WARM_UP_TURNS: usize = 20;
/// Batches of copies, of which the median counts.
const BATCHES: usize = 7;
/// Bytes of a copy whose bandwidth is measured.
const COPIED_BYTES: usize = 256 << 20;
/// Memory of a peer is closed when the streams have let go of it: at once, or something is wrong.
const CLOSING: Duration = Duration::from_secs(2);
/// Bytes that processes hand each other.
const HANDED_BYTES: usize = 4096;

/// Rows that are gone back to.
pub(super) const HAND_OVER: &str = "hand-over by the hosts, one way";
pub(super) const COPY: &str = "copy within the GPU, read and written";

/// As one of two ranks. Rank 0 tells.
pub(super) fn measure(orders: &Orders, rank: &Rank) -> Result<()> {
    let Rank { comm, device, .. } = rank;
    let tells = comm.rank() == 0;
    if tells {
        describe(device.as_ref());
        row("ranks hand segments over", over(comm), "");
    }
    let own = device.allocate(HANDED_BYTES)?;
    let theirs = imported(rank, &own)?;
    if !is_written_by_peer(rank, &own, &theirs)? {
        Said::Found(format!(
            "rank {}: what the peer's process wrote into this one's GPU memory is not there",
            comm.rank()
        ))
        .say();
    }
    Said::Checked(1).say();
    // What a hang below must not cost.
    if tells {
        copies(orders, rank)?;
    }
    let hand_over_us = hand_over_us(rank, &own, &theirs)?;
    let words = device.words(1)?;
    let tell = |what: &str, time_us: f64| {
        if tells {
            row(what, us(time_us), "us");
        }
    };
    tell(HAND_OVER, hand_over_us);
    if device.description().word_operations {
        let by_host_us = by_host_us(rank, &words)?;
        tell("wait released by the own host, seen done", by_host_us);
        let by_stream_us = released_us(rank, &words)?;
        tell("wait released by another process's stream", by_stream_us);
    }
    let mapping = theirs.mapping();
    drop(theirs);
    let start = Instant::now();
    while mapping.is_open() && start.elapsed() < CLOSING {
        std::thread::yield_now();
    }
    // Nobody frees what a peer has not closed.
    comm.barrier()?;
    drop(own);
    Ok(())
}

/// A row of three cells for the part's table.
pub(super) fn row(what: &str, value: impl Into<String>, unit: &str) {
    Said::Row(vec![what.into(), value.into(), unit.into()]).say();
}

pub(super) fn us(time_us: f64) -> String {
    format!("{time_us:.1}")
}

fn over(comm: &Communicator) -> String {
    comm.device_transport().unwrap_or_else(|| "nothing".into())
}

fn describe(device: &dyn Device) {
    let found = device.description();
    let version = found.driver_version;
    let version = format!("{}.{}", version / 1000, version % 1000 / 10);
    let answer = |yes: bool| if yes { "yes" } else { "no" };
    row("GPU", found.name.clone(), "");
    row("driver for CUDA", version, "");
    row("memory", (found.memory_bytes >> 30).to_string(), "GiB");
    row("multiprocessors", found.multiprocessors.to_string(), "");
    row("streams wait for words", answer(found.word_operations), "");
    let wide = answer(found.word_operations_64_bit);
    row("also of 64 bits", wide, "");
}

/// The peer's memory, in this process.
fn imported(rank: &Rank, own: &Memory) -> Result<Memory> {
    const BYTES: usize = HANDLE_BYTES + 8;
    let Rank { comm, device, .. } = rank;
    let exported = device.export(own)?;
    let mut all = [0u8; 2 * BYTES];
    let (me, peer) = (comm.rank() * BYTES, (1 - comm.rank()) * BYTES);
    all[me..][..HANDLE_BYTES].copy_from_slice(&exported.handle);
    all[me + HANDLE_BYTES..][..8].copy_from_slice(&exported.offset.to_le_bytes());
    comm.all_gather(&mut all)?;
    let mut handle = [0; HANDLE_BYTES];
    handle.copy_from_slice(&all[peer..][..HANDLE_BYTES]);
    let mut offset = [0; 8];
    offset.copy_from_slice(&all[peer + HANDLE_BYTES..][..8]);
    let offset = u64::from_le_bytes(offset);
    device.import(&Exported { handle, offset }, HANDED_BYTES)
}

/// Each writes its number all over the other's memory.
fn is_written_by_peer(rank: &Rank, own: &Memory, theirs: &Memory) -> Result<bool> {
    let Rank {
        comm,
        device,
        stream,
    } = rank;
    let mark = |rank: usize| 40 + rank as u8;
    let mut pinned = device.pin(HANDED_BYTES)?;
    pinned.bytes_mut()?.fill(mark(comm.rank()));
    stream.copy_from_host(&pinned.whole(), &theirs.whole())?;
    stream.synchronize()?;
    comm.barrier()?;
    stream.copy_to_host(&own.whole(), &pinned.whole())?;
    stream.synchronize()?;
    // Only now may the peer write anything else.
    comm.barrier()?;
    let peer = mark(1 - comm.rank());
    Ok(pinned.bytes_mut()?.iter().all(|byte| *byte == peer))
}

/// Copy, see it done, tell the other process; and the same back.
fn hand_over_us(rank: &Rank, own: &Memory, theirs: &Memory) -> Result<f64> {
    let Rank {
        comm,
        device,
        stream,
    } = rank;
    let event = device.event()?;
    let (half, peer) = (HANDED_BYTES / 2, 1 - comm.rank());
    // The halves that the peer does not write.
    let (from, to) = (own.span(0, half)?, theirs.span(half, half)?);
    let give = || -> Result<()> {
        stream.copy(&from, &to)?;
        stream.record(&event)?;
        until_done(&event)?;
        comm.send(&[0u8], peer)
    };
    let take = || comm.recv(&mut [0u8], peer);
    let mut times_us = Vec::with_capacity(TURNS);
    for turn in 0..WARM_UP_TURNS + TURNS {
        let start = Instant::now();
        if comm.rank() == 0 {
            give()?;
            take()?;
        } else {
            take()?;
            give()?;
        }
        if turn >= WARM_UP_TURNS {
            times_us.push(start.elapsed().as_secs_f64() * 1e6 / 2.0);
        }
    }
    Ok(median(times_us))
}

/// Two streams in two processes release each other in turns, without their hosts.
fn released_us(rank: &Rank, own: &Words) -> Result<f64> {
    let Rank {
        comm,
        device,
        stream,
    } = rank;
    let theirs = peer_words(rank, own)?;
    let (own, theirs) = (own.word(0)?, theirs.word(0)?);
    // Both hosts have left it at the same value.
    let first = own.load();
    comm.barrier()?;
    let event = device.event()?;
    let mut times_us = Vec::with_capacity(BATCHES);
    for batch in 0..BATCHES {
        comm.barrier()?;
        let start = Instant::now();
        for turn in 0..TURNS {
            let value = first.wrapping_add((batch * TURNS + turn + 1) as u32);
            if comm.rank() == 0 {
                stream.write_word(&theirs, value)?;
                stream.wait_word(&own, value)?;
            } else {
                stream.wait_word(&own, value)?;
                stream.write_word(&theirs, value)?;
            }
        }
        stream.record(&event)?;
        until_done(&event)?;
        times_us.push(start.elapsed().as_secs_f64() * 1e6 / (2 * TURNS) as f64);
    }
    comm.barrier()?;
    Ok(median(times_us))
}

fn peer_words(rank: &Rank, own: &Words) -> Result<Words> {
    let Rank { comm, device, .. } = rank;
    let mut places = [0u64; 4];
    let (me, peer) = (2 * comm.rank(), 2 * (1 - comm.rank()));
    places[me] = u64::from(std::process::id());
    places[me + 1] = own.file().as_raw_fd().unsigned_abs().into();
    comm.all_gather(&mut places)?;
    let path = format!("/proc/{}/fd/{}", places[peer], places[peer + 1]);
    let file = OpenOptions::new().read(true).write(true).open(path);
    device.open_words(
        file.map_err(|error| Error::system("the peer's words", &error))?
            .into(),
    )
}

/// From the host's write of a word until it sees what was behind the wait done.
pub(super) fn by_host_us(rank: &Rank, words: &Words) -> Result<f64> {
    let Rank { device, stream, .. } = rank;
    let word: Word = words.word(0)?;
    let event = device.event()?;
    let first = word.load();
    let mut times_us = Vec::with_capacity(TURNS);
    for turn in 0..TURNS {
        let value = first.wrapping_add(u32::try_from(turn + 1).unwrap_or(u32::MAX));
        stream.wait_word(&word, value)?;
        stream.record(&event)?;
        let start = Instant::now();
        word.store(value);
        until_done(&event)?;
        times_us.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(times_us))
}

/// Bandwidths of copies, by one rank alone.
fn copies(orders: &Orders, rank: &Rank) -> Result<()> {
    let Rank { device, stream, .. } = rank;
    let bytes = orders.bytes_max.min(COPIED_BYTES);
    let memory = device.allocate(2 * bytes)?;
    let (left, right) = (memory.span(0, bytes)?, memory.span(bytes, bytes)?);
    let pinned = device.pin(bytes)?;
    let host = pinned.whole();
    let stream = stream.as_ref();
    let rate = |copy: &dyn Fn() -> Result<()>, moved: usize| -> Result<String> {
        let time_s = batch_s(stream, 10, copy)?;
        Ok(format!("{:.1}", moved as f64 / time_s / 1e9))
    };
    let within = copy_gbs(stream, &left, &right)?;
    row(
        "copy within the GPU, read and written",
        format!("{within:.1}"),
        "GB/s",
    );
    let out = rate(&|| stream.copy_to_host(&left, &host), bytes)?;
    row("copy to pinned memory", out, "GB/s");
    let back = rate(&|| stream.copy_from_host(&host, &left), bytes)?;
    row("copy from pinned memory", back, "GB/s");
    Ok(())
}

/// What a copy on the device moves a second, read and written, in 10⁹ bytes.
pub(super) fn copy_gbs(stream: &dyn Stream, from: &Span, to: &Span) -> Result<f64> {
    let time_s = batch_s(stream, 20, &|| stream.copy(from, to))?;
    Ok(2.0 * from.bytes() as f64 / time_s / 1e9)
}

/// Seconds that one of many in a row takes, of the median batch.
pub(super) fn batch_s(
    stream: &dyn Stream,
    count: u32,
    act: &dyn Fn() -> Result<()>,
) -> Result<f64> {
    let batch = || -> Result<f64> {
        let start = Instant::now();
        for _ in 0..count {
            act()?;
        }
        stream.synchronize()?;
        Ok(start.elapsed().as_secs_f64() / f64::from(count))
    };
    batch()?;
    let times: Result<Vec<_>> = (0..BATCHES).map(|_| batch()).collect();
    Ok(median(times?))
}

pub(super) fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

pub(super) fn until_done(event: &Event) -> Result<()> {
    while !event.is_done()? {
        std::thread::yield_now();
    }
    Ok(())
}
