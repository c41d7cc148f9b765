//! What the handlers of the placement daemon's HTTP share.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ballast_placement::inventory::{HostView, PredictLifetimes};
use ballast_placement::{Inventory, InventoryError, LifetimeRule};
use ballast_types::PeerName;
use ballast_types::wire::{
    AdmissionStatus, Alarm, AlarmId, Event, EventKind, InventoryStatus, PlaceStatus, PredictStatus,
};

use super::agents::Agents;
use super::counters::{Counters, count, count_more};
use super::drains::answer;
use super::drains::book::Drains;
use super::fault::Fault;
use super::fleet_limits::FleetBook;
use super::host_list;
use super::inventory::DurableInventory;
use super::overcommit::Overcommit;
use super::predictor::{Loaded, Predictor};
use super::vm_request::{PredictedVm, VmRequest};
use crate::config::{DrainsConfig, HostFile};
use crate::kubernetes::Kube;
use crate::metrics::{Followed, PREFIX, Shown};
use ballast_runtime::alarms::{self, AlarmBook};
use ballast_runtime::config::ConfigError;
use ballast_runtime::events::Events;
use ballast_runtime::http::{AccessPolicy, Observable, Refused};
use ballast_runtime::metrics::{Common, Scrape};
use ballast_runtime::tls::Tls;
use ballast_runtime::{clock, lock};

/// The model's file is looked at once a second. A disk may be slow, but not this slow.
pub(super) const LOOKED_WITHIN: Duration = Duration::from_secs(60);

/// So many hosts are named in an alarm.
const HOSTS_SHOWN: usize = 5;

/// What the handlers share.
#[derive(Clone)]
pub(super) struct Api {
    pub(super) name: PeerName,
    /// Whether it is ready only with a model.
    pub(super) require_model: bool,
    pub(super) predictor: Arc<Predictor>,
    /// When the model's file was last looked at.
    pub(super) read_at: Arc<Mutex<ballast_types::Instant>>,
    pub(super) inventory: Arc<DurableInventory>,
    /// The file that says which hosts there are, if one does.
    pub(super) hosts: Option<Arc<Mutex<HostFile>>>,
    /// Why it is not in force as it is now, if it is not.
    pub(super) hosts_problem: Arc<Mutex<Option<String>>>,
    pub(super) drains: Arc<DrainsConfig>,
    pub(super) counters: Arc<Counters>,
    pub(super) agents: Arc<Agents>,
    /// What is promised of overcommitted hosts, if anything is.
    pub(super) overcommit: Option<Arc<Overcommit>>,
    /// How much VMs should get.
    pub(super) limits: Arc<FleetBook>,
    pub(super) events: Events,
    pub(super) alarms: AlarmBook,
    /// The scheduler extender, if there is one.
    pub(super) kube: Option<Arc<Kube>>,
    pub(super) tls: Option<Arc<Tls>>,
    pub(super) access: Arc<AccessPolicy>,
}

impl Api {
    /// The daemon as it is now.
    pub(super) fn look(&self) -> PlaceStatus {
        let Counters { requests, refused, conservative, .. } = &*self.counters;
        let mut alarms = self.predictor.alarms();
        let read_at = clock::since(*lock(&self.read_at));

        if read_at > LOOKED_WITHIN {
            let s = read_at.as_secs();
            let message = format!("the model's file has not been read for {s} s: its disk hangs");
            alarms.push(Alarm::new(AlarmId::ModelFileHangs, message));
        }

        alarms.extend(self.kube.iter().flat_map(|kube| kube.alarms()));
        alarms.extend(self.inventory.alarms());
        alarms.extend(self.agents.alarms());
        alarms.extend(self.overcommit.iter().flat_map(|overcommit| overcommit.alarms()));
        let inventory = self.inventory.look();
        alarms.extend(self.leaving(&inventory));
        alarms.extend(of_drains(&self.inventory.drains()));
        alarms.extend(without_lifetimes(&inventory));
        let admission = self.admission_status(&inventory, &mut alarms);
        self.alarms.complete(&mut alarms);
        let inventory = InventoryStatus {
            placed: count(&self.counters.placed),
            removed: count(&self.counters.removed),
            refused: self.counters.refusals.iter().map(count).sum(),
            ..host_list::status(&inventory)
        };

        let drains = self.inventory.drains();
        let drain = drains.under_way().map(|drain| answer::status(drain, ballast_runtime::unix_now()));

        PlaceStatus {
            drain,
            agents: self.agents.status(inventory.hosts),
            overcommit: self.overcommit.as_ref().map(|overcommit| overcommit.status(inventory.hosts)),
            inventory,
            role: "place".into(),
            name: self.name.clone(),
            now_ms: ballast_runtime::now().as_millis(),
            predict: PredictStatus {
                model: self.predictor.status(),
                loads: self.predictor.loads.load(Ordering::Relaxed),
                failed_loads: self.predictor.failed_loads.load(Ordering::Relaxed),
                requests: count(requests),
                refused_requests: count(refused),
                predictions: self.counters.predictions(),
                conservative: count(conservative),
            },
            admission,
            lifetime_history: self.inventory.history(),
            kubernetes: self.kube.as_ref().map(|kube| kube.status()),
            tls: self.tls.as_ref().map(|tls| tls.status()),
            alarms,
        }
    }
}

