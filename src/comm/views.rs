//! Handles of one communicator whose calls have different deadlines, or different tags.

use super::Communicator;
use crate::engine::group::Group;
use crate::limits::{COMMUNICATOR_NAME_BYTES_MAX, PATIENT, TIMEOUT_MAX};
use std::time::Duration;

impl Communicator {
    /// How long a call through this handle may take before it ends with an error;
    /// [`PATIENT`] if it starts no clock.
    ///
    /// ```
    /// use ringtree::sim::simulate::{World, sleep};
    /// use std::time::Duration;
    /// let mut world = World::new(2);
    /// world.timeout = Duration::from_secs(2);
    /// let ends = world.run(|comm| {
    ///     assert_eq!(comm.timeout(), Duration::from_secs(2));
    ///     if comm.rank() == 1 {
    ///         sleep(comm, Duration::from_secs(60));
    ///     }
    ///     comm.barrier()
    /// });
    /// assert!(matches!(&ends[0], Err(error) if error.is_timeout()), "{ends:?}");
    /// ```
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.1
    }

    /// The same communicator, with the same order of calls, as a handle whose calls may take
    /// `timeout` (at most [`TIMEOUT_MAX`]). Ranks may give the same call different timeouts: the
    /// first that runs out ends the call, and the communicator, on all ranks, and the error says
    /// whose it was.
    ///
    /// The clock of a call on host memory starts when the call is made, or when it is started if
    /// it is asynchronous. On a device it starts when the call is enqueued, not when the stream
    /// comes to it: the timeout must allow for the work before it in the stream.
    ///
    /// Making a handle costs a reference count. A [`duplicate`](Communicator::duplicate) made
    /// through it has its timeout; [`alloc`](Communicator::alloc) and
    /// `attach` exchange memory by the communicator's own timeout.
    ///
    /// ```
    /// use ringtree::sim::simulate::sleep;
    /// use std::time::Duration;
    /// let ends = ringtree::simulate(2, |comm| {
    ///     if comm.rank() == 1 {
    ///         sleep(comm, Duration::from_secs(60)); // loads a checkpoint
    ///     }
    ///     comm.barrier()?; // within five minutes, the default
    ///     comm.with_timeout(Duration::from_secs(2)).barrier()
    /// });
    /// assert_eq!(ends, [Ok(()), Ok(())]);
    /// ```
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self(self.0.clone(), timeout.min(TIMEOUT_MAX), self.2)
    }

    /// The same communicator as a handle whose messages carry `tag`: a message is received by the
    /// tag that it was sent with, which is 0 without this. Messages are received in the order in
    /// which they were sent all the same. Where the next one has another tag, nothing is received,
    /// and the receiver gets an error; it names both tags if the sender has not left.
    ///
    /// ```
    /// let ends = ringtree::simulate(2, |comm| {
    ///     let (losses, mut loss) = (comm.with_tag(7), [0.5f32]);
    ///     match comm.rank() {
    ///         0 => losses.send(&loss, 1)?,
    ///         _ => losses.recv(&mut loss, 0)?,
    ///     }
    ///     match comm.rank() {
    ///         0 => losses.send(&loss, 1)?,
    ///         _ => comm.with_tag(8).recv(&mut loss, 0)?,
    ///     }
    ///     comm.barrier()
    /// });
    /// let text = ends[1].clone().unwrap_err().to_string();
    /// assert!(text.contains("tag 7") && text.contains("tag 8"), "{text}");
    /// ```
    #[must_use]
    pub fn with_tag(&self, tag: u32) -> Self {
        Self(self.0.clone(), self.1, tag)
    }

    /// This communicator, which messages call `name` from now on: errors, the warning of a call
    /// that waits long, and which rank waits for which. Each rank should give the same name. Names
    /// end after [`COMMUNICATOR_NAME_BYTES_MAX`] bytes. The trainer names its own communicators
    /// "gradients", a trace "trace".
    ///
    /// Ranks that wait for each other in different communicators are told so by the warning, and
    /// by the deadline's error:
    ///
    /// ```
    /// let ends = ringtree::simulate(2, |comm| {
    ///     let losses = comm.duplicate()?.named("losses");
    ///     losses.barrier()?;
    ///     match comm.rank() {
    ///         0 => losses.barrier(), // a call that rank 1 does not make
    ///         _ => comm.barrier(),
    ///     }
    /// });
    /// let text = ends[1].clone().unwrap_err().to_string();
    /// let told = r#"rank 0 waits for rank 1 in barrier #2 of 1 u8, by flat, on "losses""#;
    /// assert!(text.contains(told) && text.contains("they wait for each other"), "{text}");
    /// ```
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        let fits = |at: &usize| *at <= COMMUNICATOR_NAME_BYTES_MAX && name.is_char_boundary(*at);
        let end = (0..=name.len()).rev().find(fits).unwrap_or(0);
        let parts = &self.0.parts;
        if let Ok(runtime) = parts.runtime.get() {
            runtime.with_group(parts.group, |group| group.rename(name[..end].to_owned()));
        }
        self
    }

    /// What [`Communicator::named`] called it.
    ///
    /// ```
    /// let names = ringtree::simulate(2, |comm| {
    ///     let losses = comm.duplicate()?.named("losses");
    ///     Ok::<_, ringtree::Error>((comm.name(), losses.name()))
    /// });
    /// assert_eq!(names[0], Ok((None, Some("losses".to_owned()))));
    /// ```
    #[must_use]
    pub fn name(&self) -> Option<String> {
        let parts = &self.0.parts;
        let name = |group: &mut Group| group.title().map(str::to_owned);
        let runtime = parts.runtime.get().ok()?;
        runtime.with_group(parts.group, name).flatten()
    }

    /// The same communicator, with the same order of calls, as a handle whose calls start no
    /// clock: the workers of a server wait in such a broadcast for the next request, for as long
    /// as it takes. A rank that waits sleeps.
    ///
    /// The first rank that makes the same collective *without* patience starts the clock of all
    /// ranks, with its timeout. So a root that broadcasts a request through the communicator
    /// itself, or one `with_timeout`, gets an error, as all ranks do, if a worker does not come.
    /// The ranks that wait hear of it from that rank through rank 0, within some milliseconds if
    /// they have waited for more than a second, and otherwise within about a second. A receive
    /// waits until its message comes.
    ///
    /// That a rank has died, or makes another call, is told at once all the while.
    ///
    /// ```
    /// use ringtree::{ReduceOp, sim::simulate::sleep};
    /// use std::time::Duration;
    /// let answers = ringtree::simulate(3, |comm| {
    ///     let mut request = [0u32];
    ///     if comm.rank() == 0 {
    ///         sleep(comm, Duration::from_secs(3600)); // no request for an hour
    ///         request = [14];
    ///         comm.broadcast(&mut request, 0)?;
    ///     } else {
    ///         comm.patient().broadcast(&mut request, 0)?;
    ///     }
    ///     comm.all_reduce(&mut request, ReduceOp::Sum)?;
    ///     Ok::<_, ringtree::Error>(request)
    /// });
    /// assert_eq!(answers, vec![Ok([42]); 3]);
    /// ```
    #[must_use]
    pub fn patient(&self) -> Self {
        Self(self.0.clone(), PATIENT, self.2)
    }
}
