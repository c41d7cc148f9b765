//! The power supplies: who carries the load, and what it costs at the wall.

use ballast_types::{Instant, Watts};
use serde::{Deserialize, Serialize};

use super::sensor::Sensor;
use super::{STEP_S, SensorSpec, SupplySpec};
use crate::rng::{Purpose, Stream};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SupplyState {
    Active,
    /// Ready; draws a few watts and delivers nothing.
    Standby,
    Failed,
}

/// What a power supply's own meter shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SupplyReading {
    /// How it is; without lag.
    pub state: SupplyState,
    /// What it draws from its feed.
    pub input: Watts,
    pub output: Watts,
    pub refreshed_at: Instant,
}

#[derive(Clone, Debug)]
struct Supply {
    spec: SupplySpec,
    state: SupplyState,
    input_w: f64,
    output_w: f64,
    input_j: f64,
    output_j: f64,
    meters: Option<(Sensor, Sensor)>,
}

#[derive(Clone, Debug)]
pub(super) struct Supplies {
    all: Vec<Supply>,
    failed: Vec<bool>,
    /// At the input, in the current step.
    pub(super) input_w: f64,
    /// What the active ones can draw; infinite when there are no supplies at all.
    pub(super) rated_w: f64,
    /// The next step at which a meter wants to be told.
    due: u64,
}

impl Supplies {
    pub(super) fn new(specs: &[SupplySpec]) -> Self {
        let supply = |spec: &SupplySpec| Supply {
            spec: *spec,
            state: SupplyState::Active,
            input_w: 0.0,
            output_w: 0.0,
            input_j: 0.0,
            output_j: 0.0,
            meters: None,
        };

        let mut supplies = Self {
            all: specs.iter().map(supply).collect(),
            failed: vec![false; specs.len()],
            input_w: 0.0,
            rated_w: 0.0,
            due: 0,
        };

        supplies.assign();

        supplies
    }

    /// Attaches the meters, once the first step is known.
    pub(super) fn attach(&mut self, spec: SensorSpec, seed: u64) {
        for (n, s) in self.all.iter_mut().enumerate() {
            let stream = |purpose| Stream::new(seed, purpose, n as u64, 0);
            let input = Sensor::new(spec, stream(Purpose::SupplyInput), s.input_w);
            // Both values of one supply come from one chip: the same phase.
            let output = Sensor::in_step_with(&input, stream(Purpose::SupplyOutput), s.output_w);
            s.meters = Some((input, output));
        }
    }

    pub(super) fn fail(&mut self, supply: usize, failed: bool) {
        if let Some(slot) = self.failed.get_mut(supply) {
            *slot = failed;
            self.assign();
        }
    }

    /// Says who carries load: a standby supply wakes for each active one that fails.
    fn assign(&mut self) {
        let mut missing = 0;
        for (s, failed) in self.all.iter_mut().zip(&self.failed) {
            s.state = match (failed, s.spec.standby) {
                (true, _) => SupplyState::Failed,
                (false, true) => SupplyState::Standby,
                (false, false) => SupplyState::Active,
            };
            missing += usize::from(*failed && !s.spec.standby);
        }
        let standby = self.all.iter_mut().filter(|s| s.state == SupplyState::Standby);
        for s in standby.take(missing) {
            s.state = SupplyState::Active;
        }
        let active = self.all.iter().filter(|s| s.state == SupplyState::Active);
        let rated: f64 = active.map(|s| s.spec.rated.as_f64()).sum();
        self.rated_w = if self.all.is_empty() { f64::INFINITY } else { rated };
    }

    /// Shares `output_w` among the active ones by rating. With none left there is no draw at all.
    pub(super) fn step(&mut self, output_w: f64) {
        if self.all.is_empty() {
            self.input_w = output_w;
            return;
        }
        self.input_w = 0.0;
        for s in &mut self.all {
            (s.input_w, s.output_w) = match s.state {
                SupplyState::Active if self.rated_w > 0.0 => {
                    let output = output_w * s.spec.rated.as_f64() / self.rated_w;
                    (s.spec.input_w(output), output)
                }
                SupplyState::Standby => (s.spec.standby_draw.as_f64(), 0.0),
                SupplyState::Active | SupplyState::Failed => (0.0, 0.0),
            };
            self.input_w += s.input_w;
        }
    }

    /// Books the step that has passed, which ends at `step`.
    pub(super) fn book(&mut self, step: u64) {
        for s in &mut self.all {
            s.input_j += s.input_w * STEP_S;
            s.output_j += s.output_w * STEP_S;
        }
        if step < self.due {
            return;
        }
        self.due = u64::MAX;
        for s in &mut self.all {
            if let Some((input, output)) = &mut s.meters {
                input.tick(step, s.input_j);
                output.tick(step, s.output_j);
                self.due = self.due.min(input.due());
            }
        }
    }

    pub(super) fn reading(&self, supply: usize) -> Option<SupplyReading> {
        let s = self.all.get(supply)?;
        let (input, output) = s.meters.as_ref()?;
        let (input, refreshed_at) = input.reading();
        Some(SupplyReading { state: s.state, input, output: output.reading().0, refreshed_at })
    }
}
