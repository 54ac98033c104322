//! Progress bars of the training examples: one a host, on a terminal.

use super::pty::{Terminal, positions};
use super::several_hosts::Hosts;
use super::train_text::program;
use super::*;

#[test]
fn on_each_host_one_bar_moves() {
    let script = format!(
        "exec {} --steps 40 --batch 8",
        program("train_text").display()
    );
    // The second way all ranks have the terminal.
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
        // A terminal holds few bytes: each is read while the others write.
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
        // Lines are rank 0's; on the other host nothing is but the bar.
        assert!(
            first.0.contains("loss") && !second.0.contains("loss"),
            "{second:?}"
        );
    }
}
