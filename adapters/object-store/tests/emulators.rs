//! Tests the guarantees of a bucket against third-party emulators. The script `run_emulators`
//! starts the emulators and passes their URLs. Without it, every test here fails, so the tests run
//! only by name.

#![allow(clippy::unwrap_used, missing_docs)]

mod promises;

use promises::Place;

/// Name of the environment variable that contains the URLs of the buckets, separated by spaces.
const STORES: &str = "RINGTREE_TEST_STORES";

fn in_each_place(test: &str, check: impl Fn(&Place)) {
    let stores = std::env::var(STORES).expect("run_emulators sets RINGTREE_TEST_STORES");
    let settings: Vec<_> = std::env::vars().collect();
    for store in stores.split_whitespace() {
        let start = std::time::Instant::now();
        check(&Place {
            url: format!("{store}/{test}"),
            settings: settings.clone(),
        });
        println!("{store}: {test}, {:.1} s", start.elapsed().as_secs_f64());
    }
}
