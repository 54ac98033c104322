//! Tests the documentation pages that `ringtree plan` generates.

/// Pages in docs/plans, each with the arguments of `ringtree plan` that generate it.
const PAGES: [(&str, &str); 4] = [
    (
        "broadcast",
        "broadcast --algorithm binomial,chain --ranks 8",
    ),
    (
        "all-reduce",
        "all-reduce --algorithm ring,circulant --ranks 7 --bytes 64K",
    ),
    (
        "all-to-all",
        "all-to-all --algorithm pairwise,bruck --ranks 12 --bytes 1K",
    ),
    (
        "two-hosts",
        "all-reduce --algorithm circulant,hierarchical --ranks 8 --ranks-per-host 4 --bytes 64K",
    ),
];

/// With RINGTREE_TEST_WRITE=1, writes the pages instead of comparing them.
#[test]
fn pages_match_output_of_command() {
    for (name, line) in PAGES {
        let path = format!(
            "{}/../../docs/plans/{name}.html",
            env!("CARGO_MANIFEST_DIR")
        );
        let page = crate::plan::stdout(&format!("{line} --draw html"));
        assert!(page.len() <= 120_000, "{name}: {} bytes", page.len());
        if std::env::var_os("RINGTREE_TEST_WRITE").is_some() {
            std::fs::write(path, page).unwrap();
            continue;
        }
        assert!(
            std::fs::read_to_string(path).is_ok_and(|found| found == page),
            "docs/plans/{name}.html differs from the output of the command; to update it, run:\n\
             RINGTREE_TEST_WRITE=1 cargo test -p ringtree-cli --test command pages"
        );
    }
}
