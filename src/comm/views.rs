//! Creates handles to a communicator that have different timeouts or tags, and sets the names of
//! communicators.

use super::Communicator;
use crate::limits::{COMMUNICATOR_NAME_BYTES_MAX, NO_TIMEOUT, TIMEOUT_MAX};
use std::time::Duration;

impl Communicator {
    /// Returns how long a call through this handle may take before it fails. Returns
    /// [`Duration::MAX`] if calls through this handle do not have a timeout.
    ///
    /// ```
    /// use ringtree::sim::{World, sleep};
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
    /// let error = ends[0].clone().unwrap_err();
    /// assert_eq!(error.kind(), ringtree::ErrorKind::Deadline, "{error}");
    /// ```
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns a handle to the same communicator whose calls use the given `timeout`. Timeouts are
    /// limited to [`TIMEOUT_MAX`]. Both handles share the same order of calls.
    ///
    /// Ranks may set different timeouts for the same call. As soon as the first of these timeouts
    /// expires, the call and the communicator fail on all ranks. The error names the rank whose
    /// timeout expired.
    ///
    /// For a call on host memory, the clock starts when you make the call, even if the call is
    /// asynchronous. For a call on a device, the clock starts when you enqueue the call, not when
    /// the stream reaches it, so the timeout must allow for earlier work on the stream.
    ///
    /// Creating a handle only increments a reference count. A
    /// [`duplicate`](Communicator::duplicate) of a handle inherits the handle's timeout. When
    /// [`alloc`](Communicator::alloc) and `attach` exchange memory, they use the timeout with which
    /// the communicator was created.
    ///
    /// ```
    /// use ringtree::sim::sleep;
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
        Self {
            timeout: timeout.min(TIMEOUT_MAX),
            ..self.clone()
        }
    }

    /// Returns a handle to the same communicator whose messages carry `tag`. The default tag is 0.
    /// A message must be received with the same tag with which it was sent.
    ///
    /// Tags do not change the order of messages: messages are always received in the order in which
    /// they were sent. If the next message has a different tag, nothing is received and the
    /// receiver gets an error. The error names both tags, unless the sender has already left.
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
        Self {
            tag,
            ..self.clone()
        }
    }

    /// Sets the name that identifies this communicator in errors, in stall warnings, and in reports
    /// about ranks that are waiting for each other. The name applies to all handles of the
    /// communicator. Set the same name on all ranks. Names are truncated to 64 bytes. The training
    /// layer names its communicators "gradients", and a trace names its communicator "trace".
    ///
    /// If ranks are waiting for each other in different communicators, both the stall warning and
    /// the timeout error report this:
    ///
    /// ```
    /// let ends = ringtree::simulate(2, |comm| {
    ///     let losses = comm.duplicate()?.with_name("losses");
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
    #[doc(alias("MPI_Comm_set_name"))]
    #[must_use]
    pub fn with_name(self, name: &str) -> Self {
        let fits = |at: &usize| *at <= COMMUNICATOR_NAME_BYTES_MAX && name.is_char_boundary(*at);
        let end = (0..=name.len()).rev().find(fits).unwrap_or(0);
        let parts = &self.core.parts;
        if let Ok(runtime) = parts.runtime.get() {
            runtime.with_group(parts.group, |group| group.rename(name[..end].to_owned()));
        }
        self
    }

    /// Returns a handle to the same communicator whose calls do not start a clock and therefore
    /// have no timeout. Both handles share the same order of calls. For example, the workers of a
    /// server can use a broadcast through such a handle to wait for the next request, no matter how
    /// long that takes. Ranks sleep while they wait.
    ///
    /// The first rank that makes the same collective call through a handle *with* a timeout
    /// starts the clock on all ranks, using its own timeout. For example, if the root broadcasts a
    /// request with a timeout and a worker does not take part, the root and all other ranks get an
    /// error. The waiting ranks learn through rank 0 that the clock has started. They learn this
    /// within milliseconds if they have been waiting for more than a second, and otherwise within
    /// about a second.
    ///
    /// A receive without a timeout waits until its message arrives. If a rank dies or makes a
    /// different call, the waiting ranks still get the error immediately.
    ///
    /// ```
    /// use ringtree::{ReduceOp, sim::sleep};
    /// use std::time::Duration;
    /// let answers = ringtree::simulate(3, |comm| {
    ///     let mut request = [0u32];
    ///     if comm.rank() == 0 {
    ///         sleep(comm, Duration::from_secs(3600)); // no request for an hour
    ///         request = [14];
    ///         comm.broadcast(&mut request, 0)?;
    ///     } else {
    ///         comm.without_timeout().broadcast(&mut request, 0)?;
    ///     }
    ///     comm.all_reduce(&mut request, ReduceOp::Sum)?;
    ///     Ok::<_, ringtree::Error>(request)
    /// });
    /// assert_eq!(answers, vec![Ok([42]); 3]);
    /// ```
    #[must_use]
    pub fn without_timeout(&self) -> Self {
        Self {
            timeout: NO_TIMEOUT,
            ..self.clone()
        }
    }
}
