use super::*;

#[test]
fn scratch_shrinks_after_many_small_operations() {
    let connect = Box::new(|_| -> Box<dyn crate::link::Link> { panic!("no link is used") });
    let mut queue = Queue::new(Order::Collectives, Links::new(1, connect), 0, 1);
    let needing = |scratch_bytes| Program {
        scratch_bytes,
        ..Program::default()
    };
    let mut run = |scratch_bytes| {
        let index = queue.place(&needing(scratch_bytes));
        queue.free.push(index);
        queue.slots[index].scratch.capacity()
    };
    // If large operations recur often enough, their scratch stays allocated.
    for _ in 0..3 {
        assert_eq!(run(1 << 20), 1 << 20);
        for _ in 1..SCRATCH_KEPT_FOR {
            assert_eq!(run(100), 1 << 20);
        }
    }
    assert_eq!(run(100), 100);
    assert_eq!(run(0), 100);
}