impl Api {
    /// A request that was read, or what is wrong with it, counted.
    pub(super) fn checked<T>(&self, read: Result<T, Refused>) -> Result<T, Refused> {
        read.map_err(|refused| self.refuse(refused.into()))
    }

    pub(super) fn refuse(&self, fault: Fault) -> Refused {
        self.counters.refusals.get(fault.reason).iter().for_each(|counter| count_more(counter, 1));
        fault.refused
    }

    /// A VM with its class and P95; what is predicted is counted.
    pub(super) fn predict(&self, model: Option<&Loaded>, request: &VmRequest) -> PredictedVm {
        let predicted = request.predicted(model);
        predicted.prediction.iter().for_each(|said| self.counters.predicted(model.is_some(), said));
        predicted
    }

    /// Gives every VM what the model in force says of its lifetime, where that is new.
    pub(super) fn follow_lifetimes(&self) {
        let Some(lifetimes) = self.predictor.new_lifetimes() else { return };
        let lifetimes = lifetimes.map(|lifetimes| lifetimes as Arc<dyn PredictLifetimes>);
        self.kube.iter().for_each(|kube| kube.set_lifetimes(lifetimes.clone()));
        self.inventory.look().set_lifetimes(ballast_runtime::unix_now(), lifetimes);
    }

    pub(super) fn tell(&self, kind: EventKind) {
        self.events.push(Event { at_ns: ballast_runtime::now(), kind });
    }

    /// What became of admission, if anybody asks for it; with the alarm of its priors.
    fn admission_status(&self, inventory: &Inventory, alarms: &mut Vec<Alarm>) -> Option<AdmissionStatus> {
        let book = self.inventory.admission()?;
        let problem = book.problem().map(|why| format!("the priors stay as they were: {why}"));
        alarms.extend(problem.map(|why| Alarm::new(AlarmId::PriorsRefused, why)));
        let behind = book.behind_h(ballast_runtime::unix_now());
        let behind = behind.map(|it| format!("the clock is {it:.1} h behind what was seen of deployments"));
        alarms.extend(behind.map(|why| Alarm::new(AlarmId::ClockBehind, why)));
        let [admitted, refused, would_refuse] = self.counters.admissions.each_ref().map(count);
        Some(AdmissionStatus { admitted, refused, would_refuse, ..book.status(inventory.cluster()) })
    }

    /// Reads the file of priors anew, if there is one.
    pub(super) fn reload_priors(&self) {
        let read = self.inventory.admission().map(|mut book| book.reload(ballast_runtime::unix_now()));
        if let Some(Err(message)) = read {
            self.tell(EventKind::Alarm { message });
        }
    }

    /// The name of the file that says which hosts there are, if one does.
    pub(super) fn host_file(&self) -> Option<String> {
        self.hosts.as_ref().map(|file| lock(file).path.display().to_string())
    }

    /// Makes the hosts what their file says.
    ///
    /// # Errors
    /// When it cannot: they stay as they are. A [`ConfigError`] where the file does not fit what is there.
    pub(super) async fn follow_hosts(&self) -> anyhow::Result<()> {
        let Some(file) = &self.hosts else { return Ok(()) };
        let told = lock(file).hosts.clone();
        let changed = self.inventory.change(|inventory| {
            let record = host_list::follow(inventory, &told)?;
            self.inventory.drains().keep_closed(host_list::closed(inventory, &told));
            Ok::<_, InventoryError>((record.is_some(), record))
        });
        match changed.await {
            Ok(Ok(_)) => {
                self.agents.follow(&told);
                Ok(())
            }
            Ok(Err(error)) => {
                let file = self.host_file().unwrap_or_default();
                Err(ConfigError::whole(&file, &error.to_string()).into())
            }
            Err(Refused(_, why)) => Err(anyhow::Error::msg(why)),
        }
    }

