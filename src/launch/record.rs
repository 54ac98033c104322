//! What a rank reports to the launcher, in a file that it inherits.

use crate::control::report::{FILE_NAME, Report};
use crate::limits::REPORTS_BYTES_MAX;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::pread;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes read at a time.
const READ_BYTES: usize = 4 << 10;
/// A table takes some 300 bytes.
const TABLE_BYTES_MAX: usize = 4 << 10;

/// The reports of one rank in one attempt.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// `None` if the system refuses one: then the rank is judged by its end and its output.
    file: Option<OwnedFd>,
    read: u64,
    /// Bytes that are not a complete report yet.
    pending: Vec<u8>,
    reports: Vec<Report>,
}

impl Record {
    /// Makes the file.
    pub(super) fn new() -> Self {
        Record {
            file: memfd_create(FILE_NAME, MemfdFlags::CLOEXEC).ok(),
            ..Record::default()
        }
    }

    /// The file that the rank inherits.
    pub(super) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// All reports so far.
    fn reports(&mut self) -> &[Report] {
        let mut buffer = [0; READ_BYTES];
        while let Some(file) = &self.file
            && self.read < REPORTS_BYTES_MAX as u64
            && let Ok(count @ 1..) = pread(file, &mut buffer, self.read)
        {
            self.read += count as u64;
            self.pending.extend_from_slice(&buffer[..count]);
        }
        self.reports.extend(Report::take_all(&mut self.pending));
        &self.reports
    }

    /// Whether another rank is to blame for what the rank wrote, which is `words`: the error that
    /// they contain decides. If nothing is known of what it wrote, its last error does. `None` if
    /// the rank has reported no such error.
    pub(super) fn blames_another(&mut self, words: Option<&str>) -> Option<bool> {
        let mut failures = self.reports().iter().filter_map(|report| match report {
            Report::Failed { blames, text } => Some((text.as_str(), blames.is_some())),
            Report::Table(_) => None,
        });
        let decides = match words {
            // An error may quote another one that led to it.
            Some(words) => failures
                .filter(|(text, _)| !text.is_empty() && words.contains(text))
                .max_by_key(|(text, _)| text.len()),
            None => failures.next_back(),
        };
        decides.map(|(_, blames_another)| blames_another)
    }

    /// The first table that the rank left, if it is text that an environment can hold. The ranks
    /// check what it says.
    pub(super) fn table(&mut self) -> Option<String> {
        let mut tables = self.reports().iter().filter_map(|report| match report {
            Report::Table(text) => Some(text),
            Report::Failed { .. } => None,
        });
        let is_plain = |text: &&String| {
            (1..=TABLE_BYTES_MAX).contains(&text.len()) && !text.contains(char::is_control)
        };
        tables.find(is_plain).cloned()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Seek, SeekFrom, Write};
    use std::os::fd::AsRawFd;

    impl Record {
        /// A record with these errors: each with the rank that it blames.
        pub(in crate::launch) fn of(failures: &[(Option<u32>, &str)]) -> Self {
            let record = Record::new();
            let descriptor = record.file().unwrap().as_raw_fd();
            for (blames, text) in failures {
                let (blames, text) = (*blames, (*text).to_owned());
                Report::Failed { blames, text }.append(descriptor).unwrap();
            }
            record
        }
    }

    #[test]
    fn the_error_in_the_words_decides_whether_another_rank_is_to_blame() {
        let errors = [
            (None, "no data"),
            (Some(1), "farewell from 1: no data"),
            (Some(2), "2 is off"),
            (None, ""),
        ];
        let mut record = Record::of(&errors);
        for (words, expected) in [
            ("train: no data", Some(false)),
            ("train: farewell from 1: no data; sorry", Some(true)),
            ("2 is off", Some(true)),
            ("the disk is full", None),
        ] {
            assert_eq!(record.blames_another(Some(words)), expected, "{words}");
        }
        // An error that the program has survived does not explain a later end.
        assert_eq!(record.blames_another(None), Some(false));
        assert_eq!(Record::of(&errors[..3]).blames_another(None), Some(true));
        assert_eq!(Record::default().blames_another(None), None);
    }

    #[test]
    fn what_a_killed_rank_did_not_finish_is_ignored_and_what_follows_later_is_read() {
        let mut record = Record::of(&[(Some(1), "first")]);
        let mut file = File::from(record.file().unwrap().try_clone_to_owned().unwrap());
        file.seek(SeekFrom::End(0)).unwrap();
        let late = Report::Failed {
            blames: None,
            text: "second".to_owned(),
        };
        let bytes = postcard::to_stdvec(&late).unwrap();
        let (begun, rest) = bytes.split_at(4);
        file.write_all(begun).unwrap();
        assert_eq!(record.blames_another(None), Some(true));
        file.write_all(rest).unwrap();
        assert_eq!(record.blames_another(None), Some(false));
    }

    #[test]
    fn a_file_is_bounded_and_no_other_file_is_written() {
        let long = "x".repeat(REPORTS_BYTES_MAX / 4);
        let mut record = Record::of(&[(Some(1), &long), (Some(1), &long), (None, &long)]);
        let append = |table: &str, fd| Report::Table(table.to_owned()).append(fd);
        let descriptor = record.file().unwrap().as_raw_fd();
        append("{ }", descriptor).unwrap();
        assert!(append(&long, descriptor).is_err());
        assert_eq!(record.blames_another(None), Some(false));
        assert_eq!(record.table().as_deref(), Some("{ }"));
        let other = tempfile::tempfile().unwrap();
        assert!(append("{ }", other.as_raw_fd()).is_err());
        assert_eq!(other.metadata().unwrap().len(), 0);
    }

    #[test]
    fn the_first_table_that_an_environment_can_hold_is_passed_on() {
        let mut record = Record::new();
        let descriptor = record.file().unwrap().as_raw_fd();
        for table in ["{}\0", "", "{ }", "{ 2 }"] {
            assert_eq!(record.table(), None);
            Report::Table(table.to_owned()).append(descriptor).unwrap();
            if table == "{ }" {
                break;
            }
        }
        Report::Table("{ 2 }".to_owned())
            .append(descriptor)
            .unwrap();
        assert_eq!(record.table().as_deref(), Some("{ }"));
    }
}
