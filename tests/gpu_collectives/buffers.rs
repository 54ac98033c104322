//! Buffers on a device, written and read by the host.

use crate::ranks::device;
use ringtree::comm::device_buffer::DeviceBuffer;
use ringtree::device::fake::{Fake, Options};
use ringtree::device::{Device, Stream};
use std::sync::Arc;

#[test]
fn a_buffer_that_is_written_and_read_again_and_again_pins_little() {
    let fake = Fake::new();
    let device: Arc<dyn Device> = Arc::new(fake.clone());
    let stream = device.stream().unwrap();
    let mut buffer = DeviceBuffer::new(&device, &stream, &[0i32; 1000]).unwrap();
    let before = fake.pins();
    for number in 0..20 {
        buffer.write(&[number; 1000]).unwrap();
        buffer.write(&[number; 10]).unwrap();
        assert_eq!(buffer.read().unwrap(), [number; 1000]);
    }
    let pinned = fake.pins() - before;
    assert!(pinned <= 3, "{pinned} times");
}

/// A write does not wait for the stream, nor change what an earlier one writes.
#[test]
fn writes_to_a_stream_that_stands_still_return_and_are_done_in_order() {
    let device = device(Options::default()).unwrap();
    let (stream, words) = (device.stream().unwrap(), device.words(1).unwrap());
    let mut buffer = DeviceBuffer::new(&device, &stream, &[0i32; 1000]).unwrap();
    let copy = device.allocate(5 * 4000).unwrap();
    stream.wait_word(&words.word(0).unwrap(), 1).unwrap();
    for number in 0..5 {
        buffer.write(&[number; 1000]).unwrap();
        let to = copy.span(number as usize * 4000, 4000).unwrap();
        let from = buffer.device_memory().whole();
        stream.copy(&from, &to).unwrap();
    }
    words.word(0).unwrap().store(1);
    let copied = DeviceBuffer::<i32>::from_memory(&device, &stream, copy);
    let expected: Vec<i32> = (0..5000).map(|at| at / 1000).collect();
    assert_eq!(copied.read().unwrap(), expected);
    assert_eq!(buffer.read().unwrap(), [4; 1000]);
}

#[test]
fn a_buffer_takes_no_more_than_it_holds() {
    let device = device(Options::default()).unwrap();
    let stream: Arc<dyn Stream> = device.stream().unwrap();
    let mut buffer = DeviceBuffer::new(&device, &stream, &[1u8; 3]).unwrap();
    buffer.write(&[2; 4]).unwrap_err();
    buffer.write(&[]).unwrap();
    assert_eq!(buffer.read().unwrap(), [1; 3]);
}
