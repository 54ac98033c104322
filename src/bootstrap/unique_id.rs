//! Defines the unique ID of a world. The ID consists of rank 0's address and the world's secret.

use super::address;
use crate::error::{Error, Result};
use crate::hash::fnv_1a;
use crate::protocol::handshake::{Secret, from_hex};
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
/// Number of bytes before the checksum.
const SUMMED_BYTES: usize = 24 + NONCE_BYTES + SECRET_BYTES;

/// An address and a secret that the ranks of a world use to find and authenticate each other.
///
/// Create the ID in any process on rank 0's host, and send it to every rank over a private channel:
/// *any process that has the ID can join as any rank*. An ID is [`UniqueId::BYTES`] bytes long.
/// Create a new ID for each world.
///
/// The port remains reserved for as long as the ID, or a clone of it, exists in the process that
/// created it. Keep the ID until rank 0 has connected.
///
/// ```
/// use ringtree::start::UniqueId;
/// use ringtree::{Communicator, ReduceOp};
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
    /// Reserves the port in the process that created the ID. The socket is bound but not listening.
    _reserved: Option<Arc<Socket>>,
}

impl UniqueId {
    /// Number of bytes in an ID.
    pub const BYTES: usize = SUMMED_BYTES + 8;

    /// Creates an ID that uses a free port.
    ///
    /// The address is the one from which this host reaches other hosts. This is the source address
    /// of the default route or, if there is no such route, the address of an interface or, if there
    /// is none, the loopback address.
    ///
    /// # Errors
    /// Returns an [`Error`] of kind [`ErrorKind::System`](crate::ErrorKind::System) if no port is
    /// available or random numbers cannot be obtained.
    #[doc(alias("ncclGetUniqueId"))]
    pub fn new() -> Result<Self> {
        Self::at(address::outward())
    }

    /// Like [`UniqueId::new`], but uses an address of the network interface `interface`, which is
    /// given by its name or by one of its addresses.
    ///
    /// # Errors
    /// Returns an [`Error`] of kind [`ErrorKind::Configuration`](crate::ErrorKind::Configuration)
    /// if there is no such interface. Also returns the same errors as [`UniqueId::new`].
    pub fn on(interface: &str) -> Result<Self> {
        let like = IpAddr::from([127, 0, 0, 1]);
        Self::at(address::interface_address(interface, like)?)
    }

    fn at(address: IpAddr) -> Result<Self> {
        let (reserved, address) =
            address::reserve(SocketAddr::new(address, 0)).map_err(|error| {
                Error::io(format_args!("cannot reserve a port on {address}"), &error)
            })?;
        let unfilled = |error| Error::io("cannot get random bytes", &error);
        Ok(Self {
            address,
            nonce: random::bytes().map_err(unfilled)?,
            secret: random::bytes().map_err(unfilled)?,
            _reserved: Some(Arc::new(reserved)),
        })
    }

    /// Returns the address at which rank 0 accepts connections from the other ranks.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn secret(&self) -> Secret {
        Secret::new(self.secret)
    }

    /// Returns a public name for the ID, for use in messages and in store keys. The name is not
    /// confidential.
    pub(super) fn name(&self) -> String {
        hex(&self.nonce)
    }

    /// Returns the ID as bytes. The bytes contain the secret.
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

    /// Decodes an ID from the bytes returned by [`UniqueId::to_bytes`].
    ///
    /// ```
    /// use ringtree::start::UniqueId;
    /// let id = UniqueId::on("127.0.0.1").unwrap();
    /// let mut bytes = id.to_bytes();
    /// assert_eq!(UniqueId::from_bytes(&bytes).unwrap().address(), id.address());
    /// bytes[60] ^= 1;
    /// let error = UniqueId::from_bytes(&bytes).unwrap_err();
    /// assert_eq!(error.kind(), ringtree::ErrorKind::Configuration);
    /// ```
    ///
    /// # Errors
    /// Returns an [`Error`] of kind [`ErrorKind::Configuration`](crate::ErrorKind::Configuration)
    /// if the bytes are not an ID, have been changed, or were created by an incompatible version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let wrong = |what: String| Err(Error::configuration(format!("the unique id {what}")));
        if bytes.len() != Self::BYTES {
            let what = format!("has {} bytes, but must have {}", bytes.len(), Self::BYTES);
            return wrong(what);
        }
        let (summed, told) = bytes.split_at(SUMMED_BYTES);
        if !summed.starts_with(&MAGIC) || sum(summed) != told {
            return wrong(
                "is damaged or is not a unique id; pass all its bytes unchanged".to_owned(),
            );
        }
        if summed[4] != VERSION || summed[5] != 0 {
            return wrong(format!(
                "has version {}, expected {VERSION}; use the same version of ringtree on all ranks",
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
            return wrong("contains no address".to_owned());
        }
        Ok(Self {
            address: SocketAddr::new(ip, port),
            nonce,
            secret,
            _reserved: None,
        })
    }

    /// Returns the ID as `2 * UniqueId::BYTES` hexadecimal digits. The digits contain the secret.
    #[must_use]
    pub fn to_hex(&self) -> String {
        hex(&self.to_bytes())
    }
}

impl FromStr for UniqueId {
    type Err = Error;

    /// Decodes an ID from the digits returned by [`UniqueId::to_hex`]. Ignores surrounding white
    /// space.
    ///
    /// # Errors
    /// Returns the same errors as [`UniqueId::from_bytes`]. Also returns an error if the text does
    /// not consist of pairs of hexadecimal digits.
    fn from_str(text: &str) -> Result<Self> {
        let bytes = from_hex(text).ok_or_else(|| {
            Error::configuration(
                "the unique id must consist of an even number of hexadecimal digits",
            )
        })?;
        Self::from_bytes(&bytes)
    }
}

/// Formats the ID without its secret.
impl fmt::Debug for UniqueId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "UniqueId({}, {})", self.address, self.name())
    }
}

/// Returns `bytes` as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns an FNV-1a checksum, which detects accidental changes.
fn sum(bytes: &[u8]) -> [u8; 8] {
    fnv_1a(bytes.iter().copied()).to_le_bytes()
}
