//! Tests checkpoints in a bucket of a real S3 server, which runs in this process.

#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../promises/mod.rs"]
mod promises;
mod server;

use promises::{FEW, Place, checkpoint};
use ringtree::ddp::checkpoint::{Checkpoints, Store};
use ringtree::{Error, ErrorKind};
use ringtree_object_store::{Bucket, REQUEST_TIMEOUT};
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

/// Runs `check` with a bucket of a new server.
fn in_each_place(_test: &str, check: impl Fn(&Place)) {
    let server = Server::start();
    check(&place(&server));
}

/// Asserts that `call` returns an error in less than `within`, and that the error is a single line
/// that contains the URL.
fn assert_clear_error(call: impl FnOnce() -> Error, within: Duration) {
    let start = Instant::now();
    let error = call();
    let elapsed = start.elapsed();
    assert!(elapsed < within, "{error} after {elapsed:?}");
    let text = error.to_string();
    assert!(error.kind() == ErrorKind::System, "{text}");
    assert!(text.contains(URL), "{text}");
    assert!(text.contains("check that the server is up"), "{text}");
    assert!(!text.contains('\n'), "{text}");
}

#[test]
fn stopped_server_is_a_clear_error() {
    let mut server = Server::start();
    let checkpoints = Checkpoints::new(bucket(&server), 1);
    checkpoints.save(&checkpoint(1, FEW)).unwrap();
    server.stop();
    let limit = REQUEST_TIMEOUT + Duration::from_secs(5);
    assert_clear_error(|| checkpoints.save(&checkpoint(2, FEW)).unwrap_err(), limit);
    assert_clear_error(|| checkpoints.latest().unwrap_err(), limit);
}

#[test]
fn unresponsive_server_is_a_clear_error() {
    // The kernel accepts connections to this listener, but nobody reads from them.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut settings = settings(silent.local_addr().unwrap());
    settings.push(("AWS_TIMEOUT".to_owned(), "500ms".to_owned()));
    let bucket = Bucket::open_with(URL, settings).unwrap();
    assert_clear_error(|| bucket.list().unwrap_err(), REQUEST_TIMEOUT);
}

#[test]
fn wrong_credentials_and_urls_are_clear_errors() {
    let server = Server::start();
    let mut settings = server.settings();
    settings.push(("AWS_SECRET_ACCESS_KEY".to_owned(), "guessed".to_owned()));
    let bucket = Bucket::open_with(URL, settings).unwrap();
    assert_clear_error(|| bucket.list().unwrap_err(), REQUEST_TIMEOUT);
    for url in [
        "s3:models",
        "http://127.0.0.1/x",
        "file:///tmp",
        "gs://models/x",
        "nonsense",
    ] {
        let Err(error) = Bucket::open_with(url, server.settings()) else {
            panic!("{url} was accepted");
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
fn asynchronous_program_can_use_and_drop_bucket() {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    runtime.block_on(async {
        let checkpoints = Checkpoints::new(bucket(&server), 1);
        checkpoints.save(&checkpoint(1, FEW)).unwrap();
        assert_eq!(checkpoints.newest_step(), Ok(Some(1)));
    });
}
