//! From a URL and settings to a client with bounded patience.

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, ObjectStoreScheme, RetryConfig};
use ringtree::{Error, Result};
use std::time::Duration;
use url::Url;

/// A request that has not succeeded after this long, all attempts together, has failed.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// A server that accepts no connection for this long is not there.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// How often a request is made again.
const REPEATS_MAX: usize = 3;
/// The longest pause before it is.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The client for `url`, and the prefix that the URL names.
pub(crate) fn connect(
    url: &str,
    settings: &[(String, String)],
) -> Result<(Box<dyn ObjectStore>, Path)> {
    let wrong = |what: &dyn std::fmt::Display| {
        Error::configuration(format!(
            "no checkpoints can be kept at {url}: {what}; give s3://BUCKET/PREFIX, \
             az://CONTAINER/PREFIX or a path"
        ))
    };
    let parsed = Url::parse(url).map_err(|error| wrong(&error))?;
    let (scheme, prefix) = ObjectStoreScheme::parse(&parsed).map_err(|error| wrong(&error))?;
    // An environment holds many names; only those with the provider's mark are meant for it.
    macro_rules! build {
        ($new:expr, $mark:literal) => {{
            let mut builder = $new
                .with_client_options(patient_client())
                .with_retry(patient_retry());
            for (name, value) in settings {
                let name = name.to_ascii_lowercase();
                if let (true, Ok(key)) = (name.starts_with($mark), name.parse()) {
                    builder = builder.with_config(key, value);
                }
            }
            let built = builder.with_url(url).build();
            Box::new(built.map_err(|error| wrong(&error))?) as Box<dyn ObjectStore>
        }};
    }
    let client = match scheme {
        ObjectStoreScheme::AmazonS3 => build!(amazon(), "aws_"),
        ObjectStoreScheme::MicrosoftAzure => build!(MicrosoftAzureBuilder::new(), "azure_"),
        // No emulator that could be had speaks what the client speaks, so nothing ever tried it.
        ObjectStoreScheme::GoogleCloudStorage => {
            return Err(wrong(&"Google Cloud Storage is not supported"));
        }
        _ => return Err(wrong(&"this is no object store")),
    };
    Ok((client, prefix))
}

/// Objects are removed one by one, so in the one way that every server which speaks S3 knows.
fn amazon() -> AmazonS3Builder {
    AmazonS3Builder::new().with_config(AmazonS3ConfigKey::DisableBulkDelete, "true")
}

fn patient_client() -> ClientOptions {
    ClientOptions::new()
        .with_connect_timeout(CONNECT_PATIENCE)
        .with_timeout(PATIENCE)
}

fn patient_retry() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            max_backoff: PAUSE_MAX,
            ..BackoffConfig::default()
        },
        max_retries: REPEATS_MAX,
        retry_timeout: PATIENCE,
    }
}
