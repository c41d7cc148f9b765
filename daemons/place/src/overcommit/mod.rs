//! What the agents tell of their VMs' CPU use, and which hosts keep the promise of `[overcommit]`.
//!
//! ```text
//!   agents ──GET /v1/usage──▶ overcommit (thread) ──measured──▶ inventory: the constraint cpu-promise
//!                                  │ closed hosts ──▶ overcommit.json
//!                                  │ what was said of hosts, and what came of it ──▶ calibration.json
//! ```
//!
//! What is missing, too old or impossible counts as not measured: those VMs count with all their cores. A host that was closed
//! stays closed until it was measured to keep the promise, whoever is started anew meanwhile.

mod judgement;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use ballast_hw::durable;
use ballast_placement::fits::calibration::{Calibration, Overflow};
use ballast_placement::{CpuUse, Measured};
use ballast_runtime::state::DiskFaults;
use ballast_runtime::threads::supervise;
use ballast_runtime::tls::Tls;
use ballast_runtime::{clock, lock};
use ballast_types::Instant;
use ballast_types::wire::{Alarm, AlarmId, OvercommitStatus, OverflowHour, Usage, VmCpuUse};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Builder;

use crate::agents::{Agents, Link, ask_each};
use crate::config::{Estimator, OvercommitConfig};
use crate::inventory::DurableInventory;
use judgement::Judgement;

/// Every agent is asked once in so long.
const ROUND: Duration = Duration::from_secs(300);
/// A round looks for agents that have come so often.
const LOOK: Duration = Duration::from_secs(5);
/// What an agent has told holds for so long.
const VALID: Duration = Duration::from_secs(1800);
/// A VM is measured when so many seconds of it were.
const MEASURED_MIN_S: u64 = 72_000;
/// And when its newest record is no older: records are added up once an hour.
const RECORD_AGE_MAX_S: u64 = 2 * 3600;
/// No VM has more seconds on record: seven days and today.
const SECONDS_MAX: u64 = 8 * 86_400;
/// Which hosts are closed, in the state folder.
const FILE: &str = "overcommit.json";
/// What was said of hosts and measured there, for the estimator `auto`.
const CALIBRATION: &str = "calibration.json";
/// No more is allowed, however far the estimator is off: a host with VMs that were not measured stays refused.
const ALLOWED_MAX: f64 = 0.5;
const HOUR_S: u64 = 3600;
/// What was said of a host in an hour counts when it was said so often.
const SAID_MIN: u32 = 6;

/// What is promised, and what was measured.
pub(crate) struct Overcommit {
    config: OvercommitConfig,
    state_dir: PathBuf,
    faults: DiskFaults,
    hosts: Mutex<BTreeMap<String, HostState>>,
    calibration: Mutex<Calibration>,
}

#[derive(Default)]
struct HostState {
    judgement: Judgement,
    asked: Option<Instant>,
    /// When its agent last told something that can be.
    heard: Option<Instant>,
    /// Why it did not the last time, if it did not.
    failing: Option<String>,
    measured_vms: u64,
    /// The risk that was said of it by hours since 1970, the least of each hour, and how often it was.
    said: BTreeMap<u64, (f64, u32)>,
}

impl HostState {
    /// What was said of it now. Of hours before the last one nobody asks any more.
    fn say(&mut self, hour: u64, risk: f64) {
        self.said.retain(|said, _| (hour.saturating_sub(1)..=hour).contains(said));
        let (least, times) = self.said.entry(hour).or_insert((risk, 0));
        (*least, *times) = (least.min(risk), *times + 1);
    }

    fn is_measured(&self) -> bool {
        self.heard.is_some_and(|heard| clock::since(heard) <= VALID)
    }
}

impl Overcommit {
    /// With the hosts that a previous instance has closed. Fails where they cannot be read: to open them would break the
    /// promise.
    pub(crate) fn open(
        config: OvercommitConfig,
        state_dir: &Path,
        faults: DiskFaults,
    ) -> anyhow::Result<Arc<Self>> {
        let judgements: BTreeMap<String, Judgement> = read(state_dir, FILE, "open every host")?;
        let calibration = read(state_dir, CALIBRATION, "take the estimator at its word")?;
        let state = |judgement| HostState { judgement, ..HostState::default() };
        let hosts = judgements.into_iter().map(|(host, it)| (host, state(it))).collect();
        Ok(Arc::new(Self {
            config,
            state_dir: state_dir.to_owned(),
            faults,
            hosts: Mutex::new(hosts),
            calibration: Mutex::new(calibration),
        }))
    }

