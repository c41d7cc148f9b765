//! What services need.

use ballast_sim::rng::{Purpose, Stream};
use ballast_usage::limits::{DAY, WINDOW_S};

use ballast_usage::limits::jobs::JobSet;

/// The Horizontal Pod Autoscaler looks so often (kube-controller-manager, `--horizontal-pod-autoscaler-sync-period`).
pub(super) const TICK_S: usize = 15;
pub(super) const TICKS_A_WINDOW: usize = WINDOW_S as usize / TICK_S;
const TICKS_A_DAY: usize = DAY * TICKS_A_WINDOW;

#[derive(Clone, Debug)]
pub struct Service {
    /// In each tick, in tasks that do nothing else.
    pub(super) needed: Vec<f32>,
    /// A task that was started is ready after so many ticks.
    pub(super) start_ticks: usize,
}

impl Service {
    /// Users that come by day and by week, more of them or fewer as weeks go by, in crowds now and then; half of the services
    /// have a job at one time of the day.
    pub fn synthetic(seed: u64, number: u64, days: usize) -> Self {
        let mut chance = Stream::new(seed, Purpose::Services, number, 0);
        let between = |chance: &mut Stream, low: f64, high: f64| low + (high - low) * chance.uniform();

        let mean = 60.0 * libm::exp(0.7 * chance.normal());
        let (swing, second) = (between(&mut chance, 0.2, 0.7), between(&mut chance, 0.0, 0.2));
        let phase = chance.uniform();
        let weekend = between(&mut chance, 0.5, 1.1);
        let growth = 0.15 * chance.normal() / 28.0;
        let noise = between(&mut chance, 0.02, 0.12);
        let days_between_crowds = between(&mut chance, 2.0, 14.0);
        let job_from = if chance.uniform() < 0.5 { chance.uniform() } else { f64::NAN };
        let (job_days, job_height) = (between(&mut chance, 0.01, 0.06), between(&mut chance, 0.2, 0.8));
        let start_ticks = between(&mut chance, 2.0, 20.0) as usize;

        let turn = |at: f64| libm::cos(2.0 * core::f64::consts::PI * at);
        let (mut slow, mut crowds) = (0.0, Crowds::default());
        let needed = (0..days * TICKS_A_DAY).map(|tick| {
            let day = tick as f64 / TICKS_A_DAY as f64;
            let rhythm = 1.0 + swing * turn(day - phase) + second * turn(2.0 * (day - phase));
            let week = if day as usize % 7 >= 5 { weekend } else { 1.0 };
            let job = if libm::fmod(day + 1.0 - job_from, 1.0) < job_days { job_height } else { 0.0 };
            // The slow noise forgets within ten minutes.
            slow = 0.975 * slow + 0.222 * chance.normal();
            let noise = libm::exp(noise * (slow + 0.5 * chance.normal()));
            let crowd = crowds.next(&mut chance, days_between_crowds);
            (mean * libm::exp(growth * day) * (rhythm * week * noise + job + crowd)) as f32
        });
        Self { needed: needed.collect(), start_ticks }
    }

    /// What recorded jobs used, as if each had been a service of so many tasks at its peak; between two windows the need goes
    /// straight from one to the next. A gap needs what was needed before.
    pub fn recorded(jobs: &JobSet, tasks: f32) -> Vec<Self> {
        let service = |used: &[f32]| {
            let peak = used.iter().copied().filter(|used| !used.is_nan()).fold(f32::MIN_POSITIVE, f32::max);
            let mut last = used.iter().copied().find(|used| !used.is_nan()).unwrap_or(0.0);
            let mut needed = Vec::with_capacity(used.len() * TICKS_A_WINDOW);
            for used in used {
                let next = if used.is_nan() { last } else { *used };
                let between = |tick: usize| last + (next - last) * (tick + 1) as f32 / TICKS_A_WINDOW as f32;
                needed.extend((0..TICKS_A_WINDOW).map(|tick| tasks * between(tick) / peak));
                last = next;
            }
            // Two minutes: synthetic services have half a minute to five.
            Self { needed, start_ticks: 120 / TICK_S }
        };
        jobs.jobs().iter().map(|job| service(&job.used)).collect()
    }
}

/// Many users at once, who come within minutes and leave within hours.
#[derive(Default)]
struct Crowds {
    height: f64,
    /// What the crowd grows to, and by how much in a tick.
    coming: f64,
    rise: f64,
    fading: f64,
}

impl Crowds {
    fn next(&mut self, chance: &mut Stream, days_between: f64) -> f64 {
        if chance.uniform() < 1.0 / (days_between * TICKS_A_DAY as f64) {
            // Pareto's law with exponent 2.5: half of the crowds are smaller than a third of the usual load, one in thirty-two
            // is as large as it, or larger.
            self.coming = (0.25 * libm::pow(1.0 - chance.uniform(), -1.0 / 2.5)).min(3.0);
            self.rise = self.coming / (4.0 + 36.0 * chance.uniform());
            self.fading = libm::exp2(-1.0 / (80.0 + 400.0 * chance.uniform()));
        }
        if self.height < self.coming {
            self.height += self.rise;
        } else {
            self.coming = 0.0;
            self.height *= self.fading;
        }
        self.height
    }
}
