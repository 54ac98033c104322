//! What becomes of shared memory when no call is to come.

use super::{DeviceLinks, Slots};
use crate::device::{Event, Memory};
use crate::transport::Transport;

/// What ranks of different processes have of each other.
#[derive(Debug, Default)]
pub struct Parting {
    /// Done when the group's stream uses nothing of all this.
    pub through: Option<Event>,
    /// What this rank has mapped of the others.
    pub imports: Vec<Memory>,
    /// What others have mapped of this rank's, and who.
    pub exports: Vec<Memory>,
    /// See there.
    pub readers: Vec<usize>,
}

impl DeviceLinks {
    /// What acknowledgements travel over: for the next device of the group, whose ranks know
    /// nothing of those that have come.
    #[must_use]
    pub fn into_acknowledgements(mut self) -> Option<Box<dyn Transport>> {
        self.acknowledgements.take()
    }

    /// The ranks that have slots of this one, ascending.
    pub(in crate::engine) fn borrowers(&self) -> impl Iterator<Item = usize> {
        let links = self.links.iter().enumerate();
        links.filter_map(|(peer, link)| {
            let lends = link.as_ref().is_some_and(|link| !link.lent.is_empty());
            lends.then_some(peer)
        })
    }

    /// Lets go of all memory that is mapped; no call is under way, and none comes.
    pub(in crate::engine) fn part(&mut self) -> Parting {
        let mut parting = Parting {
            through: self.recorded().ok(),
            ..Parting::default()
        };
        for (peer, link) in self.links.iter_mut().enumerate() {
            let Some(link) = link else { continue };
            if let Slots::Mapped { own, theirs } = &link.memory {
                // What threads of one process share is there until the last has dropped it.
                if theirs.memory().mapping().is_open() {
                    parting.readers.push(peer);
                }
                parting.exports.push(own.memory().clone());
                parting.imports.push(theirs.memory().clone());
                link.memory = Slots::Unmade;
                link.signals = None;
            }
        }
        for registration in self.registered.take() {
            parting.exports.push(registration.own);
            let theirs = registration.theirs.into_iter().flatten();
            parting.imports.extend(theirs);
        }
        parting
    }
}
