//! What a daemon has seen of deployments, from the same records that go to disk.
//!
//! A VM without a deployment is one of its own. All VMs of one request are one scale-out. What others have put there (`PUT
//! /v1/vms`) counts as if it had been asked for; a VM that is resized is neither a scale-out nor an end. Time that goes back
//! stands still.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::StatusCode;
use ballast_placement::Totals;
use ballast_placement::admission::demand::DemandError;
use ballast_placement::admission::{Belief, Deployments, Member, Moments, Observed, Priors};
use ballast_placement::inventory::{NamedVm, Placed, VmSpec, VmView};
use ballast_runtime::http::Refused;
use ballast_types::Instant;

use super::record::{Commitment, DeploymentRecord, Newcomer, key};
use crate::config::AdmissionConfig;
use crate::store::Record;

/// Room that was admitted and that no VM takes is free again after so many hours.
const COMMITTED_H: f64 = 24.0;

/// A clock that is so far behind is an alarm.
const BEHIND_H: f64 = 1.0;

#[derive(Debug)]
pub(crate) struct AdmissionBook {
    pub(super) config: AdmissionConfig,
    /// By their [`key`]; what is committed is among their cores.
    pub(super) deployments: Deployments,
    /// What every VM belongs to, and its cores.
    vms: BTreeMap<String, (String, f64)>,
    commitments: BTreeMap<String, Commitment>,
    /// Those whose record on disk is no longer true.
    changed: BTreeSet<String>,
    /// The latest time so far, in hours since 1970.
    pub(super) now_h: f64,
    /// Why the file of priors is not in force as it is now, if it is not.
    problem: Option<String>,
}

/// What a record says of one deployment.
#[derive(Default)]
struct Change {
    label: Option<String>,
    came: f64,
    came_memory_kb: u64,
    ended: f64,
    resized: f64,
}

pub(super) fn hours(at: Instant) -> f64 {
    at.as_millis() as f64 / 3.6e6
}

fn cores(spec: &VmSpec) -> f64 {
    spec.resources.cores.cores()
}

