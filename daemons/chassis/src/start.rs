//! The third step of a start: threads. All that can fail does so before the first message is sent.

use std::cell::Cell;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use ballast_chassis_core::{Chassis, Ledger, Params};
use ballast_hw::durable::Lock;
use ballast_hw::{Root, boot_id};
use ballast_runtime::Listening;
use ballast_runtime::alarms::AlarmBook;
use ballast_runtime::audit::AuditLog;
use ballast_runtime::clock;
use ballast_runtime::config::{DaemonConfig, Listen};
use ballast_runtime::control::{self, Snapshot};
use ballast_runtime::events::Events;
use ballast_runtime::http::AccessPolicy;
use ballast_runtime::recorder::Recorder;
use ballast_runtime::redfish::Bmcs;
use ballast_runtime::state::DiskFaults;
use ballast_types::Instant;
use ballast_types::wire::ChassisStatus;
use tokio::runtime::{Builder, Runtime};

use crate::adopt::Adopted;
use crate::api::Api;
use crate::budget::{BudgetBounds, BudgetOrders};
use crate::config::ChassisConfig;
use crate::effects::ChassisEffects;
use crate::history::{self, Shared};
use crate::message::Message;
use crate::metrics::Counts;
use crate::polling::{Polling, meter};
use crate::power_input::PowerInput;
use crate::reload::ChassisReload;
use crate::sender::connect;

/// A manager that works, and cannot be reached yet. The fields that come first are dropped first.
pub(crate) struct Started<'a> {
    pub(crate) config: &'a ChassisConfig,
    pub(crate) control: JoinHandle<ChassisEffects>,
    pub(crate) api: Api,
    pub(crate) reload: ChassisReload,
    pub(crate) alarms: AlarmBook,
    pub(crate) listening: Listening,
    pub(crate) held: UntilExit,
}

/// Resources that are held until the hardware caps are lifted. Earlier fields are dropped first.
pub(crate) struct UntilExit {
    pub(crate) messages: Sender<Message>,
    /// The supplies' sessions at their BMCs end when they are dropped.
    _bmcs: Arc<Mutex<Bmcs>>,
    pub(crate) runtime: Runtime,
    _lock: Lock,
}

impl<'a> Adopted<'a> {
    /// Starts polling, the servers' connections, hardware caps and the control thread. Fails when an address
    /// is taken, a supply cannot be used, or a thread cannot be started.
    pub(crate) fn start(self) -> anyhow::Result<Started<'a>> {
        let Self { opened, out_of_band, params } = self;
        let (config, place, ledger) = (opened.config, &opened.config.daemon, opened.ledger);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        // Not bounded: one request under way for each agent, one poll a period; the watchdog sees who takes none.
        let (messages, inbox) = mpsc::channel();
        let (rewirings, of_reload) = mpsc::channel();
        let (events, snapshot) = (Events::default(), Arc::new(Snapshot::<ChassisStatus>::default()));
        let faults = DiskFaults::new(events.clone());
        let orders = budget_orders(config, &ledger, &messages)?;
        let listening = Listening::open(&runtime, &place.listen, opened.tls.as_ref())?;
        let outboxes = connect(&config.servers, opened.tls.as_ref(), runtime.handle(), &messages)?;
        let mut bmcs = Bmcs::new(&config.redfish);
        let power_input = power_input(config, &opened.root, &faults)?;
        let polling = start_polling(config, &opened.root, &mut bmcs, power_input.clone(), &messages)?;
        let caps = out_of_band.start(&messages)?;
        let reload = ChassisReload {
            root: opened.root,
            tls: opened.tls.clone(),
            runtime: runtime.handle().clone(),
            messages: messages.clone(),
            polling: polling.events.clone(),
            supplies: polling.supplies,
            outside: polling.outside,
            bmcs: Arc::new(Mutex::new(bmcs)),
            caps: caps.threads(),
            orders: Arc::clone(&orders),
            rewirings,
            slots: config.has_slots(),
        };
        let began_at = clock::now();
        let recorder = start_recorder(place, began_at, (params.clone(), ledger.clone()), &faults)?;
        let (ledger_written, counts) = (Arc::new(AtomicBool::new(true)), Counts::new(&params.supply_rated));
        let alarms = AlarmBook::new(faults.clone(), opened.tls.clone());
        let effects = ChassisEffects {
            outboxes,
            caps,
            ledger_path: opened.ledger_path,
            ledger_written: Arc::clone(&ledger_written),
            unwritten: None,
            faults: faults.clone(),
            gauges: reload.gauges(),
            events: events.clone(),
            counts: counts.clone(),
            is_read: Cell::new(false),
            dry: config.dry_run,
            alarms: alarms.clone(),
            rewirings: of_reload,
        };
        let (realtime, machine) = (place.realtime, Chassis::new(params, ledger, began_at));
        let history = start_history(config, &snapshot, &faults)?;
        let control = control::start(realtime, machine, inbox, effects, recorder, Arc::clone(&snapshot))?;
        log_start(config);
        let access = access(config, &events, &faults);
        let (power, tls) = (power_input.map(|input| (input, polling.events)), opened.tls);
        let api =
            Api { orders, snapshot, events, counts, history, ledger_written, power, faults, tls, access };
        let held = UntilExit { messages, _bmcs: Arc::clone(&reload.bmcs), runtime, _lock: opened.lock };
        Ok(Started { config, control, api, reload, alarms, listening, held })
    }
}

