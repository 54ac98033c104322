//! A bucket's promises, kept in emulators that others have made. `run_emulators` starts them and
//! says where they are. Without it every test here fails, so they are run by name alone.

#![allow(clippy::unwrap_used, missing_docs)]

mod promises;

use promises::Place;

/// Holds the URLs of buckets, with blanks between them.
const STORES: &str = "RINGTREE_TEST_STORES";

fn in_each_place(test: &str, promise: impl Fn(&Place)) {
    let stores = std::env::var(STORES).expect("run_emulators says where the stores are");
    let settings: Vec<_> = std::env::vars().collect();
    for store in stores.split_whitespace() {
        let began = std::time::Instant::now();
        promise(&Place {
            url: format!("{store}/{test}"),
            settings: settings.clone(),
        });
        println!("{store}: {test}, {:.1} s", began.elapsed().as_secs_f64());
    }
}
