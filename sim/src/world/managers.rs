//! The chassis managers' surroundings: clocks, disks, and what was heard of them.

use core::time::Duration;

use ballast_chassis_core as chassis;
use ballast_types::wire::{Alert, Level};

use super::faults::ManagerFault;
use super::tape::{ChassisTape, Tape};

#[derive(Debug)]
pub(crate) struct Manager {
    pub(crate) instance: u32,
    pub(crate) ahead: Duration,
    pub(crate) ledger: chassis::Ledger,
    /// The ledger that it found at its newest start.
    pub(crate) found: chassis::Ledger,
    /// The first ledger that was written: an old backup.
    pub(crate) first_ledger: Option<chassis::Ledger>,
    pub(crate) level: Vec<Level>,
    pub(crate) polls: u64,
    /// What each server was sent first since the manager is wrong.
    pub(crate) repeated: Vec<Option<Alert>>,
    pub(crate) tape: Option<ChassisTape>,
}

/// The chassis manager, and a second one.
pub(crate) const MANAGERS: usize = 2;

impl Manager {
    pub(crate) fn new(ahead: Duration, servers: usize, record: bool) -> Self {
        Self {
            instance: 0,
            ahead,
            ledger: chassis::Ledger::default(),
            found: chassis::Ledger::default(),
            first_ledger: None,
            level: vec![Level::Watch; servers],
            polls: 0,
            repeated: vec![None; servers],
            tape: record.then(Tape::default),
        }
    }

    /// What goes to `server` instead of `alert` from a manager that is `wrong`.
    pub(crate) fn falsified(&mut self, server: usize, alert: Alert, wrong: Option<ManagerFault>) -> Alert {
        let repeated = &mut self.repeated[server];
        match wrong {
            None => {
                *repeated = None;
                alert
            }
            Some(ManagerFault::Repeats) => {
                let first = repeated.get_or_insert_with(|| alert.clone()).clone();
                let Alert { seq, echo_boot_id, echo_agent_ms, .. } = alert;
                Alert { seq, echo_boot_id, echo_agent_ms, ..first }
            }
            Some(ManagerFault::GrantsAll) => {
                Alert { level: Level::Watch, cap_w: None, height_ppm: None, own_limit: None, ..alert }
            }
        }
    }
}
