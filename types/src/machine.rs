//! The shape of every controller, and the one loop that drives it.
//!
//! ```text
//!   world ──Input──▶ Machine ──Output──▶ world
//!                      ▲  │
//!            timeout ──┘  └── poll_timeout: when, and why
//! ```
//! The daemon, the simulator and the replayer each implement [`Shell`]; [`turn`] is the same for all.

use serde::{Deserialize, Serialize};

use crate::Instant;

/// Why a machine wants to be woken, for logs and traces.
pub type Why = &'static str;

/// A controller without clock, file, thread or socket.
pub trait Machine {
    /// What it is told.
    type Input;
    /// What it wants done: desired state, idempotent.
    type Output;
    /// Takes one input. Never blocks, never panics on any input.
    fn handle_input(&mut self, now: Instant, input: Self::Input);
    /// Tells it that `now` has come; harmless when nothing is due.
    fn handle_timeout(&mut self, now: Instant);
    /// When it next wants to be woken, and why.
    fn poll_timeout(&self) -> Option<(Instant, Why)>;
    /// The next thing to be done; ask until `None`.
    fn poll_output(&mut self) -> Option<Self::Output>;
}

/// What moved a machine in one turn; with its instant and outputs it is a line of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause<I> {
    /// A timer fell due.
    Timeout,
    /// Something came in.
    Input(I),
}

/// The world around one machine.
pub trait Shell<M: Machine> {
    /// The current time; never goes back.
    fn now(&mut self) -> Instant;
    /// The next input, waited for until `deadline` at the latest.
    fn wait(&mut self, deadline: Option<Instant>) -> Turn<M::Input>;
    /// Told before the machine is moved; a recorder writes it down.
    fn moved(&mut self, now: Instant, cause: &Cause<M::Input>);
    /// Does one thing. An actuator's answer comes back later, as an input.
    fn perform(&mut self, now: Instant, output: M::Output);
}

/// What a wait ended with.
#[derive(Clone, Debug, PartialEq)]
pub enum Turn<I> {
    /// An input.
    Input(I),
    /// The deadline.
    Deadline,
    /// The end: nothing more will come.
    Stop,
}

/// Drives `machine` by one step; `false` once the shell has stopped.
///
/// A due timer fires before a waiting input.
pub fn turn<M: Machine, S: Shell<M>>(machine: &mut M, shell: &mut S) -> bool {
    let deadline = machine.poll_timeout().map(|(at, _)| at);
    let now = shell.now();
    let (now, cause) = if deadline.is_some_and(|at| at <= now) {
        (now, Cause::Timeout)
    } else {
        match shell.wait(deadline) {
            Turn::Input(input) => (shell.now(), Cause::Input(input)),
            Turn::Deadline => return true,
            Turn::Stop => return false,
        }
    };

    shell.moved(now, &cause);

    match cause {
        Cause::Timeout => machine.handle_timeout(now),
        Cause::Input(input) => machine.handle_input(now, input),
    }

    while let Some(output) = machine.poll_output() {
        shell.perform(now, output);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Wants to be woken at 10 ms; says what happened.
    struct Counter {
        due: Option<Instant>,
        out: VecDeque<&'static str>,
    }
    impl Machine for Counter {
        type Input = ();
        type Output = &'static str;
        fn handle_input(&mut self, _: Instant, (): ()) {
            self.out.push_back("input");
        }
        fn handle_timeout(&mut self, _: Instant) {
            self.due = None;
            self.out.push_back("timeout");
        }
        fn poll_timeout(&self) -> Option<(Instant, Why)> {
            self.due.map(|at| (at, "test"))
        }
        fn poll_output(&mut self) -> Option<&'static str> {
            self.out.pop_front()
        }
    }
    struct World {
        now: Instant,
        inputs: u32,
        done: Vec<&'static str>,
    }
    impl Shell<Counter> for World {
        fn now(&mut self) -> Instant {
            self.now
        }
        fn wait(&mut self, _: Option<Instant>) -> Turn<()> {
            if self.inputs == 0 {
                return Turn::Stop;
            }
            self.inputs -= 1;
            Turn::Input(())
        }
        fn moved(&mut self, _: Instant, _: &Cause<()>) {}
        fn perform(&mut self, _: Instant, output: &'static str) {
            self.done.push(output);
        }
    }

    #[test]
    fn a_due_timer_fires_before_a_waiting_input() {
        let mut machine = Counter { due: Some(Instant::from_millis(10)), out: VecDeque::new() };
        let mut world = World { now: Instant::from_millis(10), inputs: 1, done: vec![] };
        while turn(&mut machine, &mut world) {}
        assert_eq!(world.done, ["timeout", "input"]);
    }
}
