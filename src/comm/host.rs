//! What a rank lives on: a process among others, or the simulator.

use crate::error::Result;
use crate::limits::{DEVICE_LOOKS, DEVICE_NAP};
use crate::protocol::session::To;
use crate::sys::shared::{OwnRegion, PeerRegion};
use crate::transport::Transport;
use std::time::Duration;

/// How the host spent the time it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// Spun, or let other threads run.
    Briefly,
    /// Slept; time has passed.
    Asleep,
}

/// Own memory, and that of the other ranks of this host.
pub(crate) type Shared = (OwnRegion, Vec<(usize, PeerRegion)>);

/// The world around a runtime.
pub(crate) trait Host: Send + Sync {
    /// Time since some fixed moment; never goes back.
    fn now(&self) -> Duration;

    /// Nothing moved in the last `idle_passes` passes: spin, yield or sleep until something may.
    fn give_way(&self, idle_passes: u32) -> Waited;

    /// A call that runs step by step, holding the engine, found nothing `fruitless` times in a
    /// row: spins or yields, or says that it is time to let go.
    fn linger(&self, _fruitless: u32) -> bool {
        false
    }

    /// As [`Host::give_way`] while a device is at work, which wakes nobody.
    fn give_way_to_device(&self, idle_passes: u32) -> Waited {
        if idle_passes <= DEVICE_LOOKS {
            return self.give_way(idle_passes);
        }
        std::thread::sleep(DEVICE_NAP);
        Waited::Asleep
    }

    /// Between two looks of a thread, without the token, at what a device does.
    fn await_device(&self, looks: u32) {
        match looks <= DEVICE_LOOKS {
            true => std::thread::yield_now(),
            false => std::thread::sleep(DEVICE_NAP),
        }
    }

    /// Ends a sleep in `give_way` early.
    fn wake(&self);

    /// Who holds the token polls: nobody need wake this process.
    fn awake(&self) {}

    /// Who holds the token is about to stop polling though work is under way: from now on peers
    /// wake this process. True if they did not know: then one more look is due, for what they sent
    /// before. It may be let go of the token after that.
    fn lie_down(&self) -> bool {
        false
    }

    /// Operations are under way and the caller goes on without polling them.
    fn background_work(&self);

    /// A group's two transports, to all ranks: for collectives and for pairs. All ranks of the
    /// group ask for them, and those that share memory wait for each other, at most `at_most`.
    ///
    /// # Errors
    /// Memory that was to be shared was not.
    fn transports(
        &self,
        group: u32,
        world_size: usize,
        at_most: Duration,
    ) -> Result<[Box<dyn Transport>; 2]>;

    /// Memory of `bytes` bytes that the group's ranks on this host can read, and theirs; `None`
    /// where there is nobody to share with. All of them ask, one allocation after the other, and
    /// wait for each other, at most `at_most`.
    ///
    /// # Errors
    /// Memory that was to be shared was not.
    fn allocate(&self, _group: u32, _bytes: usize, _at_most: Duration) -> Result<Option<Shared>> {
        Ok(None)
    }

    /// Sends a control message.
    fn send_control(&self, to: To, group: u32, payload: &[u8]);

    /// A control message that came: group, sender, bytes. Hosts with a control thread deliver
    /// theirs through `Runtime::control` instead.
    fn receive_control(&self) -> Option<(u32, usize, Vec<u8>)> {
        None
    }

    /// A rank whose control connection has broken, and why; with a control thread, likewise
    /// through `Runtime::control_lost`.
    fn next_lost(&self) -> Option<(usize, String)> {
        None
    }

    /// The last group has said its goodbye: sees that it is sent, and ends.
    fn close(&self) {}
}
