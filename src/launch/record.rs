//! Reads the reports that a rank writes to a file that it inherits from the launcher.

use crate::control::report::{FILE_NAME, Report};
use crate::limits::REPORTS_BYTES_MAX;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::pread;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Maximum number of bytes per read.
const READ_BYTES: usize = 4 << 10;
/// Maximum size of a link speed table. A table usually takes about 300 bytes.
const TABLE_BYTES_MAX: usize = 4 << 10;

/// The reports from one rank in one attempt.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// The file, or `None` if the system could not create it. In the latter case, the launcher
    /// judges the rank only by its exit status and its output.
    file: Option<OwnedFd>,
    read: u64,
    /// The beginning of an incomplete report.
    pending: Vec<u8>,
    reports: Vec<Report>,
}

impl Record {
    /// Creates an empty file for the rank's reports.
    pub(super) fn new() -> Self {
        Record {
            file: memfd_create(FILE_NAME, MemfdFlags::CLOEXEC).ok(),
            ..Record::default()
        }
    }

    /// Returns the file that the rank inherits.
    pub(super) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Returns all reports so far.
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

    /// Returns the other rank that the rank's failure blames, or `Some(None)` if it blames no other
    /// rank. The error that decides this is the reported error that `words` contains or, if `words`
    /// is `None`, the last reported error. Returns `None` if no such error was reported.
    pub(super) fn blames(&mut self, words: Option<&str>) -> Option<Option<u32>> {
        let mut failures = self.reports().iter().filter_map(|report| match report {
            Report::Failed { blames, text } => Some((text.as_str(), *blames)),
            Report::Table(_) => None,
        });
        let decides = match words {
            // An error may quote its cause, so the longest match is the error itself.
            Some(words) => failures
                .filter(|(text, _)| !text.is_empty() && words.contains(text))
                .max_by_key(|(text, _)| text.len()),
            None => failures.next_back(),
        };
        decides.map(|(_, blames)| blames)
    }

    /// Returns the first reported table that can be the value of an environment variable. The ranks
    /// themselves check its contents.
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
        /// Creates a record of these errors, each with the rank that it blames.
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
    fn quoted_error_determines_blamed_rank() {
        let errors = [
            (None, "no data"),
            (Some(1), "farewell from 1: no data"),
            (Some(2), "2 is off"),
            (None, ""),
        ];
        let mut record = Record::of(&errors);
        for (words, expected) in [
            ("train: no data", Some(None)),
            ("train: farewell from 1: no data; sorry", Some(Some(1))),
            ("2 is off", Some(Some(2))),
            ("the disk is full", None),
        ] {
            assert_eq!(record.blames(Some(words)), expected, "{words}");
        }
        // An error that the program survived does not explain a later failure.
        assert_eq!(record.blames(None), Some(None));
        assert_eq!(Record::of(&errors[..3]).blames(None), Some(Some(2)));
        assert_eq!(Record::default().blames(None), None);
    }

    #[test]
    fn incomplete_report_is_ignored_until_complete() {
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
        assert_eq!(record.blames(None), Some(Some(1)));
        file.write_all(rest).unwrap();
        assert_eq!(record.blames(None), Some(None));
    }

    #[test]
    fn append_enforces_size_limit_and_file_identity() {
        let long = "x".repeat(REPORTS_BYTES_MAX / 4);
        let mut record = Record::of(&[(Some(1), &long), (Some(1), &long), (None, &long)]);
        let append = |table: &str, fd| Report::Table(table.to_owned()).append(fd);
        let descriptor = record.file().unwrap().as_raw_fd();
        append("{ }", descriptor).unwrap();
        assert!(append(&long, descriptor).is_err());
        assert_eq!(record.blames(None), Some(None));
        assert_eq!(record.table().as_deref(), Some("{ }"));
        let other = tempfile::tempfile().unwrap();
        assert!(append("{ }", other.as_raw_fd()).is_err());
        assert_eq!(other.metadata().unwrap().len(), 0);
    }

    #[test]
    fn first_valid_table_is_returned() {
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
