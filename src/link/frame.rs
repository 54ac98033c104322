//! Encodes the header that precedes each segment of payload.
//!
//! ```text
//!  0      1       2        4          8         16       20       24       28      32
//!  | kind | flags | epoch  | group    | sequence | message | bytes  | digest | crc32c |
//! ```
//! Numbers are little-endian. `crc32c` is reserved, and is 0 until checksums are negotiated.

/// Size of an encoded header in bytes.
pub(crate) const HEADER_BYTES: usize = 32;

/// Value of the `kind` field in a frame that carries a segment of a message.
pub(crate) const KIND_SEGMENT: u8 = 0xD1;

/// A decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The group's epoch, which increases when the group is rebuilt.
    pub epoch: u16,
    /// The group that the link belongs to.
    pub group: u32,
    /// Sequence number of the operation in the group.
    pub sequence: u64,
    /// Index of the message among those of the same operation, link and direction.
    pub message: u32,
    /// Number of payload bytes that follow.
    pub bytes: u32,
    /// Digest of the call.
    pub digest: u32,
}

impl Header {
    /// Returns the encoded header.
    ///
    /// ```
    /// use ringtree::internal::link::Header;
    /// let header = Header { epoch: 0, group: 1, sequence: 7, message: 2, bytes: 64, digest: 9 };
    /// assert_eq!(Header::decode(&header.encode()), Some(header));
    /// ```
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = KIND_SEGMENT;
        bytes[2..4].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.group.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.message.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.digest.to_le_bytes());
        bytes
    }

    /// Decodes a header. Returns `None` if the kind is unknown or a reserved field is not 0.
    #[must_use]
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        if bytes[0] != KIND_SEGMENT || bytes[1] != 0 || word(28) != 0 {
            return None;
        }
        Some(Self {
            epoch: u16::from_le_bytes([bytes[2], bytes[3]]),
            group: word(4),
            sequence: u64::from(word(8)) | u64::from(word(12)) << 32,
            message: word(16),
            bytes: word(20),
            digest: word(24),
        })
    }
}
