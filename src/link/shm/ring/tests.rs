use super::*;
use std::cell::RefCell;

/// Memory that only one thread uses.
struct Words(RefCell<Vec<u64>>);

impl ReadWords for Words {
    fn load(&self, at: usize) -> u64 {
        self.0.borrow()[at]
    }

    fn acquire(&self) {}
}

impl WriteWords for Words {
    fn store(&self, at: usize, value: u64) {
        self.0.borrow_mut()[at] = value;
    }

    fn release(&self, at: usize, value: u64) {
        self.store(at, value);
    }
}

#[test]
fn counts_wrap_and_each_cell_arrives_once() {
    let near = Words(RefCell::new(vec![0; CELLS * CELL_WORDS]));
    let far = Words(RefCell::new(vec![0; CELL_WORDS]));
    let mut sender: Sender = Sender::new(0, 0);
    let mut receiver: Receiver = Receiver::new(0, 0);
    // Start as if many cells had been sent before. The ring still holds the last `CELLS` of
    // these cells.
    let begin = u64::from(u32::MAX) - 40;
    (sender.count, sender.acknowledged) = (begin, begin);
    (receiver.count, receiver.said) = (begin as u32, begin as u32);
    for count in begin - CELLS as u64 + 1..=begin {
        near.store(cell(0, CELLS, count as u32), count);
    }
    let (mut sent, mut received) = (0u32, 0);
    while received < 1000 {
        assert_eq!(
            receiver.peek(&near),
            None,
            "cell {received} has not been sent yet"
        );
        // Send a varying number of cells, at most as many as the ring has space for.
        for _ in 0..=sent % 19 {
            if sender.has_room(&far) {
                let head = Head {
                    digest: sent,
                    form: 0,
                    sequence: 0,
                    number: 0,
                };
                sender.publish(&near, head, &sent.to_le_bytes(), 0);
                sent += 1;
            }
        }
        assert!(sent > received, "the ring must have space");
        while let Some((head, _)) = receiver.peek(&near) {
            let mut bytes = [0; INLINE_BYTES];
            receiver.inline(&near, &mut bytes, 4);
            assert_eq!(
                (head.digest, &bytes[..4]),
                (received, &received.to_le_bytes()[..])
            );
            receiver.finish(&far, false);
            received += 1;
        }
        assert_eq!(sent, received);
    }
}
