//! Measured load on a chassis: which part of a trace is played, and the plant that plays it.
//!
//! A series of watts is one server: inverted to utilisation through the power model, on every core.
//! Series of CPU use are one per server too when there are no more of them than servers; otherwise each is
//! one VM: three user-facing of 4 cores and three batch of 6 cores on each server of 40 cores. Nobody
//! labelled those VMs: which is user-facing is our assumption.

use core::time::Duration;
use std::sync::Arc;

use ballast_types::{Core, CoreId, KiloHertz, Ladder, OnExtreme, PowerModel, ServerId, VmClass, VmId, Watts};
use serde::Serialize;

use super::TelemetryError;
use crate::plant::{
    Interpolation, Load, Plant, PlantSpec, Profile, SensorSpec, Series, ServerSpec, SharedSpec, SupplySpec,
    VmLoad,
};
use crate::trace::{self, Trace, Unit};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Meaning {
    Server,
    Vm,
}

/// Which part of a trace is played, and on what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Playback {
    /// How many servers; `None`: one per series of watts, else 12.
    pub servers: Option<usize>,
    /// Recorded seconds that are left out at the start.
    pub skip_s: f64,
    /// Recorded seconds to replay; `None` for all.
    pub length_s: Option<f64>,
    /// Every value is multiplied by this.
    pub scale: f64,
    pub model: PowerModel,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sizes {
    /// All alike: 40 cores.
    #[default]
    Equal,
    /// By turns 40, 20 and 60 cores; VMs and watts scale with the cores.
    Unequal,
}

impl Sizes {
    /// The size of server `n` in halves of a usual one.
    fn halves(self, n: usize) -> u16 {
        match self {
            Self::Equal => 2,
            Self::Unequal => [2, 1, 3][n % 3],
        }
    }

    /// The size of server `n`, 1 being a usual one.
    pub fn of(self, n: usize) -> f64 {
        0.5 * f64::from(self.halves(n))
    }
}

/// The loads of a trace, ready to be played.
#[derive(Clone, Debug)]
pub struct Loads {
    pub meaning: Meaning,
    pub servers: usize,
    pub length: Duration,
    /// Values that no utilisation stands for, clamped: in the file, by the scale, by the power model.
    pub clamped: u64,
    /// Gaps; the value before them holds.
    pub gaps: u64,
    /// Of the file's gaps, values that no machine can show.
    pub implausible_values: u64,
    model: PowerModel,
    profiles: Vec<Profile>,
}

/// A chassis has no more servers than this.
const SERVERS_MAX: usize = 256;
/// Cores of half a server.
const HALF_CORES: u16 = 20;
/// VMs of one server, again and again: class, and cores in half a server.
const VMS: [(VmClass, u16); 2] = [(VmClass::UserFacing, 2), (VmClass::NonUserFacing, 3)];
/// So many of them where a series is a VM.
const PACKED: usize = 6;
/// And where a series is a server: every core is in use, two of five for user-facing VMs.
const WHOLE: usize = 8;

impl Loads {
    pub fn cut(trace: &Trace, playback: &Playback) -> Result<Self, TelemetryError> {
        check(trace, playback)?;
        let watts = trace.series.iter().any(|s| s.unit == Unit::Watts);
        let servers = playback.servers.unwrap_or(if watts { trace.series.len() } else { 12 });

        if !(1..=SERVERS_MAX).contains(&servers) {
            let allowed = format!("allowed is 1 to {SERVERS_MAX}");
            return Err(TelemetryError::value("servers", servers, allowed));
        }

        let whole = watts || trace.series.len() <= servers;
        let meaning = if whole { Meaning::Server } else { Meaning::Vm };
        let used = trace.series.len().min(servers * if whole { 1 } else { PACKED });
        let (mut clamped, mut gaps) = (trace.report.clamped, 0);
        let profiles = trace.series[..used].iter().map(|series| {
            let played = part(trace, series, playback, &mut clamped).played(&playback.model);
            clamped += played.clamped;
            gaps += played.filled;

            profile(trace.period_s, played.values)
        });

        let profiles = profiles.collect();

        let (_, len) = window(trace, playback);

        // The last value holds for no longer than the trace says.
        let all = Duration::from_secs_f64((len.max(2) - 1) as f64 * trace.period_s);
        let limit = playback.length_s.unwrap_or(f64::INFINITY);
        let length = all.min(Duration::try_from_secs_f64(limit).unwrap_or(Duration::MAX));
        let model = playback.model;
        let implausible_values = trace.report.implausible_values;

        Ok(Self { meaning, servers, length, clamped, gaps, implausible_values, model, profiles })
    }