    /// Begins to ask agents, on a thread of its own for as long as the process runs. Hosts that were closed are so at once.
    pub(crate) fn start(
        self: &Arc<Self>,
        agents: Arc<Agents>,
        inventory: Arc<DurableInventory>,
        tls: Option<Arc<Tls>>,
    ) -> anyhow::Result<()> {
        self.tell_closed(&inventory);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let this = Arc::clone(self);
        supervise("overcommit", runtime, move |runtime| {
            runtime.block_on(async {
                loop {
                    this.round(&agents, &inventory, tls.as_ref()).await;
                    tokio::time::sleep(LOOK).await;
                }
            });
        })?;
        Ok(())
    }

    fn tell_closed(&self, inventory: &DurableInventory) {
        let closed = |(host, state): (&String, &HostState)| Some((host.clone(), state.judgement.closed?));
        let closed: Vec<_> = lock(&self.hosts).iter().filter_map(closed).collect();
        for (host, share) in closed {
            tell(inventory, &host, Measured { closed: Some(share), ..Measured::default() });
        }
    }

    /// Asks every agent whose turn it is, and forgets what is too old.
    async fn round(&self, agents: &Agents, inventory: &DurableInventory, tls: Option<&Arc<Tls>>) {
        let urls = agents.urls();
        if urls.is_empty() {
            // Nobody has told the hosts yet.
            return;
        }

        let due = self.due(&urls);
        if due.is_empty() {
            return;
        }
        let ask = |link: Link| async move { link.usage().await };
        ask_each(&due, tls, ask, |host, usage| {
            self.take(&host, usage, inventory, clock::unix_ms() / 1000);
        })
        .await;
        self.write();
    }

    /// Whose turn it is; hosts without an agent are nobody's concern any more.
    fn due(&self, urls: &[(String, String)]) -> Vec<(String, String)> {
        let mut hosts = lock(&self.hosts);
        hosts.retain(|host, _| urls.binary_search_by(|(known, _)| known.cmp(host)).is_ok());
        let is_due = |(host, _): &&(String, String)| {
            let state = hosts.entry(host.clone()).or_default();
            let is_due = state.asked.is_none_or(|asked| clock::since(asked) >= ROUND);
            if is_due {
                state.asked = Some(clock::now());
            }
            is_due
        };
        urls.iter().filter(is_due).cloned().collect()
    }

    /// What an agent has told, or why it has not.
    fn take(&self, host: &str, usage: Result<Usage, String>, inventory: &DurableInventory, now_unix_s: u64) {
        let mut hosts = lock(&self.hosts);
        let state = hosts.entry(host.to_owned()).or_default();
        self.choose(now_unix_s);
        let allowed = self.allowed();
        let told = match usage {
            Ok(usage) => {
                (state.heard, state.failing) = (Some(clock::now()), None);
                let hours = state.judgement.take(&usage.hours, now_unix_s, self.config.target());
                self.calibrate(state, &hours);
                measured(&usage)
            }
            Err(why) => {
                state.failing = Some(why);
                if state.is_measured() {
                    // What it told before still holds.
                    return;
                }
                BTreeMap::new()
            }
        };

        state.measured_vms = told.len() as u64;
        let closed = state.judgement.closed;
        drop(hosts);
        tell(inventory, host, Measured { vms: told, closed, allowed });

        // What is said of the host with what is known now.
        let risk = inventory.look().cpu_risk(ballast_runtime::unix_now(), host, None).ok().flatten();
        if let (Some(risk), Some(state)) = (risk, lock(&self.hosts).get_mut(host)) {
            state.say(now_unix_s / HOUR_S, risk);
        }
    }

    /// Chooses, once a day, which risk may be said of a host.
    fn choose(&self, now_unix_s: u64) {
        let mut calibration = lock(&self.calibration);
        let before = calibration.step();
        calibration.choose(now_unix_s / 86_400, self.config.target());
        if calibration.step() != before {
            let targets = calibration.allowed();
            tracing::info!(targets, "overcommit: by what was measured, auto allows hosts another risk");
        }
    }

    /// The risk that may be said of a host with a newcomer; `None` where the estimator is taken at its word.
    fn allowed(&self) -> Option<f64> {
        let of_auto = || (lock(&self.calibration).allowed() * self.config.target()).min(ALLOWED_MAX);
        (self.config.estimator == Estimator::Auto).then(of_auto)
    }

    /// What came of what was said of a host in these hours.
    fn calibrate(&self, state: &HostState, hours: &[OverflowHour]) {
        let mut calibration = lock(&self.calibration);
        for hour in hours {
            let said = state.said.get(&(hour.from_unix_s / HOUR_S));
            if let Some((risk, _)) = said.filter(|(_, times)| *times >= SAID_MIN) {
                let measured = Overflow { measured_s: hour.measured_s.into(), over_s: hour.over_s.into() };
                calibration.add(hour.from_unix_s / 86_400, risk / self.config.target(), measured);
            }
        }
    }

