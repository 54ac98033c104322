//! Creates pseudoterminals for the programs under test.

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io::Read;

/// The user's end of a pseudoterminal, which reads what programs write.
pub(crate) struct Terminal(pub(crate) File);

impl Terminal {
    /// Opens a pseudoterminal. Returns the user's end and the program's end.
    pub(crate) fn open() -> (Self, File) {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let own = openpt(flags).unwrap();
        grantpt(&own).unwrap();
        unlockpt(&own).unwrap();
        let programs = ioctl_tiocgptpeer(&own, flags).unwrap();
        let terminal = Terminal(own.into());
        terminal.resize(33, 111);
        (terminal, programs.into())
    }

    pub(crate) fn resize(&self, ws_row: u16, ws_col: u16) {
        let size = Winsize {
            ws_row,
            ws_col,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.0, size).unwrap();
    }

    /// Reads the next line, including its line ending.
    pub(crate) fn line(&mut self) -> String {
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        String::from_utf8(line).unwrap()
    }

    /// Reads everything until no process holds the other end.
    pub(crate) fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = self.0.read(&mut buffer) {
            rest.extend_from_slice(&buffer[..count]);
        }
        String::from_utf8(rest).unwrap()
    }
}

/// Returns the positions that a progress bar has shown in `text`, in order. `end` follows each
/// position.
pub(crate) fn positions(text: &str, end: &str) -> Vec<u64> {
    let words = text.split(end).map(|part| part.rsplit(' ').next());
    words.filter_map(|word| word?.parse().ok()).collect()
}
