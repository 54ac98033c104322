//! The picture for pages.
use super::Caption;
use crate::plan::ir::Plan;
/// x
pub fn svg(_plans:&[Plan], _caption:&Caption)->Result<String,String> {Err(String::new())}