    /// Writes down what must outlive a restart, where it is another than before.
    fn write(&self) {
        let hosts = lock(&self.hosts);
        let judgements: BTreeMap<&String, &Judgement> =
            hosts.iter().map(|(host, state)| (host, &state.judgement)).collect();
        self.write_file(FILE, &judgements);
        self.write_file(CALIBRATION, &*lock(&self.calibration));
    }

    fn write_file(&self, file: &'static str, value: &impl Serialize) {
        let path = self.state_dir.join(file);
        let written =
            serde_json::to_vec(value).map_err(io::Error::from).and_then(|text| {
                match std::fs::read(&path).is_ok_and(|before| before == text) {
                    true => Ok(()),
                    false => durable::replace(&path, &text),
                }
            });
        self.faults.note(file, written.err().map(|error| error.to_string()));
    }

    pub(crate) fn status(&self, hosts: u64) -> OvercommitStatus {
        let states = lock(&self.hosts);
        let measured = states.values().filter(|state| state.is_measured());
        let (measured_hosts, measured_vms) =
            measured.fold((0, 0), |(hosts, vms), state| (hosts + 1, vms + state.measured_vms));
        OvercommitStatus {
            target: self.config.target(),
            estimator: "convolution".into(),
            allowed_risk: self.allowed().unwrap_or(self.config.target()),
            measured_hosts,
            measured_vms,
            unmeasured_hosts: hosts.saturating_sub(measured_hosts),
            closed_hosts: states.values().filter(|state| state.judgement.closed.is_some()).count() as u64,
        }
    }

    pub(crate) fn alarms(&self) -> Vec<Alarm> {
        let mut alarms = vec![];
        for (host, state) in lock(&self.hosts).iter() {
            if let Some(share) = state.judgement.closed {
                let percent = 100.0 * share;
                let message = format!(
                    "the VMs of host {host:?} demanded all its cores for {percent:.2} % of an hour, twice in \
                     a row: it takes nobody"
                );
                alarms.push(Alarm::about(AlarmId::HostOverflows, host, message));
            }
            if let Some(why) = state.failing.as_ref().filter(|_| !state.is_measured()) {
                let message = format!(
                    "the agent of host {host:?} does not tell what its VMs use, which count with all \
                     their cores: {why}"
                );
                alarms.push(Alarm::about(AlarmId::UsageUnheard, host, message));
            }
        }
        alarms
    }
}

/// What a previous instance has written down. A file that cannot be read ends the start: to begin without it would lift what
/// it says.
fn read<T: Default + DeserializeOwned>(state_dir: &Path, file: &str, to: &str) -> anyhow::Result<T> {
    let path = state_dir.join(file);
    match std::fs::read(&path) {
        Ok(bytes) => {
            serde_json::from_slice(&bytes).with_context(|| format!("{}: remove it to {to}", path.display()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

fn tell(inventory: &DurableInventory, host: &str, measured: Measured<String>) {
    // A host that is not in the inventory has no VMs, and is told again when it is.
    let _ = inventory.look().measure(ballast_runtime::unix_now(), host, measured);
}

/// The VMs of which enough is known, and lately.
fn measured(usage: &Usage) -> BTreeMap<String, Arc<CpuUse>> {
    let of_vm = |vm: &VmCpuUse| {
        let age = usage.now_unix_s.checked_add(600)?.checked_sub(vm.until_unix_s)?;
        let all = vm.seconds.iter().map(|(_, seconds)| seconds).chain([&vm.throttled_s]);
        let counted = all.clone().try_fold(0u64, |sum, seconds| sum.checked_add(*seconds))?;
        let known = counted - vm.throttled_s;
        if age > RECORD_AGE_MAX_S + 600 || known < MEASURED_MIN_S || counted > SECONDS_MAX {
            return None;
        }
        let cores = f64::from(vm.cores);
        let mut uses: Vec<(f64, u64)> =
            vm.seconds.iter().map(|(mc, seconds)| (f64::from(*mc) / 1000.0, *seconds)).collect();
        // Nobody knows how much more it would have used.
        uses.push((cores, vm.throttled_s));
        CpuUse::new(cores, &uses).map(Arc::new)
    };
    let vms = usage.vms.iter().filter_map(|(vm, it)| Some((vm.as_str().to_owned(), of_vm(it)?)));
    vms.collect()
}
