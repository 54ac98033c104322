//! Users' slices and streams, of cudarc's types.

use super::{Bench, gpu, until_done};
use cudarc::driver::{CudaContext, CudaStream};
use ringtree::device::cuda::Cuda;
use ringtree::device::{Device, Fold, Span};
use ringtree::{Dtype, Error, ReduceOp};
use std::sync::Arc;
use std::time::Duration;

const COUNT: usize = 10_000;

struct User {
    cuda: Cuda,
    own: Bench,
    stream: Arc<CudaStream>,
}

/// None where there is no GPU.
fn user() -> Option<User> {
    let cuda = gpu()?;
    let device: Arc<dyn Device> = Arc::new(cuda.clone());
    let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
    let own = Bench::new(&device);
    Some(User { cuda, own, stream })
}

fn numbers() -> Vec<f32> {
    (0..COUNT).map(|number| number as f32).collect()
}

fn doubled() -> Vec<f32> {
    numbers().into_iter().map(|number| number * 2.0).collect()
}

/// Doubles the numbers on a stream of the library's.
fn double(own: &Bench, span: &Span) {
    let operands = [span.clone(), span.clone()];
    let fold = Fold::new(Dtype::F32, ReduceOp::Sum, &operands, &operands[..1], None);
    own.stream.fold(&fold.unwrap()).unwrap();
}

#[test]
fn a_slice_is_taken_and_given_back() {
    let Some(User { cuda, own, stream }) = user() else {
        return;
    };
    let slice = stream.clone_htod(&numbers()).unwrap();
    let wrapped = cuda.wrap_stream(stream.clone()).unwrap();
    let memory = cuda.wrap_slice(slice, &stream).unwrap();
    assert_eq!(memory.bytes(), COUNT * 4);
    let ready = own.event();
    wrapped.record(&ready).unwrap();
    own.stream.wait(&ready).unwrap();
    double(&own, &memory.whole());
    // The operation has it still.
    let memory = Cuda::unwrap_slice::<f32>(memory).unwrap_err();
    own.finish();
    let memory = Cuda::unwrap_slice::<f64>(memory).unwrap_err();
    let slice = Cuda::unwrap_slice::<f32>(memory).unwrap();
    assert!(stream.clone_dtoh(&slice).unwrap() == doubled());
    let own_memory = cuda.allocate(4).unwrap();
    assert!(Cuda::unwrap_slice::<f32>(own_memory).is_err());
}

#[test]
fn a_lent_slice_holds_its_users_stream_until_the_loan_is_over() {
    let Some(User { cuda, own, stream }) = user() else {
        return;
    };
    let wrapped = cuda.wrap_stream(stream.clone()).unwrap();
    let mut slice = stream.clone_htod(&numbers()).unwrap();
    let mut copy = stream.clone_htod(&vec![0.0_f32; COUNT]).unwrap();
    let words = cuda.words(1).unwrap();
    let gate = words.word(0).unwrap();
    for round in 1..4 {
        let (ready, over) = (own.event(), own.event());
        wrapped.record(&ready).unwrap();
        own.stream.wait(&ready).unwrap();
        let loan = (&gate, round);
        let memory = Cuda::lend_slice(&mut slice, &stream, &*wrapped, loan).unwrap();
        // What the user goes on with, on the stream that stands still.
        stream.memcpy_dtod(&slice, &mut copy).unwrap();
        wrapped.record(&over).unwrap();
        let held = cuda.words(1).unwrap();
        own.hold_back(&held);
        if round == 1 {
            double(&own, &memory.whole());
        }
        // Dropped, but an operation has it; or not.
        let is_used = round == 1;
        drop(memory);
        if is_used {
            // Time for the user's stream to go on, if it could.
            std::thread::sleep(Duration::from_millis(20));
            assert!(!over.is_done().unwrap());
        } else {
            until_done(&over);
        }
        Bench::release(&held);
        own.finish();
        until_done(&over);
        assert_eq!(gate.load(), round);
        assert!(stream.clone_dtoh(&copy).unwrap() == doubled());
    }
    let again = Cuda::lend_slice(&mut slice, &stream, &*wrapped, (&gate, 3));
    assert!(matches!(again, Err(Error::Usage(_))));
    let other = cuda.stream().unwrap();
    let elsewhere = Cuda::lend_slice(&mut slice, &stream, &*other, (&gate, 4));
    assert!(matches!(elsewhere, Err(Error::Usage(_))));
}
