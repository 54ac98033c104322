//! Tests the progress bars of the training examples: one per host, on a terminal.

use super::pty::{Terminal, positions};
use super::several_hosts::Hosts;
use super::train_text::program;
use super::*;

#[test]
fn each_host_shows_one_moving_bar() {
    let script = format!(
        "exec {} --steps 40 --batch 8",
        program("train_text").display()
    );
    // With `inherit`, all ranks write to the terminal.
    for output in ["rank0", "inherit"] {
        let hosts = Hosts::new(2);
        let on_terminal = |place: &str| {
            let (terminal, programs) = Terminal::open();
            let options = ["--output", output, "--node-rank", place];
            let mut command = hosts.launcher(2, &options, &script);
            command.stdout(programs.try_clone().unwrap());
            (command.stderr(programs).spawn().unwrap(), terminal)
        };
        let launchers = ["0", "1"].map(on_terminal);
        // A terminal buffers only a few bytes, so read both terminals concurrently.
        let readers = launchers.map(|(launcher, mut terminal)| {
            thread::spawn(move || (terminal.rest(), wait(launcher).code))
        });
        let [first, second] = readers.map(|reader| reader.join().unwrap());
        assert_eq!(
            (first.1, second.1),
            (Some(0), Some(0)),
            "{first:?} {second:?}"
        );
        for text in [&first.0, &second.0] {
            let shown = positions(text, " of 40 steps");
            let is_one = shown.is_sorted() && shown.first() < shown.last();
            assert!(is_one, "{output}: {shown:?}: {text:?}");
        }
        // Rank 0 prints the lines. The terminal of the other host shows only the bar.
        assert!(
            first.0.contains("loss") && !second.0.contains("loss"),
            "{second:?}"
        );
    }
}
