//! Runs an S3 server in this process. It listens on loopback and stores objects in a temporary
//! directory.

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder as Connections;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s_fs::FileSystem;
use std::fs;
use std::net::SocketAddr;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

const BUCKET: &str = "models";
const KEY: &str = "a-name";
const SECRET: &str = "a-secret";

/// An S3 server that runs until it is stopped or dropped.
pub(crate) struct Server {
    /// The directory with the objects. It exists until the server is dropped.
    _directory: TempDir,
    address: SocketAddr,
    runtime: Option<Runtime>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join(BUCKET)).unwrap();
        let mut service = S3ServiceBuilder::new(FileSystem::new(directory.path()).unwrap());
        service.set_auth(SimpleAuth::from_single(KEY, SECRET));
        let service = service.build().into_shared();
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let connections = Connections::new(TokioExecutor::new());
                    let served = connections.serve_connection(TokioIo::new(socket), service);
                    // Ignore errors, because a killed client breaks its connection.
                    let _ = served.await;
                });
            }
        });
        Self {
            _directory: directory,
            address,
            runtime: Some(runtime),
        }
    }

    pub(crate) fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// Returns the settings of a client of this server.
    pub(crate) fn settings(&self) -> Vec<(String, String)> {
        settings(self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns the settings of a client of the server at `address`, as environment variables.
pub(crate) fn settings(address: SocketAddr) -> Vec<(String, String)> {
    let settings = [
        ("AWS_ENDPOINT", format!("http://{address}")),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
    ];
    settings
        .map(|(name, value)| (name.to_owned(), value))
        .into()
}
