//! Kills between two effects: a process does some of what it wants, and is gone before it does the next.

use core::time::Duration;

use ballast_types::Instant;

use super::faults::Fault;

/// A process that is killed once, and started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kill {
    pub victim: Victim,
    /// From here on its effects are counted.
    pub from: Instant,
    /// So many effects are still done; the process dies in place of the next.
    pub effects: u32,
    /// Whether what its actuators were about to write is lost with it.
    pub loses_writes: bool,
    pub down: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    Agent(usize),
    Manager,
}

impl Victim {
    pub(crate) fn absence(self) -> Fault {
        match self {
            Self::Agent(server) => Fault::AgentDown(server),
            Self::Manager => Fault::ChassisDown,
        }
    }
}

/// The kills that are due, and those that have happened.
#[derive(Debug, Default)]
pub(crate) struct Kills {
    /// With whether the process is dead: what it wants is done no more.
    due: Vec<(Kill, bool)>,
    pub(crate) done: u64,
}

impl Kills {
    pub(crate) fn add(&mut self, kill: Kill) {
        self.due.push((kill, false));
    }

    /// Whether a process does its next effect.
    pub(crate) fn lets(&mut self, victim: Victim) -> bool {
        let Some((kill, is_dead)) = self.due.iter_mut().find(|(kill, _)| kill.victim == victim) else {
            return true;
        };
        *is_dead |= kill.effects == 0;
        kill.effects = kill.effects.saturating_sub(1);
        !*is_dead
    }

    /// Whether a process has died, and is to be removed.
    pub(crate) fn has_killed(&self, victim: Victim) -> bool {
        self.due.iter().any(|(kill, is_dead)| *is_dead && kill.victim == victim)
    }

    /// The kill of a process that has died, once.
    pub(crate) fn take_dead(&mut self, victim: Victim) -> Option<Kill> {
        let index = self.due.iter().position(|(kill, is_dead)| *is_dead && kill.victim == victim)?;
        self.done += 1;
        Some(self.due.remove(index).0)
    }
}