    /// Reads the file of hosts anew.
    pub(super) async fn reload_hosts(&self) {
        let Some(file) = &self.hosts else { return };
        let read = lock(file).load();
        let followed = match read {
            Ok(()) => self.follow_hosts().await.map_err(|error| error.to_string()),
            Err(why) => Err(why),
        };
        if let Err(why) = &followed {
            self.tell(EventKind::Alarm { message: why.clone() });
        }
        *lock(&self.hosts_problem) = followed.err();
    }

    /// Hosts that their file no longer has, and that still have VMs.
    fn leaving(&self, inventory: &Inventory) -> Vec<Alarm> {
        let Some(file) = &self.hosts else { return vec![] };
        let file = lock(file);
        let told: BTreeSet<&str> = file.hosts.iter().map(|told| told.host.name.as_str()).collect();
        let left = inventory.hosts().filter(|host| !told.contains(host.name));
        let path = file.path.display();
        let alarm = |host: HostView<'_>| {
            let (name, vms) = (host.name, host.vms);
            let message = format!("host {name:?} is no longer in {path}, and has {vms} VMs: it drains");
            Alarm::about(AlarmId::HostLeaving, name, message)
        };
        let problem = lock(&self.hosts_problem).clone();
        let problem =
            problem.map(|why| Alarm::new(AlarmId::HostsRefused, format!("hosts stay as they were: {why}")));
        left.map(alarm).chain(problem).collect()
    }
}

/// Drains that do not go on unless somebody acts.
fn of_drains(drains: &Drains) -> Vec<Alarm> {
    let waits = drains.waiting().map(|id| {
        let message = format!("drain {id} waits for approval: too few hosts are empty");
        Alarm::new(AlarmId::DrainWaits, message)
    });
    let stuck = drains.stuck().map(|(id, hosts)| {
        let shown = hosts[..hosts.len().min(HOSTS_SHOWN)].join(", ");
        let more = hosts.len().saturating_sub(HOSTS_SHOWN);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let message = format!(
            "drain {id} is under way, and no host has room for the next VM of {shown}{more}: they are \
             closed, and do not get empty"
        );
        Alarm::new(AlarmId::DrainStuck, message)
    });
    waits.into_iter().chain(stuck).collect()
}

/// Whether the policy asks for what nobody knows.
fn without_lifetimes(inventory: &Inventory) -> Option<Alarm> {
    let asks = inventory.policy().lifetimes != LifetimeRule::None && inventory.lifetimes().is_none();
    let message = "the policy goes by lifetimes, and there is no model that knows them: VMs of which nobody \
                   tells lifetime_s are placed by the other rules";
    asks.then(|| Alarm::new(AlarmId::LifetimesMissing, message))
}

impl Observable for Api {
    type Status = PlaceStatus;

    fn sick(&self) -> Option<String> {
        // Who hears this has been answered.
        None
    }
    fn unready(&self) -> Vec<String> {
        let without = self.require_model && self.predictor.now().is_none();
        let why = without.then(|| "there is no model: every answer is conservative".into());
        let unheard = self.kube.iter().filter_map(|kube| kube.unready());
        let expired = alarms::reasons(&self.look().alarms, &[AlarmId::CertificateExpired]);
        why.into_iter().chain(unheard).chain(expired).collect()
    }
    fn status(&self) -> Result<PlaceStatus, Refused> {
        Ok(self.look())
    }
    fn metrics(&self) -> Result<String, Refused> {
        let status = &self.look();
        let (tls, alarms) = (status.tls.as_ref(), status.alarms.as_slice());
        let common = Common { refusals: &self.access.bounds.refusals, events: &self.events, tls, alarms };
        let mut scrape = Scrape::new(PREFIX, &common);
        scrape.add(
            PREFIX,
            &crate::metrics::metrics(),
            &Shown { status, counters: &self.counters, agents: &self.agents },
        );
        if let Some((status, kube)) = status.kubernetes.as_ref().zip(self.kube.as_ref()) {
            scrape.add(PREFIX, &crate::metrics::kubernetes(), &Followed { status, counters: &kube.counters });
        }
        Ok(scrape.text())
    }
    fn events(&self) -> &Events {
        &self.events
    }
}
