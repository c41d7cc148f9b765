//! Reads the server's meter, RAPL and its VMs' CPU use, the meter on a thread of its own.
//!
//! ```text
//!   meter (may block for seconds) ──readings──▶ control        without fuse_rapl
//!                                 └─▶ Fused ◀─ RAPL ──readings──▶ control        with it
//!   sampler: CPU use, RAPL ─────────┘
//! ```

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ballast_agent_core::{Fused, Input, Reading, SensorFault};
use ballast_bmc::dcmi::Dcmi;
use ballast_hw::rapl::Energy;
use ballast_hw::{HwmonSensor, MatchSpec, PowerMeter, RaplMeter, RaplSensor, Root, SensorError};
use ballast_types::{Instant, Watts};

use super::dcmi::DcmiMeter;
use super::message::Message;
use super::vms::Vms;
use crate::config::{MeterConfig, MeterSource};
use ballast_runtime::redfish::Bmcs;
use ballast_runtime::sensors::Gauge;
use ballast_runtime::threads;
use ballast_runtime::{clock, lock};

/// What the server draws beside its packages: learnt from the meter and RAPL together.
///
/// Both are smoothed over about three seconds, because they lag differently.
pub(super) struct NonCpuPower(AtomicI64);

impl NonCpuPower {
    const UNKNOWN: i64 = i64::MIN;

    /// The newest estimate; `None` before the first.
    pub(super) fn get(&self) -> Option<Watts> {
        let milli = self.0.load(Ordering::Relaxed);
        (milli != Self::UNKNOWN).then(|| Watts::from_milli(milli))
    }

    fn learn(&self, server: Watts, packages: Watts) {
        let seen = server - packages;
        let rest = self.get().map_or(seen, |old| old + Watts::from_milli((seen - old).milli() / 16));
        self.0.store(rest.milli(), Ordering::Relaxed);
    }
}

/// What the control thread and the status get of the sensors.
pub(super) struct Sensors {
    /// What the server draws beside its packages.
    pub(super) non_cpu: Arc<NonCpuPower>,
    pub(super) gauges: Vec<Gauge>,
}

/// The newest reading of the server that nothing was learnt from yet.
type Newest = Arc<Mutex<Option<Watts>>>;

/// The sensor that is configured: the one place that knows every kind.
pub(super) fn meter(config: &MeterConfig, root: &Root, bmcs: &mut Bmcs) -> anyhow::Result<PowerMeter> {
    Ok(match &config.source {
        MeterSource::Hwmon { name, label } => {
            let spec = MatchSpec { name: name.clone(), label: label.clone() };
            PowerMeter::new(HwmonSensor::new(root, spec), config.max)
        }
        MeterSource::Rapl { offset } => {
            PowerMeter::new(RaplSensor::new(root, *offset, config.max), config.max)
        }
        MeterSource::Dcmi => {
            let dcmi = Dcmi::open(&root.path(""), config.deadline);
            PowerMeter::new(DcmiMeter(dcmi), config.max)
        }
        MeterSource::Redfish(bmc) => PowerMeter::new(bmcs.meter(bmc)?, config.max),
    })
}

/// Starts sampling; ends when the control thread does. `settle` is the time between two steps.
pub(super) fn start(
    config: &MeterConfig,
    meter: PowerMeter,
    settle: Duration,
    root: &Root,
    vms: Arc<Mutex<Vms>>,
    messages: Sender<Message>,
) -> anyhow::Result<Sensors> {
    let gauge = Gauge::new(config.name(), config.deadline);
    let fused =
        config.fuse_rapl.map(|fuse| Arc::new(Mutex::new(Fused::new(config.lag, fuse.refresh, config.stale))));
    let newest = Newest::default();
    let mut reader = Reader {
        meter,
        gauge: gauge.clone(),
        config: config.clone(),
        settle,
        fused: fused.clone(),
        newest: Arc::clone(&newest),
        messages: messages.clone(),
    };

    threads::every("meter", config.read_period(), move || reader.read())?;

    // Without RAPL there is no server limit either, and nothing to learn.
    let packages = RaplMeter::packages(root, config.max).ok();
    let mut gauges = vec![gauge.clone()];
    let fused = fused.map(|fused| {
        let gauge = Gauge::new("fused with RAPL".into(), config.deadline);
        gauges.push(gauge.clone());
        Windows { fused, rapl: None, from: None, gauge }
    });

    let non_cpu = Arc::new(NonCpuPower(AtomicI64::new(NonCpuPower::UNKNOWN)));
    let mut sampler = Sampler {
        root: root.clone(),
        max: config.max,
        packages,
        fused,
        newest,
        non_cpu: Arc::clone(&non_cpu),
        gauge,
        vms,
        messages,
    };

    threads::every("sampler", config.sample, move || sampler.sample())?;

    Ok(Sensors { non_cpu, gauges })
}

/// The meter's own thread: whatever the device does, only this waits for it.
struct Reader {
    meter: PowerMeter,
    gauge: Gauge,
    config: MeterConfig,
    settle: Duration,
    fused: Option<Arc<Mutex<Fused>>>,
    newest: Newest,
    messages: Sender<Message>,
}