impl AdmissionBook {
    /// As it was written down, for the VMs that are there now. Deployments of which nothing was written count as having
    /// come with their first VM, and scaled out with each that came later; what ended before is not known.
    pub(crate) fn new<'a>(
        config: &AdmissionConfig,
        now: Instant,
        records: Vec<DeploymentRecord>,
        vms: impl Iterator<Item = VmView<'a>>,
    ) -> Self {
        // A clock that is behind what was written down stands still until it has caught up, as in service.
        let now_h = records.iter().map(|it| it.until_h).fold(hours(now), f64::max);
        // Without priors nothing is expected of deployments: they are only counted, and any law does.
        let priors = config.priors.as_ref().and_then(|file| file.priors.clone());
        let priors = priors.unwrap_or_else(|| Priors::new(Belief::SUB_B));
        let mut book = Self {
            config: config.clone(),
            deployments: Deployments::new(priors),
            vms: BTreeMap::new(),
            commitments: BTreeMap::new(),
            changed: BTreeSet::new(),
            now_h,
            problem: None,
        };

        let mut requests: BTreeMap<(u64, String), (Option<String>, f64)> = BTreeMap::new();
        for vm in vms {
            let (key, cores) = (key(vm.spec.deployment.as_deref(), vm.name), cores(&vm.spec));
            let since_h = hours(vm.since).min(now_h);
            let (_, all) = requests.entry((since_h.to_bits(), key.clone())).or_insert((vm.spec.tenant, 0.0));
            *all += cores;
            book.vms.insert(vm.name.to_owned(), (key, cores));
        }
        for ((since, key), (label, cores)) in requests {
            let told = book.deployments.grow(f64::from_bits(since), &key, label.as_deref(), cores);
            note_error(&key, told);
            book.changed.insert(key);
        }
        records.into_iter().for_each(|record| book.take(record));
        book
    }

    /// What was written down replaces what the VMs alone say.
    fn take(&mut self, record: DeploymentRecord) {
        let DeploymentRecord { key, label, begun_h, until_h, cores: before, observed, commitment } = record;
        let now_h = self.now_h;
        let committed = commitment.filter(|it| it.until_h > now_h && it.cores > 0.0);
        let placed = self.deployments.cores_of(&key).unwrap_or(0.0);
        let cores = placed + committed.map_or(0.0, |it| it.cores);
        if cores <= 0.0 {
            self.changed.insert(key);
            return;
        }

        // Nobody has watched since then: the cores ran on.
        let core_hours = observed.core_hours + before * (now_h - until_h);
        let observed = Observed { core_hours, ..observed };
        let member = Member { label, begun_h, cores, observed };
        note_error(&key, self.deployments.restore(now_h, &key, member));
        if (cores - before).abs() < 1e-6 {
            self.changed.remove(&key);
        } else {
            self.changed.insert(key.clone());
        }
        self.commitments.extend(committed.map(|it| (key, it)));
    }

    /// The time of a call: the latest so far where the clock went back. Commitments whose time is over end.
    pub(super) fn tick(&mut self, now: Instant) -> f64 {
        self.now_h = self.now_h.max(hours(now));
        let now_h = self.now_h;
        let over = self.commitments.iter().filter(|(_, it)| it.until_h <= now_h);
        let over: Vec<String> = over.map(|(key, _)| key.clone()).collect();
        for key in over {
            self.withdraw(&key);
        }
        now_h
    }

    /// VMs take room that was committed to their deployment: how many cores of it.
    fn take_committed(&mut self, key: &str, cores: f64, memory_kb: u64) -> f64 {
        let Some(it) = self.commitments.get_mut(key) else { return 0.0 };
        let taken = it.cores.min(cores);
        it.cores -= taken;
        it.memory_kb = it.memory_kb.saturating_sub(memory_kb);
        if it.cores < 1e-6 {
            self.commitments.remove(key);
        }
        taken
    }

    /// Takes note of a change, if there was one, and says what is to be written down with it.
    pub(crate) fn note(&mut self, now: Instant, record: Option<&Record>) -> Option<Record> {
        let now_h = self.tick(now);
        let mut changes: BTreeMap<String, Change> = BTreeMap::new();
        if let Some(record) = record {
            record.vms.iter().for_each(|placed| self.came(placed, &mut changes));
            for (placed, _) in &record.ended {
                if let Some((key, cores)) = self.vms.remove(&placed.vm.name) {
                    changes.entry(key).or_default().ended += cores;
                }
            }
        }
        for (key, change) in changes {
            let told = self.apply(now_h, &key, &change);
            note_error(&key, told);
            self.changed.insert(key);
        }
        note_error("all", self.deployments.refresh(now_h));

        let mut changes = Record::default();
        for key in core::mem::take(&mut self.changed) {
            match self.record(&key) {
                Some(record) => changes.deployments.push(record),
                None => changes.gone_deployments.push(key),
            }
        }
        (changes != Record::default()).then_some(changes)
    }

    fn came(&mut self, placed: &Placed, changes: &mut BTreeMap<String, Change>) {
        let NamedVm { name, spec } = &placed.vm;
        let (key, cores) = (key(spec.deployment.as_deref(), name), cores(spec));
        let before = self.vms.insert(name.clone(), (key.clone(), cores));
        let change = changes.entry(key.clone()).or_default();
        if change.label.is_none() {
            change.label.clone_from(&spec.tenant);
        }
        match before {
            Some((own, before)) if own == key => change.resized += cores - before,
            other => {
                change.came += cores;
                change.came_memory_kb += spec.resources.memory.kb();
                if let Some((other, before)) = other {
                    changes.entry(other).or_default().ended += before;
                }
            }
        }
    }

    fn apply(&mut self, now_h: f64, key: &str, change: &Change) -> Result<(), DemandError> {
        // What was committed has been counted when it was admitted.
        let further = change.came - self.take_committed(key, change.came, change.came_memory_kb);
        if change.label.is_some()
            && let Some(member) = self.deployments.member(now_h, key).filter(|it| it.label.is_none())
        {
            // It was committed without one.
            self.deployments.restore(now_h, key, Member { label: change.label.clone(), ..member })?;
        }
        if further > 1e-6 {
            self.deployments.grow(now_h, key, change.label.as_deref(), further)?;
        }
        if change.ended > 0.0 {
            self.deployments.shrink(now_h, key, change.ended)?;
        }
        if change.resized != 0.0 {
            let cores = self.deployments.cores_of(key).unwrap_or(0.0) + change.resized;
            self.deployments.resize(now_h, key, cores)?;
        }
        Ok(())
    }

    /// Once it is admitted: its room is kept until VMs take it, or its time is over.
    pub(super) fn commit(&mut self, newcomer: &Newcomer) -> Result<(), Refused> {
        let (key, cores, memory_kb) = (&newcomer.key, newcomer.cores(), newcomer.memory_kb());
        let told = self.deployments.grow(self.now_h, key, newcomer.label.as_deref(), cores);
        told.map_err(|error| Refused(StatusCode::BAD_REQUEST, error.to_string()))?;
        let commitment = Commitment {
            admitted_cores: cores,
            cores,
            admitted_memory_kb: memory_kb,
            memory_kb,
            until_h: self.now_h + COMMITTED_H,
        };
        self.commitments.insert(key.clone(), commitment);
        self.changed.insert(key.clone());
        Ok(())
    }

    /// What was admitted and not taken is not needed: whether there was a commitment.
    pub(super) fn withdraw(&mut self, key: &str) -> bool {
        let Some(it) = self.commitments.remove(key) else { return false };
        self.changed.insert(key.to_owned());
        let left = self.deployments.cores_of(key).unwrap_or(0.0) - it.cores;
        note_error(key, self.deployments.resize(self.now_h, key, left));
        true
    }

    /// What is committed to a deployment, and its label.
    pub(super) fn committed(&self, key: &str) -> Option<(Commitment, Option<String>)> {
        let label = self.deployments.member(self.now_h, key)?.label;
        Some((*self.commitments.get(key)?, label))
    }

    /// The cores that are admitted and that no VM has taken yet.
    pub(crate) fn committed_cores(&self) -> f64 {
        self.commitments.values().fold(0.0, |sum, it| sum + it.cores)
    }

    /// The same with their memory.
    pub(super) fn committed_room(&self) -> Totals {
        let milli_cores = (1e3 * self.committed_cores()).ceil() as u64;
        let memory_kb = self.commitments.values().map(|it| it.memory_kb).sum();
        Totals { milli_cores, memory_kb, ..Totals::default() }
    }

    /// Whether so many cores are more than what is kept for it.
    pub(super) fn goes_beyond(&self, key: &str, cores: f64) -> bool {
        cores > self.commitments.get(key).map_or(0.0, |it| it.cores) + 1e-6
    }

    fn record(&self, key: &str) -> Option<DeploymentRecord> {
        let Member { label, begun_h, cores, observed } = self.deployments.member(self.now_h, key)?;
        let commitment = self.commitments.get(key).copied();
        let (key, until_h) = (key.to_owned(), self.now_h);
        Some(DeploymentRecord { key, label, begun_h, until_h, cores, observed, commitment })
    }

    /// All that is to be written down.
    pub(crate) fn records(&self) -> Vec<DeploymentRecord> {
        self.deployments.names().filter_map(|key| self.record(key)).collect()
    }

    /// What is expected so many hours ahead each; `None` without priors.
    pub(super) fn forecast(&mut self, now: Instant, hours: &[f64]) -> Option<Vec<Moments>> {
        let now_h = self.tick(now);
        self.config.priors.is_some().then(|| self.deployments.forecast(now_h, hours))
    }

    /// Reads the file of priors anew. One that cannot be used changes nothing: why is told, and stays an alarm.
    pub(crate) fn reload(&mut self, now: Instant) -> Result<(), String> {
        let now_h = self.tick(now);
        let Some(file) = &mut self.config.priors else { return Ok(()) };
        let read = file.load().and_then(|()| {
            let priors = file.priors.clone().unwrap_or_else(|| self.deployments.priors().clone());
            self.deployments.set_priors(now_h, priors).map_err(|error| error.to_string())
        });
        self.problem = read.clone().err();
        read
    }

    /// How far the clock is behind what was seen, where that is more than an hour.
    pub(crate) fn behind_h(&self, now: Instant) -> Option<f64> {
        Some(self.now_h - hours(now)).filter(|it| *it > BEHIND_H)
    }

    pub(crate) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }
}

/// What cannot be after what the inventory has checked is told, and breaks nothing.
fn note_error(key: &str, told: Result<(), DemandError>) {
    if let Err(error) = told {
        tracing::error!(deployment = key, "admission: {error}; this is an error of the program");
    }
}
