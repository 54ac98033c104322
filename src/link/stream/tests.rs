use super::*;
use crate::link::shm::exposed::Locator;
use std::io::Cursor;

/// If `send` returned 0 instead, the link would look full, and the call would wait until its
/// deadline.
#[test]
fn unsupported_payload_is_an_error() {
    let source = Box::new(|| Some(Cursor::new(Vec::new())));
    let mut link = StreamLink::new((0, 0), source);
    let message = Message {
        sequence: 1,
        digest: 0,
        number: 0,
        bytes: 8,
    };
    let exposed = Payload::Exposed(Locator {
        number: 1,
        start: 0,
        bytes: 8,
    });
    let sent = link.send(&message, 0, exposed);
    assert!(matches!(sent, Err(LinkError::Refused(_))), "{sent:?}");
    let sent = link.send(&message, 0, Payload::Bytes(&[&[0; 8]]));
    assert_eq!(sent, Ok(8));
}
