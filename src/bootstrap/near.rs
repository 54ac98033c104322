//! Temporary: the meeting place of ranks that share memory.

use crate::error::{Error, Result};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, recvmsg,
    sendmsg_addr, sendto, socket_with,
};
use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Door.
pub struct Near {
    socket: OwnedFd,
    name: String,
    rank: usize,
    ranks: Vec<usize>,
    stash: Mutex<HashMap<(u32, usize), OwnedFd>>,
}

fn address(name: &str, rank: usize) -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(format!("{name}.{rank}").as_bytes())
        .expect("invariant: short")
}

impl Near {
    /// New.
    pub fn new(name: &str, rank: usize, ranks: Vec<usize>) -> Result<Self> {
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .map_err(|error| Error::system("socket", &error.into()))?;
        bind(&socket, &address(name, rank))
            .map_err(|error| Error::system("bind", &error.into()))?;
        Ok(Self {
            socket,
            name: name.into(),
            rank,
            ranks,
            stash: Mutex::default(),
        })
    }

    /// Fd.
    pub fn raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    fn receive(&self) -> bool {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0u8; 16];
        let got = recvmsg(
            &self.socket,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        );
        let Ok(got) = got else { return false };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                for fd in fds {
                    if got.bytes == 12 {
                        let channel = u32::from_le_bytes(bytes[..4].try_into().expect("4"));
                        let from = u64::from_le_bytes(bytes[4..12].try_into().expect("8"));
                        self.stash
                            .lock()
                            .expect("x")
                            .insert((channel, from as usize), fd);
                    }
                }
            }
        }
        true
    }

    /// Exchange.
    pub fn exchange(
        &self,
        channel: u32,
        own: &OwnedFd,
        _bytes: usize,
        at_most: Duration,
    ) -> Result<Vec<(usize, OwnedFd)>> {
        let end = Instant::now() + at_most;
        let mut to: Vec<usize> = self
            .ranks
            .iter()
            .copied()
            .filter(|r| *r != self.rank)
            .collect();
        let mut from = to.clone();
        let mut all = Vec::new();
        while !to.is_empty() || !from.is_empty() {
            to.retain(|rank| {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut ancillary = SendAncillaryBuffer::new(&mut space);
                let fds = [own.as_fd()];
                ancillary.push(SendAncillaryMessage::ScmRights(&fds));
                let mut bytes = channel.to_le_bytes().to_vec();
                bytes.extend((self.rank as u64).to_le_bytes());
                sendmsg_addr(
                    &self.socket,
                    &address(&self.name, *rank),
                    &[IoSlice::new(&bytes)],
                    &mut ancillary,
                    SendFlags::NOSIGNAL,
                )
                .is_err()
            });
            while self.receive() {}
            from.retain(
                |rank| match self.stash.lock().expect("x").remove(&(channel, *rank)) {
                    Some(fd) => {
                        all.push((*rank, fd));
                        false
                    }
                    None => true,
                },
            );
            if Instant::now() > end {
                return Err(Error::Join(format!("no memory from {from:?}")));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(all)
    }

    /// Wake.
    pub fn wake(&self, rank: usize) {
        let _ = sendto(
            &self.socket,
            &[0u8],
            SendFlags::NOSIGNAL,
            &address(&self.name, rank),
        );
    }

    /// Drain.
    pub fn drain(&self) {
        while self.receive() {}
    }
}
