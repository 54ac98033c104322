//! How a group ends.

use super::Runtime;
use crate::engine::group::Group;
use crate::limits::POLLER_NAP;
use std::time::Duration;

impl Runtime {
    /// Ends the group: what is under way is finished (or fails by its deadline), and rank 0 tells
    /// the others the agreed mark after a failure; then goodbye.
    ///
    /// The last one ends the host's part too, here and now: the control thread may be holding this
    /// runtime for a moment, so its drop could come after the caller has left the process.
    pub(crate) fn leave(&self, number: u32, at_most: Duration) {
        self.finish(number, at_most);
        let mut engine = self.lock_beside_poller();
        if let Some(group) = engine.group(number) {
            group.leave();
        }
        self.send_controls(&mut engine);
        let group = engine.remove_group(number);
        let was_last = engine.is_empty();
        drop(engine);
        if was_last {
            self.host.close();
        }
        // Its links close after the goodbye has gone.
        drop(group);
    }

    /// Finishes what is under way in a group: its calls by their deadlines, so that none is cut
    /// short; all else within `at_most`.
    fn finish(&self, number: u32, at_most: Duration) {
        let end = self.host.now().saturating_add(at_most);
        let is_busy =
            |group: &mut Group| group.is_calling() || (group.is_busy() && self.host.now() < end);
        while self.with_group(number, is_busy) == Some(true) {
            let Some(_token) = self.take_token() else {
                std::thread::sleep(POLLER_NAP);
                continue;
            };
            let mut engine = self.lock();
            self.hear(&mut engine);
            if !engine.poll() {
                engine.tick(self.host.now());
                self.send_controls(&mut engine);
                let awaits_gate = engine.awaits_gate();
                drop(engine);
                match awaits_gate {
                    true => self.host.give_way_to_device(u32::MAX),
                    false => self.host.give_way(u32::MAX),
                };
            }
        }
    }
}
