//! Recovery by a model learnt on line: the p-states that just fit, a window at a time.
//!
//! ```text
//!   meter (right, late) ──┐
//!                         ├─ fusion ──▶ draw now ──┐
//!   RAPL (prompt) ────────┘               │        ├─▶ rest ──▶ forecast ──▶ room for low cores
//!   CPU use per core ──▶ model ──▶ curve ─┴────────┘                │              │
//!                                                     miss ──▶ margin      climb that just fits
//! ```
//! Every window of RAPL and CPU use says what the server draws now and how much of that is the
//! low-priority cores'. What remains, the rest, is not ours to lower: its forecast, and a margin as wide
//! as forecasts have lately missed, is taken off the cap, and the low-priority cores get the highest
//! p-states whose draw fits in what is left. The p-states move only when the draw leaves a band around
//! that margin, so that flicker alone seldom moves a core.
//!
//! Without a line between RAPL and the meter that can be believed, or without fresh windows, this steps
//! aside for the paper's steps, and says why.

mod forecast;

use core::time::Duration;

use ballast_types::wire::RecoveryStatus;
use ballast_types::{Instant, Watts};

use crate::agent::Agent;
use crate::fusion::{Fusion, Line};
use crate::meter::{Sample, plausible};
use crate::state::State;
use crate::{Fast, Params, Policy};
use forecast::Forecast;

/// Windows older than this many periods are stale.
const STALE: u32 = 4;
/// The curve follows within so many windows (1 s), and learns its slope over 30 s.
const CURVE_OVER: (f64, f64) = (20.0, 600.0);
/// Movement of 5 W says as much of the slope as the model does.
const CURVE_PRIOR: f64 = 25.0;
/// Lower when less than this part of the margin is left.
const LOW: f64 = 0.6;
/// Raise when more than this many margins are left.
const HIGH: f64 = 1.6;
/// No margin is less than this share of the cap.
const LEAST_MARGIN: f64 = 0.01;
/// Meter readings above the cap in a row after which the model steps aside: the meter is right.
const OVER_RUN: u8 = 4;
/// And for how long.
const ASIDE: Duration = Duration::from_secs(5);

/// The model, and whether it may act.
#[derive(Clone, Debug)]
pub(crate) struct Predictive {
    period: Duration,
    sigmas: f64,
    fusion: Fusion,
    curve: Line,
    forecast: Forecast,
    /// The end of the newest window.
    newest: Option<Instant>,
    /// The server's draw in it, in watts.
    draw: f64,
    over_run: u8,
    aside_until: Option<Instant>,
}

/// What one window says.
#[derive(Clone, Copy, Debug)]
struct View {
    /// What the low-priority cores may draw with a whole margin left, in the model's watts.
    room: f64,
    /// The margin, likewise.
    margin: f64,
    /// What they draw at their present p-states, likewise.
    low: f64,
}

impl Predictive {
    pub(crate) fn new(params: &Params) -> Self {
        let lag = params.settle.saturating_sub(params.sample_period);
        Self {
            period: params.fast_period,
            sigmas: params.margin_sigmas,
            fusion: Fusion::new(lag, params.sample_period),
            curve: Line::new(CURVE_OVER.0, CURVE_OVER.1, CURVE_PRIOR),
            forecast: Forecast::default(),
            newest: None,
            draw: 0.0,
            over_run: 0,
            aside_until: None,
        }
    }

    /// Why the model does not act, if it does not.
    fn doubt(&self, now: Instant) -> Option<&'static str> {
        match self.newest {
            None => return Some("no RAPL readings"),
            Some(at) if now.since(at) > self.period.saturating_mul(STALE) => {
                return Some("RAPL readings are stale");
            }
            Some(_) => {}
        }
        if self.aside_until.is_some_and(|until| now < until) {
            return Some("the meter showed more than the cap for too long");
        }
        self.fusion.doubt()
    }

    /// The margin in watts.
    fn margin_w(&self, cap: Watts) -> f64 {
        let (miss, bias) = (self.forecast.miss_w(), self.fusion.bias_w());
        let spread = self.sigmas * (miss * miss + bias * bias).sqrt();
        spread.max(LEAST_MARGIN * cap.as_f64())
    }

    /// A meter reading: what the line is learnt from, and the last word on whether it is right.
    fn meter(&mut self, now: Instant, sample: Sample, over: bool) {
        self.fusion.meter(sample);
        self.over_run = if over { self.over_run.saturating_add(1) } else { 0 };
        if self.over_run >= OVER_RUN {
            self.over_run = 0;
            self.aside_until = Some(now + ASIDE);
        }
    }
}

impl Agent {
    /// Whether the model chooses the p-states now.
    pub(crate) fn predicts(&self, now: Instant) -> bool {
        self.params.policy == Policy::Predictive && self.doubt(now).is_none()
    }

