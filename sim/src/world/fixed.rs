//! One cap for every server instead of a chassis manager: what the agents are told, again and again.

use ballast_types::wire::{Alert, Level, Report};
use ballast_types::{ChassisId, Epoch, Seq, Watts};

/// Longer than any two messages are apart, so that the lease never ends.
const VALID_FOR_MS: u64 = 2000;

#[derive(Debug)]
pub(crate) struct FixedCap {
    chassis_id: ChassisId,
    watts: Watts,
    seq: u64,
    heard: Vec<Option<Report>>,
}

impl FixedCap {
    pub(crate) fn new(chassis_id: ChassisId, watts: Watts, servers: usize) -> Self {
        Self { chassis_id, watts, seq: 0, heard: vec![None; servers] }
    }

    pub(crate) fn heard(&mut self, server: usize, report: Report) {
        if let Some(heard) = self.heard.get_mut(server) {
            *heard = Some(report);
        }
    }

    pub(crate) fn round(&mut self) -> Vec<(usize, Alert)> {
        self.seq += 1;
        let alert = |(server, heard): (usize, &Option<Report>)| {
            let alert = Alert {
                level: Level::Cap,
                echo_boot_id: heard.as_ref().map(|report| report.boot_id.clone()),
                echo_agent_ms: heard.as_ref().map(|report| report.agent_ms),
                chassis_limit_w: self.heard.iter().map(|_| self.watts).sum(),
                cap_w: Some(self.watts),
                fallback_w: self.watts,
                valid_for_ms: VALID_FOR_MS,
                ..Alert::watch(self.chassis_id.clone(), Epoch(1), Seq(self.seq))
            };
            (server, alert)
        };
        self.heard.iter().enumerate().map(alert).collect()
    }
}
