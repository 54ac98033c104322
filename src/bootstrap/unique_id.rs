//! A start as a value: where rank 0 waits, and the secret that the ranks prove.

use super::address;
use crate::error::{Error, Result};
use crate::protocol::handshake::Secret;
use crate::random;
use socket2::Socket;
use std::fmt;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

const MAGIC: [u8; 4] = *b"RTID";
const VERSION: u8 = 1;
const NONCE_BYTES: usize = 16;
const SECRET_BYTES: usize = 32;
/// All but the sum at the end.
const SUMMED_BYTES: usize = 24 + NONCE_BYTES + SECRET_BYTES;

/// All that the ranks of one world need to find each other and no stranger: the address at which
/// rank 0 waits, a number of its own, and a secret, in [`UniqueId::BYTES`] bytes.
///
/// It is made on rank 0's host, in its process or in another, and goes to every rank by any means
/// that strangers cannot read: *a process that has it can join as any rank*. Each world takes an
/// id of its own. The port is kept free for as long as the id (or a clone) lives in the process
/// that made it; let it live until rank 0 has connected.
///
/// ```
/// use ringtree::{Communicator, ReduceOp, UniqueId};
///
/// # fn main() -> ringtree::Result<()> {
/// let id = UniqueId::on("127.0.0.1")?; // or `UniqueId::new()?`, which other hosts can reach
/// let text = id.to_hex(); // goes to the other rank by a file, MPI, a queue ...
///
/// let other = std::thread::spawn(move || -> ringtree::Result<f32> {
///     let id = text.parse()?;
///     let comm = Communicator::builder().rank(1).world_size(2).unique_id(&id).connect()?;
///     let mut sum = [1.0f32];
///     comm.all_reduce(&mut sum, ReduceOp::Sum)?;
///     Ok(sum[0])
/// });
/// let comm = Communicator::builder().rank(0).world_size(2).unique_id(&id).connect()?;
/// let mut sum = [2.0f32];
/// comm.all_reduce(&mut sum, ReduceOp::Sum)?;
/// assert_eq!(sum, [3.0]);
/// assert_eq!(other.join().unwrap()?, 3.0);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct UniqueId {
    address: SocketAddr,
    nonce: [u8; NONCE_BYTES],
    secret: [u8; SECRET_BYTES],
    /// Keeps the port, where the id was made: bound, but not listening.
    _reserved: Option<Arc<Socket>>,
}

impl UniqueId {
    /// The length of an id as bytes.
    pub const BYTES: usize = SUMMED_BYTES + 8;

    /// A new id, with a free port of the address by which this host reaches others: that of the
    /// default route; without one, an interface's; or loopback.
    ///
    /// # Errors
    /// [`Error::system`](Error::io) if the system has no port, or no random numbers.
    pub fn new() -> Result<Self> {
        Self::at(address::outward())
    }

    /// Likewise on the network interface `interface`: its name, or one of its addresses.
    ///
    /// # Errors
    /// [`Error::configuration`] names the interfaces that there are; else as [`UniqueId::new`].
    pub fn on(interface: &str) -> Result<Self> {
        let like = IpAddr::from([127, 0, 0, 1]);
        Self::at(address::interface_address(interface, like)?)
    }

    fn at(address: IpAddr) -> Result<Self> {
        let (reserved, address) = address::reserve(SocketAddr::new(address, 0))
            .map_err(|error| Error::io(format_args!("taking a port of {address}"), &error))?;
        let unfilled = |error| Error::io("making a secret", &error);
        Ok(Self {
            address,
            nonce: random::bytes().map_err(unfilled)?,
            secret: random::bytes().map_err(unfilled)?,
            _reserved: Some(Arc::new(reserved)),
        })
    }

    /// Where rank 0 waits.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn secret(&self) -> Secret {
        Secret::new(self.secret)
    }

    /// What names this id to people and in a store; it proves nothing.
    pub(super) fn name(&self) -> String {
        hex(&self.nonce)
    }

    /// The id as bytes: the secret is among them.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let ip = match self.address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let head = [VERSION, 0];
        let port = self.address.port().to_le_bytes();
        let parts: [&[u8]; 6] = [
            &MAGIC,
            &head,
            &port,
            &ip.octets(),
            &self.nonce,
            &self.secret,
        ];
        let mut bytes = [0; Self::BYTES];
        bytes[..SUMMED_BYTES].copy_from_slice(&parts.concat());
        let sum = sum(&bytes[..SUMMED_BYTES]);
        bytes[SUMMED_BYTES..].copy_from_slice(&sum);
        bytes
    }

    /// The id that these bytes are.
    ///
    /// ```
    /// use ringtree::UniqueId;
    /// let id = UniqueId::on("127.0.0.1").unwrap();
    /// let mut bytes = id.to_bytes();
    /// assert_eq!(UniqueId::from_bytes(&bytes).unwrap().address(), id.address());
    /// bytes[60] ^= 1;
    /// assert!(UniqueId::from_bytes(&bytes).unwrap_err().is_configuration());
    /// ```
    ///
    /// # Errors
    /// [`Error::configuration`]: they are none, or were changed on their way.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let wrong = |what: String| Err(Error::configuration(format!("the unique id {what}")));
        if bytes.len() != Self::BYTES {
            let what = format!("has {} bytes; it must be {}", bytes.len(), Self::BYTES);
            return wrong(what);
        }
        let (summed, told) = bytes.split_at(SUMMED_BYTES);
        if !summed.starts_with(&MAGIC) || sum(summed) != told {
            return wrong("was changed on its way, or is none: hand on all its bytes".to_owned());
        }
        if summed[4] != VERSION || summed[5] != 0 {
            return wrong(format!(
                "is of version {}, this library's are of {VERSION}: use one version on all ranks",
                summed[4]
            ));
        }
        let part = |from: usize| summed[from..].first_chunk::<16>().copied();
        let secret = summed.last_chunk::<SECRET_BYTES>().copied();
        let (Some(ip), Some(nonce), Some(secret)) = (part(8), part(24), secret) else {
            unreachable!("invariant: the length was checked");
        };
        let port = u16::from_le_bytes([summed[6], summed[7]]);
        let ip = Ipv6Addr::from(ip).to_canonical();
        if port == 0 || ip.is_unspecified() {
            return wrong("names no address".to_owned());
        }
        Ok(Self {
            address: SocketAddr::new(ip, port),
            nonce,
            secret,
            _reserved: None,
        })
    }

    /// The id in hexadecimal digits, twice [`UniqueId::BYTES`]: the secret is among them.
    #[must_use]
    pub fn to_hex(&self) -> String {
        hex(&self.to_bytes())
    }
}

impl FromStr for UniqueId {
    type Err = Error;

    /// The id in these hexadecimal digits; surrounding white space is ignored.
    fn from_str(text: &str) -> Result<Self> {
        let digits = text.trim().as_bytes();
        let digit = |byte: &u8| char::from(*byte).to_digit(16);
        let pair =
            |pair: &[u8]| u8::try_from(digit(pair.first()?)? << 4 | digit(pair.get(1)?)?).ok();
        let bytes: Option<Vec<u8>> = digits.chunks(2).map(pair).collect();
        let bytes = bytes.ok_or_else(|| {
            Error::configuration("the unique id is not made of pairs of hexadecimal digits")
        })?;
        Self::from_bytes(&bytes)
    }
}

/// Without the secret.
impl fmt::Debug for UniqueId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "UniqueId({}, {})", self.address, self.name())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// FNV-1a: finds what changed by mistake.
fn sum(bytes: &[u8]) -> [u8; 8] {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash.to_le_bytes()
}