    pub fn series(&self) -> usize {
        self.profiles.len()
    }

    /// How many places a series can have: servers or VMs.
    pub fn places(&self) -> usize {
        match self.meaning {
            Meaning::Server => self.servers,
            Meaning::Vm => self.servers * PACKED,
        }
    }

    /// A chassis that plays them under `budget`. Place `n` (server by server, and VM by VM on each) gets
    /// series `order(n)`; after the last series the first is played once more.
    pub fn plant(
        &self,
        order: impl Fn(usize) -> usize,
        sizes: Sizes,
        budget: Watts,
        hardware_caps: bool,
    ) -> PlantSpec {
        let server = |n: usize| {
            let vm_load = |vm: usize| {
                let place = match self.meaning {
                    Meaning::Server => n,
                    Meaning::Vm => n * PACKED + vm,
                };

                self.profiles[order(place) % self.profiles.len()].clone()
            };

            self.server(n, sizes, vm_load)
        };

        let servers: Vec<_> = (0..self.servers).map(server).collect();

        // Fans and switch of a chassis of twelve: 60 to 180 W and 40 W.
        let share = |w: f64| Watts::from_f64(w * self.servers as f64 / 12.0).unwrap_or(Watts::ZERO);

        // Two supplies, each of which could carry everything: the budget is the limit, not they.
        let full_w: f64 = servers.iter().map(|server| server.model.full_w).sum();
        let all = Watts::from_f64(full_w * 1.25).unwrap_or(Watts::MAX);

        PlantSpec {
            servers,
            supplies: vec![SupplySpec::active(all), SupplySpec::active(all)],
            shared: SharedSpec { fans_idle: share(60.0), fans_full: share(180.0), switch: share(40.0) },
            meter: SensorSpec::default(),
            supply_meter: SensorSpec::default(),
            hardware_caps,
            budget,
        }
    }

    /// Two sockets of 20 cores, or of 10 or 30; 1.2 to 2.4 GHz in steps of 100 MHz.
    fn server(&self, n: usize, sizes: Sizes, load: impl Fn(usize) -> Profile) -> ServerSpec {
        let halves = sizes.halves(n);
        let count = match self.meaning {
            Meaning::Server => WHOLE,
            Meaning::Vm => PACKED,
        };

        let mut next = 0;
        let vms = VMS.iter().cycle().take(count).enumerate().map(|(v, (class, cores))| {
            let first = next;
            next += cores * halves;
            let kind = if *class == VmClass::UserFacing { "user" } else { "batch" };

            VmLoad {
                vcpus: None,
                id: VmId::new(&format!("{kind}-{v}")).expect("letters and digits are an id"),
                class: *class,
                throttle_order: 0,
                cores: (first..next).map(CoreId).collect(),
                on_extreme: OnExtreme::None,
                load: Load::Profile(load(v)),
            }
        });

        let vms = vms.collect();
        let mhz = KiloHertz::from_mhz;
        let ladder = Ladder::stepped(mhz(1200), mhz(2400), mhz(100));
        let ladder = ladder.expect("1200 to 2400 by 100 is a ladder");
        let cores = 0..HALF_CORES * halves;

        ServerSpec {
            id: ServerId::new(&format!("s{:02}", n + 1)).expect("letters and digits are an id"),
            model: scaled(&self.model, sizes.of(n)),
            sockets: 2,
            vms,
            cores: cores.map(|c| Core { id: CoreId(c), ladder: ladder.clone() }).collect(),
        }
    }
}

/// What the chassis draws while nothing runs on it.
pub fn idle(spec: &PlantSpec) -> Watts {
    let mut spec = spec.clone();
    for vm in spec.servers.iter_mut().flat_map(|server| &mut server.vms) {
        vm.load = Load::Profile(Profile::Constant(0.0));
    }
    Plant::new(spec, 0).power()
}

/// A server of `size` times the cores.
fn scaled(model: &PowerModel, size: f64) -> PowerModel {
    PowerModel {
        idle_w: size * model.idle_w,
        full_w: size * model.full_w,
        half_idle_w: size * model.half_idle_w,
        half_full_w: size * model.half_full_w,
    }
}

