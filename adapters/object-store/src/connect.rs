//! Creates a client from a URL and settings, and limits how long the client waits.

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, ObjectStoreScheme, RetryConfig};
use ringtree::{Error, ErrorKind, Result};
use std::time::Duration;
use url::Url;

/// Time limit for a request, including all its attempts.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for connecting to the server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of retries of a request.
const RETRIES_MAX: usize = 3;
/// Longest pause before a retry.
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// Returns the client for `url`, and the prefix in the URL.
pub(crate) fn connect(
    url: &str,
    settings: &[(String, String)],
) -> Result<(Box<dyn ObjectStore>, Path)> {
    let wrong = |what: &dyn std::fmt::Display| {
        Error::new(
            ErrorKind::Configuration,
            format!(
                "cannot store checkpoints at {url}: {what}; pass s3://BUCKET/PREFIX, \
             az://CONTAINER/PREFIX or a path"
            ),
        )
    };
    let parsed = Url::parse(url).map_err(|error| wrong(&error))?;
    let (scheme, prefix) = ObjectStoreScheme::parse(&parsed).map_err(|error| wrong(&error))?;
    // Use only the variables with the provider's prefix, because the environment contains many
    // others.
    macro_rules! build {
        ($new:expr, $mark:literal) => {{
            let mut builder = $new
                .with_client_options(client_options())
                .with_retry(retry_config());
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
        ObjectStoreScheme::AmazonS3 => build!(s3_builder(), "aws_"),
        ObjectStoreScheme::MicrosoftAzure => build!(MicrosoftAzureBuilder::new(), "azure_"),
        // No available emulator speaks the client's protocol, so this provider cannot be tested.
        ObjectStoreScheme::GoogleCloudStorage => {
            return Err(wrong(&"Google Cloud Storage is not supported"));
        }
        _ => return Err(wrong(&"the URL does not name an object store")),
    };
    Ok((client, prefix))
}

/// Creates a builder that removes objects one by one, because every S3-compatible server supports
/// that.
fn s3_builder() -> AmazonS3Builder {
    AmazonS3Builder::new().with_config(AmazonS3ConfigKey::DisableBulkDelete, "true")
}

fn client_options() -> ClientOptions {
    ClientOptions::new()
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_timeout(REQUEST_TIMEOUT)
}

fn retry_config() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            max_backoff: BACKOFF_MAX,
            ..BackoffConfig::default()
        },
        max_retries: RETRIES_MAX,
        retry_timeout: REQUEST_TIMEOUT,
    }
}
