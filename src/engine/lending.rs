//! Programs for buffers that peers can read where they lie.

use super::program::{Action, Dependency, Program, ProgramStep, Space, in_order};

impl Program {
    /// The same program for a buffer in memory that peers can read: sends of `bytes_min` bytes and
    /// more lend their bytes instead of having them copied, and a *release* follows each, which
    /// ends when the readers are through. Whatever overwrites the bytes waits for that; and so
    /// does the end. What the program overwrites itself is lent only if `overwritten_too`.
    ///
    /// A send is lent only if nothing of its own round overwrites its bytes: two ranks that
    /// exchange what they hold would wait for each other. What overwrites them in a later round
    /// waits for receives of an earlier one, as all waiting in [`in_order`] does.
    #[must_use]
    pub fn lending(mut self, bytes_min: usize, overwritten_too: bool) -> Self {
        let count = self.steps.len();
        let is_lent: Vec<_> = (0..count)
            .map(|step| self.is_lendable(step, bytes_min, overwritten_too))
            .collect();
        // By step, its release.
        let release_of: Vec<_> = is_lent
            .iter()
            .enumerate()
            .map(|(step, is_lent)| is_lent.then(|| self.lend(step)))
            .collect();
        for step in &mut self.steps[..count] {
            for dependency in &mut step.dependencies {
                if let Some(release) = release_of[dependency.step] {
                    dependency.step = release;
                }
            }
        }
        self.order = with_releases(&self.steps, count);
        self
    }

    fn is_lendable(&self, send: usize, bytes_min: usize, overwritten_too: bool) -> bool {
        let step = &self.steps[send];
        let lies_in_buffer = step.pieces.iter().all(|one| one.space == Space::Buffer);
        let is_send = matches!(step.action, Action::Send { .. });
        if !is_send || !lies_in_buffer || step.bytes < bytes_min {
            return false;
        }
        let mut later = self.steps[send..].iter();
        !later.any(|later| {
            let overwrites = later.dependencies.iter().any(|one| one.step == send);
            overwrites && (later.round == step.round || !overwritten_too)
        })
    }

    /// Makes step `send` lend; returns its release, at the end of the steps.
    fn lend(&mut self, send: usize) -> usize {
        let release = self.steps.len();
        let step = &mut self.steps[send];
        step.is_lent = true;
        let (first_flow, to) = match &step.action {
            Action::Send { first_flow, to } => (*first_flow, to.clone()),
            _ => (0, Vec::new()),
        };
        let release_step = ProgramStep {
            action: Action::Release { first_flow, to },
            pieces: step.pieces.clone(),
            dependencies: vec![Dependency {
                at: 0,
                bytes: step.bytes,
                step: send,
                from: 0,
            }],
            is_lent: false,
            ..*step
        };
        self.steps.push(release_step);
        self.releases.push(release);
        release
    }
}

/// The first `count` steps in order, each release before the first step that waits for it, or at
/// the end.
fn with_releases(steps: &[ProgramStep], count: usize) -> Vec<usize> {
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
    order.extend((count..steps.len()).filter(|release| !is_placed[*release]));
    order
}
