//! A server that speaks S3, in this process, on loopback, over a folder.

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

/// Runs until it is dropped or stopped.
pub(crate) struct Server {
    /// What it serves, until it is dropped.
    _folder: TempDir,
    address: SocketAddr,
    runtime: Option<Runtime>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(BUCKET)).unwrap();
        let mut service = S3ServiceBuilder::new(FileSystem::new(folder.path()).unwrap());
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
                    // A client that is killed ends its connection in the middle.
                    let _ = served.await;
                });
            }
        });
        Self {
            _folder: folder,
            address,
            runtime: Some(runtime),
        }
    }

    pub(crate) fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// What a client's environment holds.
    pub(crate) fn settings(&self) -> Vec<(String, String)> {
        settings(self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The settings of a client of the server at `address`.
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
