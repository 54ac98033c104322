//! Who holds what when: several runs of one collective above a shared axis of seconds.
/// x
#[derive(Debug)]
pub struct Panel;
/// x
pub fn timeline() {}