fn budget_orders(
    config: &ChassisConfig,
    ledger: &Ledger,
    messages: &Sender<Message>,
) -> anyhow::Result<Arc<BudgetOrders>> {
    let orders = BudgetOrders::open(&config.daemon.state_dir, ledger, messages.clone(), config.dry_run)?;
    orders.follow(BudgetBounds::of(config));
    Ok(Arc::new(orders))
}

/// The permissions of callers, and the audit log.
fn access(config: &ChassisConfig, events: &Events, faults: &DiskFaults) -> Arc<AccessPolicy> {
    let place = &config.daemon;
    let audit = AuditLog::new(&place.state_dir, events.clone(), faults.clone());
    let audit = if config.dry_run { audit.without_file() } else { audit };
    Arc::new(AccessPolicy::new(None).with_allowed_hosts(&place.allowed_hosts).with_audit(audit))
}

fn log_start(config: &ChassisConfig) {
    tracing::info!(
        listen = Listen::addresses(&config.daemon.listen),
        chassis = %config.params.chassis_id,
        budget_w = config.params.budget.as_f64(),
        servers = config.servers.len(),
        "chassis manager runs"
    );
}

/// A dry run keeps what it sees in memory alone.
fn start_history(
    config: &ChassisConfig,
    snapshot: &Arc<Snapshot<ChassisStatus>>,
    faults: &DiskFaults,
) -> anyhow::Result<Shared> {
    let mut kept = history::Kept::new(config.servers.iter().map(|server| &server.id));
    let folder = Some(&config.daemon.state_dir).filter(|_| !config.dry_run);
    let file = folder.map(|folder| history::file::open(folder, &mut kept, faults.clone())).transpose()?;

    let shared = Shared::new(kept);
    history::start(shared.clone(), Arc::clone(snapshot), file)?;
    Ok(shared)
}

fn start_polling(
    config: &ChassisConfig,
    root: &Root,
    bmcs: &mut Bmcs,
    outside: Option<Arc<Mutex<PowerInput>>>,
    messages: &Sender<Message>,
) -> anyhow::Result<Polling> {
    let meters = config.supplies.iter().map(|supply| meter(supply, root, bmcs));
    let meters = meters.collect::<anyhow::Result<_>>()?;
    let Params { poll_period, sensor_refresh, .. } = config.params;
    Ok(Polling::start(meters, outside, poll_period, sensor_refresh, messages.clone())?)
}

fn start_recorder(
    place: &DaemonConfig,
    began_at: Instant,
    (params, ledger): (Params, Ledger),
    faults: &DiskFaults,
) -> anyhow::Result<Option<Recorder<Chassis>>> {
    let Some(folder) = &place.record_dir else { return Ok(None) };
    let most = place.record_max_bytes;
    Ok(Some(Recorder::start(folder, most, "chassis", began_at, params, ledger, faults)?))
}

fn power_input(
    config: &ChassisConfig,
    root: &Root,
    faults: &DiskFaults,
) -> anyhow::Result<Option<Arc<Mutex<PowerInput>>>> {
    let Some(source) = config.power_input.clone() else { return Ok(None) };
    let (input, host_boot) = (PowerInput::new(source), boot_id(root)?);
    let input = input.remembering(&config.daemon.state_dir, host_boot, clock::now(), faults.clone())?;
    Ok(Some(Arc::new(Mutex::new(input))))
}
