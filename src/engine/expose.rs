//! Adapts programs to memory that the other ranks on the host can read in place.

use super::program::{Action, Dependency, Program, ProgramStep, Space, in_order};

impl Program {
    /// Returns a version of the program for buffers that peers can read in place. Sends of at least
    /// `bytes_min` bytes expose their bytes instead of having them copied. Each of these sends is
    /// followed by a *completion*, which waits until the receivers have read the bytes. Steps that
    /// overwrite the bytes wait for the completion, and so does the end of the program. Bytes that
    /// the program itself overwrites are exposed only if `overwritten_too` is `true`.
    ///
    /// A send exposes its bytes only if no step of its own round overwrites them. Otherwise, two
    /// ranks that exchange bytes would wait for each other. A step that overwrites the bytes in a
    /// later round waits for receives of an earlier round, as all waits in [`in_order`] do.
    #[must_use]
    pub fn exposing(mut self, bytes_min: usize, overwritten_too: bool) -> Self {
        let count = self.steps.len();
        let is_exposed: Vec<_> = (0..count)
            .map(|step| self.can_expose(step, bytes_min, overwritten_too))
            .collect();
        // Completion of each step, indexed by step.
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

    /// Makes step `send` expose its bytes. Appends the step's completion and returns its index.
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

/// Returns the first `count` steps in order, and inserts each completion before the first step that
/// waits for it, or at the end if no step does.
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