fn check(trace: &Trace, playback: &Playback) -> Result<(), TelemetryError> {
    let Playback { scale, skip_s, length_s, ref model, .. } = *playback;
    if !(scale > 0.0 && scale <= 1000.0) {
        let allowed = "allowed is a number above 0, at most 1000";
        return Err(TelemetryError::value("scale", scale, allowed));
    }

    if let Err(reason) = model.check() {
        let value = serde_json::to_string(model).unwrap_or_default();
        return Err(TelemetryError::value("power model", value, reason));
    }

    if !(0.0..trace.span_s()).contains(&skip_s) {
        let allowed = format!("allowed is 0 to less than the {:.2} h of the trace", trace.span_s() / 3600.0);
        return Err(TelemetryError::value("skip (hours)", skip_s / 3600.0, allowed));
    }

    if let Some(length_s) = length_s.filter(|s| s.is_nan() || *s < SHORTEST_S) {
        let allowed = "allowed is a second or more, or 0 for all";
        return Err(TelemetryError::value("hours", length_s / 3600.0, allowed));
    }

    Ok(())
}

/// Less than this says nothing of a load, in seconds.
const SHORTEST_S: f64 = 1.0;

/// The first value that is played, and how many there are.
fn window(trace: &Trace, playback: &Playback) -> (usize, usize) {
    let all = trace.series.first().map_or(0, |s| s.values.len());
    let first = ((playback.skip_s / trace.period_s) as usize).min(all.saturating_sub(1));
    let most = playback.length_s.map_or(usize::MAX, |s| (s / trace.period_s).ceil() as usize + 1);
    (first, most.clamp(2, (all - first).max(2)).min(all - first))
}

/// The part of a series that is played, scaled.
fn part(trace: &Trace, series: &trace::Series, playback: &Playback, clamped: &mut u64) -> trace::Series {
    let (first, len) = window(trace, playback);
    let top = match series.unit {
        Unit::Percent => 100.0,
        Unit::Share => 1.0,
        Unit::Watts => f64::INFINITY,
    };

    let values = series.values[first..first + len].iter().map(|value| {
        let scaled = f64::from(*value) * playback.scale;
        *clamped += u64::from(scaled > top);
        scaled.min(top) as f32
    });

    // `min` would turn a gap into the top.
    let values = values.zip(&series.values[first..]).map(|(v, raw)| if raw.is_nan() { f32::NAN } else { v });
    trace::Series { name: series.name.clone(), unit: series.unit, values: values.collect() }
}

fn profile(period_s: f64, values: Arc<[f32]>) -> Profile {
    let interpolation = Interpolation::Linear;
    Profile::Series(Series { period_s, values, interpolation, scale: 1.0, speedup: 1.0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::ReadOptions;

    fn loads(series: usize) -> Loads {
        let names: Vec<_> = (0..series).map(|n| format!("v{n}")).collect();
        let row = vec!["10"; series].join(",");
        let text = format!("t_s,{}\n0,{row}\n300,{row}\n", names.join(","));
        let trace = Trace::read(text.as_bytes(), "t.csv", &ReadOptions::default()).unwrap();
        let model = PowerModel::PAPER;
        let playback = Playback { servers: Some(3), skip_s: 0.0, length_s: None, scale: 1.0, model };
        Loads::cut(&trace, &playback).unwrap()
    }

    #[test]
    fn unequal_servers_are_as_large_together_and_have_whole_cores() {
        let loads = loads(18);
        assert_eq!((loads.meaning, loads.places()), (Meaning::Vm, 18));
        let cores = |sizes| {
            let plant = loads.plant(|n| n, sizes, Watts::from_whole(500), true);
            let cores: Vec<_> = plant.servers.iter().map(|s| s.cores.len()).collect();
            let taken: Vec<usize> =
                plant.servers.iter().map(|s| s.vms.iter().map(|vm| vm.cores.len()).sum()).collect();
            (cores, taken, idle(&plant))
        };
        let (equal, unequal) = (cores(Sizes::Equal), cores(Sizes::Unequal));
        assert_eq!((equal.0, equal.1), (vec![40; 3], vec![30; 3]));
        assert_eq!((unequal.0, unequal.1), (vec![40, 20, 60], vec![30, 15, 45]));
        assert_eq!(equal.2, unequal.2, "idle draws scale with the cores");
    }
}
