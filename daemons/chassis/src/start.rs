//! The third step of a start: threads. All that can fail does so before the first message is sent.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use ballast_chassis_core::{Chassis, Input};
use ballast_hw::durable::Lock;
use ballast_hw::{PmbusSupply, Root, SupplyMeter, boot_id};
use ballast_runtime::alarms::AlarmBook;
use ballast_runtime::clock;
use ballast_runtime::config::Listen;
use ballast_runtime::control::{self, Snapshot};
use ballast_runtime::events::Events;
use ballast_runtime::http::{self, Listener};
use ballast_runtime::recorder::Recorder;
use ballast_runtime::redfish::Bmcs;
use ballast_runtime::state::DiskFaults;
use ballast_runtime::tls::Tls;
use ballast_types::ServerId;
use ballast_types::wire::ChassisStatus;
use tokio::runtime::{Builder, Runtime};

use crate::adopt::Adopted;
use crate::budget::BudgetOrders;
use crate::config::{ChassisConfig, SupplySource};
use crate::effects::ChassisEffects;
use crate::message::Message;
use crate::metrics::Counts;
use crate::polling::{self, Polling};
use crate::power_input::PowerInput;
use crate::sender;

/// A manager that works, and cannot be reached yet. The fields that come first are dropped first.
pub(crate) struct Started<'a> {
    pub(crate) config: &'a ChassisConfig,
    pub(crate) control: JoinHandle<ChassisEffects>,
    pub(crate) messages: Sender<Message>,
    pub(crate) snapshot: Arc<Snapshot<ChassisStatus>>,
    pub(crate) orders: Arc<BudgetOrders>,
    pub(crate) ledger_written: Arc<AtomicBool>,
    /// The outside source of readings, if one is configured, and who polls it.
    pub(crate) power_input: Option<(Arc<Mutex<PowerInput>>, Sender<polling::PollEvent>)>,
    /// The supplies' sessions at their BMCs end when they are dropped.
    pub(crate) bmcs: Bmcs,
    pub(crate) faults: DiskFaults,
    pub(crate) events: Events,
    pub(crate) counts: Counts,
    pub(crate) listeners: Vec<Listener>,
    pub(crate) runtime: Runtime,
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) lock: Lock,
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
        let events = Events::default();
        let faults = DiskFaults::new(events.clone());
        let snapshot = Arc::new(Snapshot::<ChassisStatus>::default());
        let orders = BudgetOrders::open(&place.state_dir, &ledger, messages.clone(), config.dry_run)?;

        let listeners = runtime.block_on(http::bind(&place.listen, opened.tls.as_ref()))?;
        let outboxes = connect(config, opened.tls.as_ref(), &runtime, &messages)?;
        let mut bmcs = Bmcs::new(&config.redfish);
        let supplies = supplies(config, &opened.root, &mut bmcs)?;
        let power_input = power_input(config, &opened.root, &faults)?;
        let polling = Polling::start(
            supplies,
            power_input.clone(),
            config.params.poll_period,
            config.params.sensor_refresh,
            messages.clone(),
        )?;
        let caps = out_of_band.start(&messages)?;

        let began_at = clock::now();
        let recorder = place
            .record_dir
            .as_deref()
            .map(|dir| {
                let (params, ledger) = (params.clone(), ledger.clone());
                Recorder::start(dir, place.record_max_bytes, "chassis", began_at, params, ledger, &faults)
            })
            .transpose()?;
        let ledger_written = Arc::new(AtomicBool::new(true));
        let counts = Counts::default();
        let effects = ChassisEffects {
            outboxes,
            caps,
            ledger_path: opened.ledger_path,
            ledger_written: Arc::clone(&ledger_written),
            unwritten: None,
            faults: faults.clone(),
            gauges: polling.gauges,
            events: events.clone(),
            counts: counts.clone(),
            is_read: Cell::new(false),
            dry: config.dry_run,
            alarms: AlarmBook::new(faults.clone(), opened.tls.clone()),
        };
        let machine = Chassis::new(params, ledger, began_at);
        let control =
            control::start(place.realtime, machine, inbox, effects, recorder, Arc::clone(&snapshot))?;

        tracing::info!(
            listen = Listen::addresses(&place.listen),
            chassis = %config.params.chassis_id,
            budget_w = config.params.budget.as_f64(),
            servers = config.servers.len(),
            "chassis manager runs"
        );

        Ok(Started {
            config,
            control,
            messages,
            snapshot,
            orders: Arc::new(orders),
            ledger_written,
            power_input: power_input.map(|input| (input, polling.events)),
            bmcs,
            faults,
            events,
            counts,
            listeners,
            runtime,
            tls: opened.tls,
            lock: opened.lock,
        })
    }
}

/// One kept connection for each server's agent.
fn connect(
    config: &ChassisConfig,
    tls: Option<&Arc<Tls>>,
    runtime: &Runtime,
    messages: &Sender<Message>,
) -> anyhow::Result<BTreeMap<ServerId, sender::Outbox>> {
    let mut outboxes = BTreeMap::new();
    for server in &config.servers {
        let (messages, id) = (messages.clone(), server.id.clone());
        let link = sender::Link::new(&server.url, &server.id, tls.cloned())?;
        let (outbox, task) = sender::carry(link, move |seq, answer| {
            // Fails only when the control thread has ended.
            let _ = messages.send(Message::Input(Input::Answer { server: id.clone(), seq, answer }));
        });

        outboxes.insert(server.id.clone(), outbox);
        runtime.spawn(task);
    }
    Ok(outboxes)
}

fn supplies(config: &ChassisConfig, root: &Root, bmcs: &mut Bmcs) -> anyhow::Result<Vec<SupplyMeter>> {
    let mut supplies = vec![];
    for supply in &config.supplies {
        let name = supply.name();
        supplies.push(match &supply.source {
            SupplySource::Hwmon(device) => SupplyMeter::new(&name, PmbusSupply::new(root, device)),
            SupplySource::Redfish(bmc, id) => SupplyMeter::new(&name, bmcs.supply(bmc, id)?),
        });
    }
    Ok(supplies)
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
