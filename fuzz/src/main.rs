//! A libFuzzer program for every decoder of the library. The script `run` in this directory builds
//! it and selects the decoder with `DECODER`.

#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};
use ringtree::decoders::{DECODERS, Decoder};
use std::sync::LazyLock;

static CHOSEN: LazyLock<&Decoder> = LazyLock::new(|| {
    let name = std::env::var("DECODER").unwrap_or_default();
    let found = DECODERS.iter().find(|decoder| decoder.name == name);
    let chosen = found.unwrap_or_else(|| {
        let names: Vec<_> = DECODERS.iter().map(|decoder| decoder.name).collect();
        eprintln!("DECODER must be one of {}", names.join(", "));
        std::process::exit(2);
    });
    // Write the seeds before the fuzzer reads its directories.
    if let Some(folder) = std::env::var_os("SEEDS") {
        for (number, seed) in (chosen.seeds)().iter().enumerate() {
            let file = std::path::Path::new(&folder).join(format!("seed-{number}"));
            if let Err(error) = std::fs::write(&file, seed) {
                eprintln!("{}: {error}", file.display());
                std::process::exit(1);
            }
        }
    }
    chosen
});

fuzz_target!(
    init: {
        LazyLock::force(&CHOSEN);
    },
    |bytes: &[u8]| -> Corpus {
        (CHOSEN.run)(bytes);
        Corpus::Keep
    }
);