    /// Why the model does not act, if it does not.
    ///
    /// It keeps the draw just under the cap, so it asks for a cap that the chassis stands by: when the
    /// lease has ended, what the fallback leaves for others is an old guess, and slow steps are safer.
    fn doubt(&self, now: Instant) -> Option<&'static str> {
        let leased = self.orders.lease_end().is_some() || self.cap.is_none();
        self.predictive.doubt(now).or((!leased).then_some("no live lease from the chassis"))
    }

    /// Whether the newest window shows more than a margin under `cap`; `None` while the model is doubted.
    pub(crate) fn predicts_over(&self, now: Instant, cap: Watts) -> Option<bool> {
        let model = &self.predictive;
        self.predicts(now).then(|| model.draw + model.margin_w(cap) > cap.as_f64())
    }

    /// A meter reading, for the model.
    pub(crate) fn predictive_meter(&mut self, now: Instant, sample: Sample) {
        if self.params.policy != Policy::Predictive {
            return;
        }
        let floored = self.throttle.all_floored();
        let over = self.acting_cap().is_some_and(|cap| sample.watts > cap && !floored);
        self.predictive.meter(now, sample, over);
    }

    /// A window of RAPL and CPU use.
    pub(crate) fn fast(&mut self, now: Instant, fast: &Fast) {
        if self.params.policy != Policy::Predictive {
            return;
        }
        let Fast { from, to, rapl_w, ref usage } = *fast;
        let (to, length) = (to.min(now), to.since(from));
        let known = self.predictive.newest;
        let timely = !length.is_zero() && length <= self.predictive.period.saturating_mul(STALE);
        if !plausible(rapl_w) || !timely || known.is_some_and(|newest| to <= newest) {
            return;
        }
        // A core whose use is not known could be anything.
        if !self.fleet.take_fast(usage) {
            return;
        }
        let rapl = rapl_w.as_f64();
        self.predictive.newest = Some(to);
        self.predictive.fusion.window(from, to, rapl);
        // Cores that were moved within the window drew two things in it.
        if self.changed_at.is_some_and(|at| at > from + length / 4) {
            return;
        }
        let low = self.estimate.drawn_low(&self.throttle, &self.fleet);
        let all = self.estimate.drawn_all(&self.throttle, &self.fleet);
        let model = &mut self.predictive;
        if model.fusion.doubt().is_some() {
            return;
        }
        let draw = model.fusion.draw(rapl);
        model.draw = draw;
        model.curve.add(all, draw);
        let scale = model.curve.slope();
        model.forecast.add(draw - scale * low);
        if let Some(cap) = self.acting_cap()
            && self.predicts(now)
        {
            let margin = self.predictive.margin_w(cap);
            let room = cap.as_f64() - self.predictive.forecast.level_w() - margin;
            self.fit(now, View { room: room / scale, margin: margin / scale, low });
        }
    }

    /// The p-states that just fit, if the draw has left the band.
    fn fit(&mut self, now: Instant, view: View) {
        let View { room, margin, low } = view;
        let down = low > room + (1.0 - LOW) * margin;
        let up = low < room - (HIGH - 1.0) * margin
            && self.throttle.any_restricted()
            && !self.orders.emergency(now);
        let free = matches!(
            self.state,
            State::Uncapped | State::Throttled { .. } | State::Recovering { .. }
        );
        if !free || !(down || up) {
            return;
        }
        let height = self.throttle.highest_fit(room, |core, level| {
            self.estimate.core_w(&self.throttle, &self.fleet, core, level)
        });
        // Downward the watts count, not the height: steps may have left the cores uneven.
        if up && height <= self.throttle.height() {
            return;
        }
        self.throttle.climb_to(height);
        self.write(now, None);
        self.episode.model_took_over();
        let to = match self.state {
            _ if !self.throttle.all_floored() => State::Recovering { over_run: 0 },
            State::Throttled { .. } => return,
            _ => State::Throttled { over_since: None, probation: false },
        };
        self.go(now, to, "the p-states that fit by the model");
    }

    /// The model as operators see it; `None` under another policy.
    pub(crate) fn recovery_status(&self, now: Instant) -> Option<RecoveryStatus> {
        if self.params.policy != Policy::Predictive {
            return None;
        }
        let model = &self.predictive;
        let doubt = self.doubt(now);
        let watts = |w: f64| Watts::from_f64(w).unwrap_or(Watts::ZERO);
        Some(RecoveryStatus {
            in_force: if doubt.is_none() { Policy::Predictive } else { Policy::Stepwise }
                .name()
                .to_owned(),
            doubt: doubt.map(str::to_owned),
            error_w: watts(model.fusion.error_w()),
            margin_w: watts(self.cap.map_or(0.0, |cap| model.margin_w(cap))),
            scale: model.curve.slope(),
        })
    }
}
