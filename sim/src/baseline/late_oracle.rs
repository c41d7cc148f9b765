//! The oracle's p-states, one reaction time late: the best that any controller can do that must read the draw first.

use std::collections::VecDeque;

use ballast_types::{CoreId, KiloHertz, Watts};

use super::batch_vms;
use super::central::POLL;
use crate::plant::{Plant, STEP};

#[derive(Clone, Debug)]
pub(crate) struct LateOracle {
    /// The same chassis under the oracle.
    foresight: Plant,
    /// Server and id of every batch core.
    cores: Vec<(usize, CoreId)>,
    /// What the oracle set in the last steps of 10 ms, the oldest first; in the order of `cores`.
    pending: VecDeque<Vec<KiloHertz>>,
    /// Steps of 10 ms in a refresh, a lag and a poll.
    delay: usize,
}

impl LateOracle {
    pub(super) fn new(limit: Watts, plant: &Plant) -> Self {
        let mut foresight = plant.clone();
        foresight.set_oracle(Some(limit));
        let cores =
            batch_vms(plant).flat_map(|(n, vm)| vm.cores.iter().map(move |core| (n, *core))).collect();
        let sensor = plant.spec().supply_meter;
        let delay = (sensor.refresh + sensor.lag + POLL).as_nanos() / STEP.as_nanos();
        Self { foresight, cores, pending: VecDeque::new(), delay: delay as usize }
    }

    /// Acts at the end of every step of the plant.
    pub(super) fn act(&mut self, plant: &mut Plant) {
        self.foresight.advance(plant.now());
        let chosen = self.cores.iter().map(|(server, core)| self.foresight.core_khz(*server, *core));
        self.pending.push_back(chosen.collect());
        if self.pending.len() <= self.delay {
            return;
        }
        let Some(late) = self.pending.pop_front() else { return };
        for ((server, core), khz) in self.cores.iter().zip(late) {
            plant.set_core_cap(*server, *core, khz);
        }
    }
}
