//! The oracle's p-states, one reaction time late: the best that any controller can do that must read the draw first.

use std::collections::VecDeque;

use ballast_types::{CoreId, KiloHertz, VmClass, Watts};

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
        let cores = plant.spec().servers.iter().enumerate().flat_map(|(n, server)| {
            let batch = server.vms.iter().filter(|vm| vm.class == VmClass::NonUserFacing);
            batch.flat_map(move |vm| vm.cores.iter().map(move |core| (n, *core)))
        });
        let cores = cores.collect();
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
