//! The table of link speeds that rank 0 measured, handed on to later attempts of the job.
//!
//! Every attempt would measure again, on a machine that may be busy, and another table may choose
//! algorithms that sum in another order. So rank 0 leaves its table in a file that it inherits from
//! its launcher, and all ranks of later attempts find it in their environment.

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::pread;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Names the descriptor of the file in which rank 0 leaves its table.
pub(super) const FILE_VARIABLE: &str = "RINGTREE_TUNING_FD";
/// Holds the table, for the ranks of later attempts.
pub(super) const TABLE_VARIABLE: &str = "RINGTREE_JOB_TUNING";
/// A table takes some 300 bytes.
const TABLE_BYTES_MAX: usize = 4 << 10;

/// What a launcher knows of the job's table.
#[derive(Clone, Debug)]
pub(super) enum Tuning {
    /// Rank 0 of this host leaves it in this file, once it has measured it.
    Awaited(Arc<OwnedFd>),
    /// The ranks get it.
    Known(String),
    /// The launcher of rank 0 does not know it either, or never will.
    Elsewhere,
}

impl Tuning {
    /// Before the first attempt, on the host of rank 0. Where the system refuses the file, every
    /// attempt finds its own table, as rank 0 says where one is measured.
    pub(super) fn awaited() -> Self {
        let file = memfd_create("ringtree-tuning", MemfdFlags::CLOEXEC);
        file.map_or(Self::Elsewhere, |file| Self::Awaited(Arc::new(file)))
    }

    /// What is known by now: for the next attempt.
    pub(super) fn by_now(&self) -> Self {
        match self {
            Self::Awaited(file) => match left_in(file) {
                Some(table) => Self::Known(table),
                None => self.clone(),
            },
            Self::Known(_) | Self::Elsewhere => self.clone(),
        }
    }

    /// The table as text.
    pub(super) fn table(&self) -> Option<&str> {
        match self {
            Self::Known(table) => Some(table),
            Self::Awaited(_) | Self::Elsewhere => None,
        }
    }

    /// The file that rank 0 inherits.
    pub(super) fn file(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Awaited(file) => Some(file.as_fd()),
            Self::Known(_) | Self::Elsewhere => None,
        }
    }
}

/// From what another launcher said.
impl From<Option<String>> for Tuning {
    fn from(table: Option<String>) -> Self {
        table.map_or(Self::Elsewhere, Self::Known)
    }
}

/// What rank 0 left, if that is text that an environment can hold. The ranks read it closely.
fn left_in(file: &OwnedFd) -> Option<String> {
    let mut bytes = vec![0; TABLE_BYTES_MAX];
    let count = pread(file, &mut bytes, 0).ok()?;
    bytes.truncate(count);
    let text = String::from_utf8(bytes).ok()?;
    let is_plain = !text.is_empty() && !text.chars().any(char::is_control);
    is_plain.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::pwrite;

    #[test]
    fn a_table_is_known_once_it_was_left() {
        let tuning = Tuning::awaited();
        assert!(tuning.by_now().table().is_none() && tuning.by_now().file().is_some());
        let Tuning::Awaited(file) = &tuning else {
            panic!("{tuning:?}");
        };
        pwrite(file, b"{}\0", 0).unwrap();
        assert!(tuning.by_now().table().is_none(), "no environment holds it");
        pwrite(file, b"{ }", 0).unwrap();
        assert_eq!(tuning.by_now().table(), Some("{ }"));
        assert!(tuning.by_now().file().is_none());
    }
}
