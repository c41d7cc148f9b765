//! The third step of a start: threads. First all that can fail without a trace; from then on things change.

use std::cell::Cell;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use ballast_agent_core::{Actuator, Agent, Input, Memory};
use ballast_hw::systemd::ShutdownDeadline;
use ballast_hw::{self as hw, MemoryLimits, PowerMeter, Root};
use ballast_runtime::Listening;
use ballast_runtime::alarms::AlarmBook;
use ballast_runtime::audit::AuditLog;
use ballast_runtime::clock;
use ballast_runtime::config::Listen;
use ballast_runtime::control::{self, Snapshot};
use ballast_runtime::events::Events;
use ballast_runtime::http::AccessPolicy;
use ballast_runtime::recorder::Recorder;
use ballast_runtime::redfish::Bmcs;
use ballast_runtime::state::{DiskFaults, StateWriter};
use ballast_runtime::tls::Tls;
use ballast_runtime::{lock, threads};
use ballast_types::Instant;
use ballast_types::wire::{AgentStatus, AlarmId, LimitsMode};
use tokio::runtime::{Builder, Runtime};

use crate::adopt::Adopted;
use crate::api::Api;
use crate::config::{AgentConfig, AutoMode};
use crate::cores::Cores;
use crate::effects::AgentEffects;
use crate::kill::Killer;
use crate::message::Message;
use crate::metrics::Counts;
use crate::pods::Pods;
use crate::quota::{self, Quotas};
use crate::usage::{self, Usage};
use crate::vms::{CHANGES, VmSources, Vms, discovery};
use crate::{limit, sampler};

/// Between two looks at the VMs' memory, where memory is limited: a kill raises the limit within a second.
const LIMITING: Duration = Duration::from_millis(500);

/// An agent that works, and cannot be reached yet. The fields that come first are dropped first.
pub(crate) struct Started<'a> {
    pub(crate) config: &'a AgentConfig,
    pub(crate) control: JoinHandle<AgentEffects>,
    pub(crate) api: Api,
    pub(crate) alarms: AlarmBook,
    pub(crate) listening: Listening,
    pub(crate) waits_for_room: bool,
    pub(crate) held: UntilExit,
}

/// Resources that are held until everything is restored. Earlier fields are dropped first.
pub(crate) struct UntilExit {
    /// Writes the unfinished records when it is dropped.
    _usage: Usage,
    pub(crate) shutdown_deadline: ShutdownDeadline,
    pub(crate) root: Root,
    pub(crate) rapl_left: limit::RaplOriginals,
    pub(crate) dry: bool,
    /// The meter's sessions at its BMC end when they are dropped.
    _bmcs: Bmcs,
    pub(crate) runtime: Runtime,
}

/// All that may fail before anything is changed.
struct Prepared {
    runtime: Runtime,
    listening: Listening,
    began_at: Instant,
    recorder: Option<Recorder<Agent>>,
    writer: StateWriter<Memory>,
    bmcs: Bmcs,
    meter: PowerMeter,
}

impl<'a> Adopted<'a> {
    /// Starts sensors, actuators and the control thread. Fails when an address is taken, a meter is not
    /// there, or a thread cannot be started. The journal then stays for the next start.
    pub(crate) fn start(mut self) -> anyhow::Result<Started<'a>> {
        let Prepared { runtime, listening, began_at, recorder, writer, bmcs, meter } = self.prepare()?;
        self.release_other_actuator();

        let Self { opened, found, originals, limit, rapl_left, params, events, faults, waits_for_room } =
            self;
        let (config, root, tls) = (opened.config, opened.root, opened.tls);
        let dry = params.dry_run.is_some();
        let domains = opened.cpufreq.domains().to_vec();
        let shutdown_deadline = opened.binders.shutdown_deadline();
        let quotas = Quotas::new(opened.bandwidth);
        let floating = config.throttle.actuator.floats().then(|| Arc::clone(&quotas));
        let (answers, answered) = mpsc::channel();
        let pods = Pods::start(config, &root, &answers)?;
        let (sources, mut binders, journal) = (vm_sources(config, pods), opened.binders, opened.journal);
        binders.tell(answers);
        let (vms, vm_set) = Vms::start(&root, &domains, sources, binders, journal, originals, floating)?;
        let (killable, notes, vms) = (vms.killable(), vms.notes(), Arc::new(Mutex::new(vms)));
        start_limiting(config, &quotas, opened.memory_limits, &vms)?;
        // Not bounded: each request leaves one message and waits for its answer, each sensor leaves one a period, and a control
        // thread that takes none for seconds is ended by the watchdog.
        let (messages, inbox) = mpsc::channel();
        let killer = Killer::start(&root, killable, Arc::clone(&vms), messages.clone())?;

        // Fails only when the control thread has ended.
        let _ = messages.send(Message::Input(Input::Vms(vm_set)));
        discovery::start(config.groups.rescan, answered, Arc::clone(&vms), messages.clone())?;
        let (settle, of_vms) = (config.throttle.settle, Arc::clone(&vms));
        let sensors = sampler::start(&config.meter, meter, settle, &root, of_vms, messages.clone())?;

