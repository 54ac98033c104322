//! Checkpoints in a bucket of a real server.

#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../promises/mod.rs"]
mod promises;
mod server;

use promises::{FEW, Place, checkpoint};
use ringtree::ddp::checkpoint::{Checkpoints, Store};
use ringtree::{Error, ErrorKind};
use ringtree_object_store::{Bucket, PATIENCE};
use server::{Server, settings};
use std::net::TcpListener;
use std::time::{Duration, Instant};

const URL: &str = "s3://models/runs/first-try";

fn bucket(server: &Server) -> Bucket {
    place(server).bucket()
}

fn place(server: &Server) -> Place {
    Place {
        url: URL.to_owned(),
        settings: server.settings(),
    }
}

/// A server for each test.
fn in_each_place(_test: &str, promise: impl Fn(&Place)) {
    let server = Server::start();
    promise(&place(&server));
}

/// Fails if the error is not one line that names the place, or comes too late.
fn assert_clear(what: impl FnOnce() -> Error, within: Duration) {
    let start = Instant::now();
    let error = what();
    let took = start.elapsed();
    assert!(took < within, "{error} after {took:?}");
    let text = error.to_string();
    assert!(error.kind() == ErrorKind::System, "{text}");
    assert!(text.contains(URL), "{text}");
    assert!(text.contains("check that the server is up"), "{text}");
    assert!(!text.contains('\n'), "{text}");
}

#[test]
fn a_server_that_goes_away_is_a_clear_error() {
    let mut server = Server::start();
    let checkpoints = Checkpoints::new(bucket(&server), 1);
    checkpoints.save(&checkpoint(1, FEW)).unwrap();
    server.stop();
    let soon = PATIENCE + Duration::from_secs(5);
    assert_clear(|| checkpoints.save(&checkpoint(2, FEW)).unwrap_err(), soon);
    assert_clear(|| checkpoints.latest().unwrap_err(), soon);
}

#[test]
fn a_server_that_never_answers_is_given_up() {
    // The system accepts connections for it, and nobody reads them.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut settings = settings(silent.local_addr().unwrap());
    settings.push(("AWS_TIMEOUT".to_owned(), "500ms".to_owned()));
    let bucket = Bucket::open_with(URL, settings).unwrap();
    assert_clear(|| bucket.list().unwrap_err(), PATIENCE);
}

#[test]
fn wrong_credentials_and_wrong_urls_are_clear_errors() {
    let server = Server::start();
    let mut settings = server.settings();
    settings.push(("AWS_SECRET_ACCESS_KEY".to_owned(), "guessed".to_owned()));
    let bucket = Bucket::open_with(URL, settings).unwrap();
    assert_clear(|| bucket.list().unwrap_err(), PATIENCE);
    for url in [
        "s3:models",
        "http://127.0.0.1/x",
        "file:///tmp",
        "gs://models/x",
        "nonsense",
    ] {
        let Err(error) = Bucket::open_with(url, server.settings()) else {
            panic!("{url} was taken");
        };
        assert!(error.kind() == ErrorKind::Configuration, "{error:?}");
        let message = error.to_string();
        assert!(
            message.contains(url) && message.contains("s3://"),
            "{message}"
        );
    }
}

#[test]
fn an_asynchronous_program_can_use_and_drop_it() {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    runtime.block_on(async {
        let checkpoints = Checkpoints::new(bucket(&server), 1);
        checkpoints.save(&checkpoint(1, FEW)).unwrap();
        assert_eq!(checkpoints.newest_step(), Ok(Some(1)));
    });
}
