//! Reads the server's meter and its VMs' CPU use, on a thread of its own.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use ballast_agent_core::{Input, Reading, SensorFault};
use ballast_hw::powercap::Energy;
use ballast_hw::{HwmonSensor, MatchSpec, PowerMeter, RaplMeter, RaplSensor, Root, SensorError};
use ballast_types::{Instant, Watts};

use super::Letter;
use super::vms::Vms;
use crate::clock;
use crate::config::{MeterConfig, MeterSource};

/// What the server draws beside its packages: learnt from the meter and RAPL together.
///
/// Both are smoothed over about three seconds, because they lag differently.
pub(super) struct Rest(AtomicI64);

impl Rest {
    const UNKNOWN: i64 = i64::MIN;

    /// The newest estimate; `None` before the first.
    pub(super) fn get(&self) -> Option<Watts> {
        let milli = self.0.load(Ordering::Relaxed);
        (milli != Self::UNKNOWN).then(|| Watts::from_milli(milli))
    }

    fn learn(&self, server: Watts, packages: Watts) {
        let seen = server - packages;
        let rest =
            self.get().map_or(seen, |old| old + Watts::from_milli((seen - old).milli() / 16));
        self.0.store(rest.milli(), Ordering::Relaxed);
    }
}

/// Starts sampling; ends when the control thread does.
pub(super) fn start(
    config: &MeterConfig,
    root: &Root,
    vms: Arc<Mutex<Vms>>,
    letters: Sender<Letter>,
) -> anyhow::Result<Arc<Rest>> {
    let meter = match &config.source {
        MeterSource::Hwmon { name, label } => {
            let spec = MatchSpec { name: name.clone(), label: label.clone() };
            PowerMeter::new(HwmonSensor::new(root, spec), config.max)
        }
        MeterSource::Rapl { offset } => {
            PowerMeter::new(RaplSensor::new(root, *offset, config.max), config.max)
        }
    };
    // Without RAPL there is no server limit either, and nothing to learn.
    let packages = RaplMeter::packages(root, config.max).ok();
    let rest = Arc::new(Rest(AtomicI64::new(Rest::UNKNOWN)));
    let mut sampler = Sampler { meter, packages, rest: Arc::clone(&rest), vms, letters };
    clock::every("sampler", config.sample, move || sampler.sample())?;
    Ok(rest)
}

struct Sampler {
    meter: PowerMeter,
    packages: Option<RaplMeter>,
    rest: Arc<Rest>,
    vms: Arc<Mutex<Vms>>,
    letters: Sender<Letter>,
}

impl Sampler {
    /// Takes one sample of everything; `false` when nobody wants it any more.
    fn sample(&mut self) -> bool {
        let now = clock::now();
        let reading = self.power(now);
        // While cores are being moved there is no usage: the meter must not wait for that.
        let usage = self.vms.try_lock().map(|mut vms| vms.usage(now)).unwrap_or_default();
        let send = |input| self.letters.send(Letter::Input(input)).is_ok();
        send(Input::Usage(usage)) && send(Input::Power(reading))
    }

    fn power(&mut self, now: Instant) -> Reading {
        let packages = self.packages.as_mut().and_then(|meter| match meter.sample(now) {
            Ok(Energy::Power(watts)) => Some(watts),
            _ => None,
        });
        match self.meter.sample(now) {
            Ok((watts, taken_at)) => {
                if let Some(packages) = packages {
                    self.rest.learn(watts, packages);
                }
                Reading::Sample { watts, taken_at }
            }
            Err(error) => {
                tracing::debug!(%error, "meter");
                Reading::Fault(match error {
                    SensorError::Unreadable(_) | SensorError::Device(_) | SensorError::Started => {
                        SensorFault::Unreadable
                    }
                    SensorError::Absurd { .. } => SensorFault::Absurd,
                    SensorError::Frozen { .. } => SensorFault::Frozen,
                })
            }
        }
    }
}