        let counts = Counts::default();
        let alarms = alarms(&opened.previous, faults.clone(), tls.clone());
        let effects = AgentEffects {
            cores: Cores::start(opened.cpufreq, &root, Arc::clone(&vms), messages.clone())?,
            quotas: quota::Worker::start(quotas, messages.clone())?,
            limit: limit.map(|limit| limit::Worker::start(limit, messages.clone())).transpose()?,
            killer,
            sensors,
            writer,
            events: events.clone(),
            counts: counts.clone(),
            is_read: Cell::new(false),
            notes: notes.clone(),
            dry,
            alarms: alarms.clone(),
            waiting: None,
            waits_for_rest: Cell::new(None),
        };

        let machine = Agent::new(params, found, began_at);
        let snapshot = Arc::new(Snapshot::<AgentStatus>::default());
        let realtime = config.daemon.realtime;
        let control = control::start(realtime, machine, inbox, effects, recorder, Arc::clone(&snapshot))?;
        let usage = usage::start(config, &root, Arc::clone(&vms), Arc::clone(&snapshot), messages.clone())?;
        log_start(config);
        let access = access(config, &events, &faults);
        let api = Api { messages, snapshot, events, counts, vms, notes, faults, tls, access };
        let held = UntilExit { _usage: usage, shutdown_deadline, root, rapl_left, dry, _bmcs: bmcs, runtime };
        Ok(Started { config, control, api, alarms, listening, waits_for_room, held })
    }

    fn prepare(&self) -> anyhow::Result<Prepared> {
        let (config, place) = (self.opened.config, &self.opened.config.daemon);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let listening = Listening::open(&runtime, &place.listen, self.opened.tls.as_ref())?;

        let began_at = clock::now();
        let (params, found) = (self.params.clone(), self.found.clone());
        let recorder = place
            .record_dir
            .as_deref()
            .map(|dir| {
                let max_bytes = place.record_max_bytes;
                Recorder::start(dir, max_bytes, "agent", began_at, params, found, &self.faults)
            })
            .transpose()?;
        let writer = StateWriter::start(self.opened.memory_path.clone(), "memory", self.faults.clone())?;
        let mut bmcs = Bmcs::new(&config.redfish);
        let meter = sampler::meter(&config.meter, &self.opened.root, &mut bmcs)?;

        Ok(Prepared { runtime, listening, began_at, recorder, writer, bmcs, meter })
    }

    /// Lifts what a previous instance with another actuator has left: this instance would never lift it, nor
    /// may it stay.
    fn release_other_actuator(&mut self) {
        let actuator = self.opened.config.throttle.actuator;
        let failed: Vec<_> = match actuator {
            Actuator::Pstate => self.opened.bandwidth.release_all().iter().map(ToString::to_string).collect(),
            // Those that are not told as capped too: a cap may be hidden behind a stronger limit.
            Actuator::CpuMax | Actuator::Uclamp => {
                let others = self.opened.bandwidth.release_others();
                let mut failed = self.opened.cpufreq.release_all();
                failed.extend(others.iter().map(ToString::to_string));
                failed
            }
        };

        self.originals.quotas = self.opened.bandwidth.originals();
        if actuator.floats() && failed.is_empty() {
            self.originals.cpufreq = None;
        }
        for error in failed {
            tracing::warn!(
                %error,
                "a restriction that a previous instance set with another actuator could not be lifted"
            );
        }
    }
}

fn alarms(previous: &hw::Opened, faults: DiskFaults, tls: Option<Arc<Tls>>) -> AlarmBook {
    let alarms = AlarmBook::new(faults, tls);
    if let hw::Opened::Held(why) = previous {
        alarms.hold(AlarmId::JournalHeld, Some(format!("journal held: {why}")));
    }
    alarms
}

/// The permissions of callers, and the audit log.
fn access(config: &AgentConfig, events: &Events, faults: &DiskFaults) -> Arc<AccessPolicy> {
    let place = &config.daemon;
    let audit = AuditLog::new(&place.state_dir, events.clone(), faults.clone());
    let access = AccessPolicy::new(Some(config.chassis.clone()));
    Arc::new(access.with_allowed_hosts(&place.allowed_hosts).with_audit(audit))
}

fn vm_sources(config: &AgentConfig, pods: Option<Pods>) -> VmSources {
    let state_dir = &config.daemon.state_dir;
    VmSources {
        vms: config.vms.clone(),
        groups: config.groups.clone(),
        pods,
        changes_path: state_dir.join(CHANGES),
        auto_path: (config.records.auto_class == AutoMode::Act).then(|| state_dir.join("auto-class.json")),
    }
}

/// Begins to set limits by what VMs use, if they are set at all.
fn start_limiting(
    config: &AgentConfig,
    quotas: &Arc<Quotas>,
    memory: MemoryLimits,
    vms: &Arc<Mutex<Vms>>,
) -> std::io::Result<()> {
    let mut locked = lock(vms);
    locked.leave_memory(memory);
    if config.job_limits.mode != LimitsMode::Apply {
        return Ok(());
    }
    locked.limit_through(Arc::clone(quotas), config.job_limits.apply_memory);
    let (notes, vms) = (locked.notes(), Arc::clone(vms));
    threads::every("limits", LIMITING, move || {
        let targets = notes.limit_targets();
        lock(&vms).limit(clock::now(), &targets)
    })
}

fn log_start(config: &AgentConfig) {
    tracing::info!(
        listen = Listen::addresses(&config.daemon.listen),
        server = %config.server,
        chassis = %config.chassis,
        policy = config.policy.name(),
        "agent runs"
    );
}
