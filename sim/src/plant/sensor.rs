//! A meter with lag, refresh, noise and quantisation.

use std::collections::VecDeque;

use ballast_types::{Instant, Watts};

use super::{STEP, STEP_S, SensorSpec, at_step};
use crate::rng::Stream;

/// A meter at work. It is told the energy at the end of every averaging window.
#[derive(Clone, Debug)]
pub(super) struct Sensor {
    spec: SensorSpec,
    rng: Stream,
    period: u64,
    lag: u64,
    window_end: u64,
    /// Energy at the start of the current window, in joules.
    window_start_j: f64,
    /// Means that are not shown yet, and when they will be.
    pending: VecDeque<(u64, f64)>,
    shown: Watts,
    refreshed_at: Instant,
}

/// A span in whole steps, rounded up.
fn steps(span: core::time::Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(STEP.as_nanos())).unwrap_or(u64::MAX / 4)
}

impl Sensor {
    /// A meter that has shown `initial_w` for long. Its phase comes from its own stream.
    pub(super) fn new(spec: SensorSpec, mut rng: Stream, initial_w: f64) -> Self {
        let period = steps(spec.refresh).max(1);
        let phase = ((rng.uniform() * period as f64) as u64).min(period - 1) + 1;
        Self::with_phase(spec, rng, initial_w, phase)
    }

    /// A new meter that refreshes together with `other`, which is new too.
    pub(super) fn in_step_with(other: &Self, rng: Stream, initial_w: f64) -> Self {
        Self::with_phase(other.spec, rng, initial_w, other.window_end)
    }

    fn with_phase(spec: SensorSpec, rng: Stream, initial_w: f64, phase: u64) -> Self {
        let period = steps(spec.refresh).max(1);
        let mut sensor = Self {
            spec,
            rng,
            period,
            lag: steps(spec.lag),
            window_end: phase,
            window_start_j: initial_w * (phase as f64 - period as f64) * STEP_S,
            pending: VecDeque::new(),
            shown: Watts::ZERO,
            refreshed_at: Instant::ZERO,
        };

        sensor.show(initial_w);

        // What was true before the start is still on its way.
        let late = sensor.lag.div_ceil(period);

        for back in (1..=late).rev() {
            let at = (phase + sensor.lag).saturating_sub(back * period);
            sensor.pending.push_back((at, initial_w));
        }

        sensor
    }

    /// The next step at which something changes.
    pub(super) fn due(&self) -> u64 {
        self.pending.front().map_or(self.window_end, |(at, _)| self.window_end.min(*at))
    }

    /// Tells it the total energy at `step`; true when a window ended.
    pub(super) fn tick(&mut self, step: u64, energy_j: f64) -> bool {
        let ended = step >= self.window_end;
        if ended {
            let mean = (energy_j - self.window_start_j) / (self.period as f64 * STEP_S);
            self.pending.push_back((step + self.lag, mean));
            self.window_start_j = energy_j;
            self.window_end += self.period;
        }
        while let Some((_, mean)) = self.pending.pop_front_if(|(at, _)| *at <= step) {
            self.show(mean);
            self.refreshed_at = at_step(step);
        }
        ended
    }

    fn show(&mut self, watts: f64) {
        let error = f64::from(self.spec.noise_ppm) * 1e-6 * self.rng.normal();
        let exact = Watts::from_f64(watts * (1.0 + error)).unwrap_or(Watts::ZERO);
        let quantum = self.spec.quantum.milli().max(1);
        let rounded = (exact.milli() + quantum / 2).div_euclid(quantum) * quantum;
        self.shown = Watts::from_milli(rounded).at_least_zero();
    }

    pub(super) fn reading(&self) -> (Watts, Instant) {
        (self.shown, self.refreshed_at)
    }
}
