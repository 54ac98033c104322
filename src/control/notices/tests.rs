use super::*;

#[test]
fn warnings_escape_control_characters() {
    let line = shown("rank 1 waits, on \u{1b}]0;owned\u{7}\u{1b}[2J\nrank 2: all is well");
    assert!(line.ends_with("\\nrank 2: all is well\n") && line.contains("\\u{1b}]0;owned"));
    assert_eq!(line.matches(char::is_control).count(), 1);
}