impl Reader {
    /// One read; `false` when nobody wants it any more.
    fn read(&mut self) -> bool {
        let now = clock::now();
        self.gauge.read_begins(now);
        let read = self.meter.sample(now);
        let refresh = self.meter.refresh();

        match &read {
            Ok((_, taken_at)) => self.gauge.answered(Ok(*taken_at), refresh),
            Err(error) => self.gauge.answered(Err(error), refresh),
        }

        let slowest = refresh.max(self.meter.averaged_over());
        let advice = slowest.and_then(|slowest| self.config.too_fast_for(slowest, self.settle));
        self.gauge.advise(now, advice);
        let reading = match read {
            Ok((watts, taken_at)) => Reading::Sample { watts, taken_at },
            Err(error) => {
                tracing::debug!(%error, "meter");
                Reading::Fault(fault(&error))
            }
        };

        match (&self.fused, reading) {
            (Some(fused), Reading::Sample { watts, taken_at }) => {
                lock(fused).slow(watts, taken_at);
                Arc::strong_count(fused) > 1
            }

            // Its silence is enough: what was learnt holds for a while.
            (Some(fused), Reading::Fault(_)) => Arc::strong_count(fused) > 1,
            (None, reading) => {
                if let Reading::Sample { watts, .. } = reading {
                    *lock(&self.newest) = Some(watts);
                }
                self.messages.send(Message::Input(Input::Power(reading))).is_ok()
            }
        }
    }
}

fn fault(error: &SensorError) -> SensorFault {
    match error {
        SensorError::Unreadable(_) | SensorError::Device(_) | SensorError::Started => SensorFault::Unreadable,
        SensorError::Implausible { .. } => SensorFault::Implausible,
        SensorError::Frozen { .. } => SensorFault::Frozen,
    }
}

/// RAPL between two readings of a slow meter.
struct Windows {
    fused: Arc<Mutex<Fused>>,
    rapl: Option<RaplMeter>,
    /// Where the window under way began.
    from: Option<Instant>,
    gauge: Gauge,
}

impl Windows {
    /// Ends one window, and begins the next; `None` while there is none yet.
    fn reading(&mut self, now: Instant, root: &Root, max: Watts) -> Option<Reading> {
        let reading = self.window(now, root, max)?;
        let doubt = lock(&self.fused).doubt(now);
        match reading {
            Reading::Sample { taken_at, .. } => self.gauge.answered(Ok(taken_at), None),
            Reading::Fault(_) => {
                self.gauge.answered(Err(&doubt.unwrap_or("no RAPL reading")), None);
            }
        }
        let sampled = matches!(reading, Reading::Sample { .. });
        self.gauge.advise(now, doubt.filter(|_| sampled).map(str::to_owned));
        Some(reading)
    }

    fn window(&mut self, now: Instant, root: &Root, max: Watts) -> Option<Reading> {
        let energy = match &mut self.rapl {
            Some(rapl) => rapl.sample(now),
            none => RaplMeter::find(root, max).and_then(|rapl| none.insert(rapl).sample(now)),
        };

        let from = match energy {
            // The counters have not moved: the window goes on.
            Ok(Energy::Stale) => return Some(Reading::Fault(SensorFault::Frozen)),
            Ok(_) => self.from.replace(now),
            Err(_) => self.from.take(),
        };

        match (energy, from) {
            (Ok(Energy::Power(rapl)), Some(from)) => {
                let mut fused = lock(&self.fused);
                Some(fused.fast(from, now, rapl))
            }
            (Ok(Energy::Implausible(_)), _) => Some(Reading::Fault(SensorFault::Implausible)),
            (Ok(_), _) => None,
            (Err(error), _) => {
                tracing::debug!(%error, "RAPL");
                Some(Reading::Fault(SensorFault::Unreadable))
            }
        }
    }
}

struct Sampler {
    root: Root,
    max: Watts,
    packages: Option<RaplMeter>,
    fused: Option<Windows>,
    newest: Newest,
    non_cpu: Arc<NonCpuPower>,
    gauge: Gauge,
    vms: Arc<Mutex<Vms>>,
    messages: Sender<Message>,
}

impl Sampler {
    /// Takes one sample of everything but the meter; `false` when nobody wants it any more.
    fn sample(&mut self) -> bool {
        let now = clock::now();
        let reading = match &mut self.fused {
            Some(windows) => windows.reading(now, &self.root, self.max),
            // The reader hangs in a read: it cannot say so itself.
            None => {
                let overdue = self.gauge.overdue(now);
                overdue.map(|_| Reading::Fault(SensorFault::Unreadable))
            }
        };

        let fresh = match reading {
            Some(Reading::Sample { watts, .. }) => Some(watts),
            Some(Reading::Fault(_)) => None,
            None => lock(&self.newest).take(),
        };

        let packages = self.packages.as_mut().and_then(|meter| match meter.sample(now) {
            Ok(Energy::Power(watts)) => Some(watts),
            _ => None,
        });

        if let (Some(server), Some(packages)) = (fresh, packages) {
            self.non_cpu.learn(server, packages);
        }

        // While cores are being moved there is no usage: the meter must not wait for that.
        let usage = self.vms.try_lock().map(|mut vms| vms.usage(now)).unwrap_or_default();
        let send = |input| self.messages.send(Message::Input(input)).is_ok();

        send(Input::Usage(usage)) && reading.is_none_or(|reading| send(Input::Power(reading)))
    }
}
