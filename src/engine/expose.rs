//! Programs for memory that the ranks of the host can read where it lies.

use super::program::{Action, Dependency, Program, ProgramStep, Space, in_order};

impl Program {
    /// The same program for memory that peers can read: sends of `bytes_min` bytes and more expose
    /// their bytes instead of having them copied, and a *completion* follows each, which ends when
    /// the receivers have read them. Whatever overwrites the bytes waits for that; and so does the
    /// end. What the program overwrites itself is exposed only if `overwritten_too`.
    ///
    /// A send exposes its bytes only if nothing of its own round overwrites them: two ranks that
    /// exchange what they hold would wait for each other. What overwrites them in a later round
    /// waits for receives of an earlier one, as all waiting in [`in_order`] does.
    #[must_use]
    pub fn exposing(mut self, bytes_min: usize, overwritten_too: bool) -> Self {
        let count = self.steps.len();
        let is_exposed: Vec<_> = (0..count)
            .map(|step| self.can_expose(step, bytes_min, overwritten_too))
            .collect();
        // By step, its completion.
        let completion_of: Vec<_> = is_exposed
            .iter()
            .enumerate()
            .map(|(step, is_exposed)| is_exposed.then(|| self.expose(step)))
            .collect();
        for step in &mut self.steps[..count] {
            for dependency in &mut step.dependencies {
                if let Some(completion) = completion_of[dependency.step] {
                    dependency.step = completion;
                }
            }
        }
        self.order = with_completions(&self.steps, count);
        self
    }

    fn can_expose(&self, send: usize, bytes_min: usize, overwritten_too: bool) -> bool {
        let step = &self.steps[send];
        let is_callers = step.pieces.iter().all(|one| one.space != Space::Scratch);
        let is_send = matches!(step.action, Action::Send { .. });
        if !is_send || !is_callers || step.bytes < bytes_min {
            return false;
        }
        let mut later = self.steps[send..].iter();
        !later.any(|later| {
            let overwrites = later.dependencies.iter().any(|one| one.step == send);
            overwrites && (later.round == step.round || !overwritten_too)
        })
    }

    /// Makes step `send` expose its bytes; returns its completion, at the end of the steps.
    fn expose(&mut self, send: usize) -> usize {
        let completion = self.steps.len();
        let first_reader = self.readers;
        let step = &mut self.steps[send];
        let Action::Send { to, exposed } = &mut step.action else {
            return completion;
        };
        *exposed = Some(first_reader);
        self.readers += to.len();
        let completion_step = ProgramStep {
            action: Action::Complete {
                to: to.clone(),
                first_reader,
            },
            pieces: step.pieces.clone(),
            own: Vec::new(),
            dependencies: vec![Dependency {
                at: 0,
                bytes: step.bytes,
                step: send,
                from: 0,
            }],
            ..*step
        };
        self.steps.push(completion_step);
        self.completions.push(completion);
        completion
    }
}

/// The first `count` steps in order, each completion before the first step that waits for it, or
/// at the end.
fn with_completions(steps: &[ProgramStep], count: usize) -> Vec<usize> {
    let mut order = Vec::with_capacity(steps.len());
    let mut is_placed = vec![false; steps.len()];
    for step in in_order(&steps[..count]) {
        for dependency in &steps[step].dependencies {
            let one = dependency.step;
            if one >= count && !std::mem::replace(&mut is_placed[one], true) {
                order.push(one);
            }
        }
        order.push(step);
    }
    order.extend((count..steps.len()).filter(|completion| !is_placed[*completion]));
    order
}
