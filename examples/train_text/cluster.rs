//! Stand-in for the library's `Communicator` and `spawn_self`: the same names, a star around
//! rank 0 over loopback TCP. Goes when the library has both.

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use ringtree::{Error, ReduceOp, Result};
use std::env;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

pub(crate) struct Communicator {
    rank: usize,
    peers: Vec<TcpStream>,
    world_size: usize,
}

fn failed(error: std::io::Error) -> Error {
    Error::system("stand-in", &error)
}

fn setting(name: &str) -> Result<usize> {
    env::var(name)
        .ok()
        .and_then(|value| value.parse().ok())
        .ok_or_else(|| Error::Configuration(format!("{name} is missing or no number")))
}

impl Communicator {
    pub(crate) fn from_env() -> Result<Self> {
        let (rank, world_size) = (setting("RANK")?, setting("WORLD_SIZE")?);
        let port = setting("MASTER_PORT")? as u16;
        let mut peers = Vec::new();
        if rank == 0 {
            let listener = TcpListener::bind(("127.0.0.1", port)).map_err(failed)?;
            let mut by_rank: Vec<Option<TcpStream>> = (0..world_size).map(|_| None).collect();
            for _ in 1..world_size {
                let (mut peer, _) = listener.accept().map_err(failed)?;
                let mut number = [0];
                peer.read_exact(&mut number).map_err(failed)?;
                peer.set_nodelay(true).map_err(failed)?;
                by_rank[usize::from(number[0])] = Some(peer);
            }
            peers.extend(by_rank.into_iter().flatten());
        } else {
            let mut peer = loop {
                match TcpStream::connect(("127.0.0.1", port)) {
                    Ok(peer) => break peer,
                    Err(_) => std::thread::sleep(std::time::Duration::from_millis(20)),
                }
            };
            peer.set_nodelay(true).map_err(failed)?;
            peer.write_all(&[rank as u8]).map_err(failed)?;
            peers.push(peer);
        }
        Ok(Communicator {
            rank,
            peers,
            world_size,
        })
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) fn world_size(&self) -> usize {
        self.world_size
    }

    pub(crate) fn local_rank(&self) -> usize {
        self.rank
    }

    pub(crate) fn broadcast<T: Pod>(&self, values: &mut [T], _root: usize) -> Result<()> {
        for mut peer in &self.peers {
            match self.rank {
                0 => peer.write_all(cast_slice(values)),
                _ => peer.read_exact(cast_slice_mut(values)),
            }
            .map_err(failed)?;
        }
        Ok(())
    }

    pub(crate) fn all_reduce(&self, values: &mut [f32], _op: ReduceOp) -> Result<()> {
        if self.rank == 0 {
            let mut other = vec![0.0; values.len()];
            for mut peer in &self.peers {
                peer.read_exact(cast_slice_mut(&mut other))
                    .map_err(failed)?;
                values
                    .iter_mut()
                    .zip(&other)
                    .for_each(|(sum, addend)| *sum += addend);
            }
            let share = self.world_size as f32;
            values.iter_mut().for_each(|value| *value /= share);
        } else {
            let mut root = &self.peers[0];
            root.write_all(cast_slice(values)).map_err(failed)?;
        }
        self.broadcast(values, 0)
    }

    pub(crate) fn all_gather_into(&self, own: &[u8], all: &mut [u8]) -> Result<()> {
        if self.rank == 0 {
            all[..own.len()].copy_from_slice(own);
            for (mut peer, part) in self
                .peers
                .iter()
                .zip(all[own.len()..].chunks_mut(own.len()))
            {
                peer.read_exact(part).map_err(failed)?;
            }
        } else {
            let mut root = &self.peers[0];
            root.write_all(own).map_err(failed)?;
        }
        self.broadcast(all, 0)
    }

    pub(crate) fn barrier(&self) -> Result<()> {
        self.all_reduce(&mut [0.0], ReduceOp::Sum)
    }
}

pub(crate) fn spawn_self(ranks: usize) -> Result<i32> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    drop(listener);
    let program = env::current_exe().map_err(failed)?;
    let mut children = Vec::new();
    for rank in 0..ranks {
        let mut command = Command::new(&program);
        command
            .args(env::args_os().skip(1))
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", ranks.to_string())
            .env("MASTER_PORT", port.to_string());
        children.push(command.spawn().map_err(failed)?);
    }
    let mut worst = 0;
    for mut child in children {
        let status = child.wait().map_err(failed)?;
        worst = worst.max(status.code().unwrap_or(1));
    }
    Ok(worst)
}
