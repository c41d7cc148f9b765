//! What a policy would have admitted of deployments that were recorded.

use std::collections::BTreeMap;

use ballast_placement::admission::demand::Threshold;
use ballast_placement::admission::events::{EventError, Histories};
use ballast_placement::admission::{Deployments, Priors};
use serde::Serialize;

const NAMED: usize = 20;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ReplayTally {
    pub deployments: u64,
    pub admitted: u64,
    pub refused: u64,
    /// Of deployments that were admitted.
    pub scale_outs: u64,
    /// Those for which there was no room.
    pub failed_scale_outs: u64,
    /// The mean share of cores that were active.
    pub utilisation: f64,
    pub peak_cores: f64,
    /// From the first event to the last.
    pub hours: f64,
    pub first_refused: Vec<Refusal>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Refusal {
    pub deployment: String,
    pub at_h: f64,
    pub cores: f64,
    /// Whether its cores had no room now, whatever is expected.
    pub full: bool,
}

/// One deployment of the record: its cores there, and those of them that it has here.
#[derive(Clone, Copy, Debug)]
struct Recorded {
    cores: f64,
    held: f64,
    admitted: bool,
}

/// A cluster from empty, and a policy.
#[derive(Clone, Debug)]
pub struct Replay {
    threshold: Threshold,
    capacity: f64,
    deployments: Deployments,
    recorded: BTreeMap<String, Recorded>,
    /// Says which events cannot be.
    checked: Histories,
    core_hours: f64,
    tally: ReplayTally,
}

impl Replay {
    /// Of a cluster of so many cores.
    pub fn new(priors: Priors, threshold: Threshold, capacity: f64) -> Self {
        let (recorded, checked, tally) = (BTreeMap::new(), Histories::default(), ReplayTally::default());
        Self {
            threshold,
            capacity,
            deployments: Deployments::new(priors),
            recorded,
            checked,
            core_hours: 0.0,
            tally,
        }
    }

    /// One event: more cores of a deployment, or fewer. Cores whose scale-out failed end before the others.
    ///
    /// # Errors
    /// For an event that cannot be. It is not taken.
    pub fn add(&mut self, name: &str, label: &str, at_h: f64, cores: f64) -> Result<(), EventError> {
        let before_h = self.checked.last_h();
        self.checked.add(name, label, at_h, cores)?;
        if at_h > self.checked.first_h() {
            self.core_hours += self.deployments.cores() * (at_h - before_h);
        }

        if cores < 0.0 {
            self.end(name, at_h, -cores);
        } else if let Some(mut it) = self.recorded.get(name).copied() {
            it.cores += cores;
            if it.admitted && self.scale_out(name, label, at_h, cores) {
                it.held += cores;
            }
            self.recorded.insert(name.to_owned(), it);
        } else {
            self.arrive(name, label, at_h, cores);
        }
        self.tally.peak_cores = self.tally.peak_cores.max(self.deployments.cores());
        Ok(())
    }

    fn arrive(&mut self, name: &str, label: &str, at_h: f64, cores: f64) {
        let label = Some(label).filter(|it| !it.is_empty());
        let full = self.deployments.cores() + cores > self.capacity;
        let decision = self.deployments.decide(at_h, self.threshold, &[(label, cores)]);
        let admitted = !full
            && decision.is_ok_and(|it| it.is_some_and(|it| it.admit))
            && self.deployments.grow(at_h, name, label, cores).is_ok();

        self.tally.deployments += 1;
        self.tally.admitted += u64::from(admitted);
        self.tally.refused += u64::from(!admitted);
        if !admitted && self.tally.first_refused.len() < NAMED {
            self.tally.first_refused.push(Refusal { deployment: name.to_owned(), at_h, cores, full });
        }
        let held = if admitted { cores } else { 0.0 };
        self.recorded.insert(name.to_owned(), Recorded { cores, held, admitted });
    }

    /// Whether there is room.
    fn scale_out(&mut self, name: &str, label: &str, at_h: f64, cores: f64) -> bool {
        self.tally.scale_outs += 1;
        let label = Some(label).filter(|it| !it.is_empty());
        if self.deployments.cores() + cores <= self.capacity {
            return self.deployments.grow(at_h, name, label, cores).is_ok();
        }
        self.tally.failed_scale_outs += 1;
        // One that has lost all cores that it had here asks as nobody.
        let _ = self.deployments.grow_failed(at_h, name, cores);
        false
    }

    fn end(&mut self, name: &str, at_h: f64, ended: f64) {
        let Some(it) = self.recorded.get_mut(name) else { return };
        it.cores -= ended;
        let gone = it.held - it.held.min(it.cores.max(0.0));
        it.held -= gone;
        if it.cores < 1e-6 {
            self.recorded.remove(name);
        }
        if gone > 0.0 {
            // What it has here has been counted: it can end.
            let _ = self.deployments.shrink(at_h, name, gone);
        }
    }

    pub fn tally(mut self) -> ReplayTally {
        let hours = self.checked.last_h() - self.checked.first_h();
        self.tally.hours = hours;
        self.tally.utilisation = if hours > 0.0 { self.core_hours / (self.capacity * hours) } else { 0.0 };
        self.tally
    }
}
