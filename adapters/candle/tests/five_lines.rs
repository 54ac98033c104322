//! The promise of the documentation: five lines make a candle program a distributed one.

/// Lines of `text` that `other` does not have, besides the line that says what the program is.
fn own_lines<'a>(text: &'a str, other: &str) -> Vec<&'a str> {
    let others: Vec<_> = other.lines().collect();
    let lines = text.lines().skip(1);
    lines.filter(|line| !others.contains(line)).collect()
}

#[test]
fn five_lines_make_a_program_distributed() {
    let single = include_str!("../examples/single.rs");
    let distributed = include_str!("../examples/distributed.rs");
    let (new, gone) = (
        own_lines(distributed, single),
        own_lines(single, distributed),
    );
    assert!(new.len() <= 5, "{new:#?}");
    assert!(gone.len() <= new.len(), "{gone:#?}");
}
