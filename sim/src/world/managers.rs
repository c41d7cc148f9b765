//! The chassis managers' surroundings: clocks, disks, and what was heard of them.

use core::time::Duration;

use ballast_chassis_core as chassis;
use ballast_types::wire::Level;

use super::tape::{ChassisTape, Tape};

/// A chassis manager's surroundings.
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
            tape: record.then(Tape::default),
        }
    }
}
