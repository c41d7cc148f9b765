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
//! Where the chassis says a margin, the breaker's is kept there, and none here: the *mean* draw is kept so
//! far under the cap, also where that is nothing at all, and the server flickers above.
//!
//! Without a line between RAPL and the meter that can be believed, or without fresh windows, this steps
//! aside for the paper's steps, and says why.

mod centre;
mod flicker;
mod forecast;

use core::time::Duration;

use ballast_types::wire::RecoveryStatus;
use ballast_types::{Instant, Watts};

use crate::agent::Agent;
use crate::fusion::{Fusion, Line};
use crate::meter::{Sample, plausible};
use crate::overdraw::noise;
use crate::recent::Recent;
use crate::state::State;
use crate::{Fast, Params, Policy};
use centre::Centre;
use flicker::Flicker;
use forecast::Forecast;

/// Windows older than this many periods are stale.
const STALE: u32 = 4;
/// The curve follows within so many windows (1 s), and learns its slope over 30 s.
const CURVE_OVER: (f64, f64) = (20.0, 600.0);
/// Movement of 5 W says as much of the slope as the model does.
const CURVE_PRIOR: f64 = 25.0;
/// Lower when the draw is this part of the band above where it should be.
const ABOVE: f64 = 0.4;
/// Raise when it is this part of the band below.
const BELOW: f64 = 0.6;
/// How much wider the band is for a single window, where the mean counts.
const WINDOW: f64 = 2.0;
/// The part of the band that the mean may be off after a while.
const CENTRED: f64 = 0.25;
/// No margin of its own, and no band, is less than this share of the cap.
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
    flicker: Flicker,
    centre: Centre,
    /// The end of the newest window.
    newest: Option<Instant>,
    /// The server's draw in it, in watts.
    draw: f64,
    over_run: u8,
    /// What the meter lately showed above the cap.
    excess: Recent,
    aside_until: Option<Instant>,
    /// It has acted in this run: that it does not any more is worth a word.
    trusted: bool,
}

/// Where the draw should be.
#[derive(Clone, Copy, Debug)]
struct Aim {
    /// So far under the cap, in watts.
    margin: f64,
    /// Around that nothing moves, likewise.
    band: f64,
}

/// What one window says, in the model's watts.
#[derive(Clone, Copy, Debug)]
struct View {
    /// What the low-priority cores may draw.
    room: f64,
    /// Around that nothing moves.
    band: f64,
    /// What they draw at their present p-states.
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
            flicker: Flicker::default(),
            centre: Centre::default(),
            newest: None,
            draw: 0.0,
            over_run: 0,
            excess: Recent::default(),
            aside_until: None,
            trusted: false,
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

    /// Where the draw should be under `cap`, with the margin that the chassis says.
    fn aim(&self, cap: Watts, told: Option<Watts>) -> Aim {
        let (miss, bias) = (self.forecast.miss_w(), self.fusion.bias_w());
        let spread = self.sigmas * (miss * miss + bias * bias).sqrt();
        let own = spread.max(LEAST_MARGIN * cap.as_f64());
        Aim { margin: told.map_or(own, Watts::as_f64), band: own }
    }

    /// A meter reading under a cap: what the line is learnt from, and the last word on whether it is right.
    ///
    /// Around a margin that the chassis says half of the readings may be above the cap: then the mean counts.
    fn meter(&mut self, now: Instant, sample: Sample, cap: Option<Watts>, told: bool) {
        self.fusion.meter(sample);
        let Some(cap) = cap else {
            self.excess.clear();
            self.over_run = 0;
            return;
        };
        self.excess.push(now, sample.watts - cap);
        let over = if told {
            self.excess.mean().is_some_and(|mean| mean > noise(cap))
        } else {
            sample.watts > cap
        };
        self.over_run = if over { self.over_run.saturating_add(1) } else { 0 };
        if self.over_run >= OVER_RUN {
            self.over_run = 0;
            self.aside_until = Some(now + ASIDE);
        }
    }

    /// How far the draw flickers, if that is seen.
    fn flicker_w(&self, now: Instant) -> Option<Watts> {
        let seen = self.newest.is_some_and(|at| now.since(at) <= self.period.saturating_mul(STALE));
        self.flicker.rms_w().filter(|_| seen).and_then(Watts::from_f64)
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
        let (model, told) = (&self.predictive, self.orders.margin());
        let aim = model.aim(cap, told);
        // Where the mean counts, one window above it says nothing.
        let band = if told.is_some() { ABOVE * aim.band } else { 0.0 };
        self.predicts(now).then(|| model.draw + aim.margin > cap.as_f64() + band)
    }

    /// A meter reading, for the model.
    pub(crate) fn predictive_meter(&mut self, now: Instant, sample: Sample) {
        if self.params.policy != Policy::Predictive {
            return;
        }
        let floored = self.throttle.all_floored();
        let cap = self.acting_cap().filter(|_| !floored);
        let told = self.orders.margin().is_some();
        self.predictive.meter(now, sample, cap, told);
    }

    /// How far the draw flickers, for the report.
    pub(crate) fn flicker_w(&self, now: Instant) -> Option<Watts> {
        self.predictive.flicker_w(now)
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
            self.predictive.flicker.moved();
            self.predictive.centre.restart();
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
        model.flicker.add(length, draw);
        model.curve.add(all, draw);
        model.forecast.add(draw - model.curve.slope() * low);
        if let Some(cap) = self.acting_cap()
            && self.predicts(now)
        {
            self.predictive.trusted = true;
            self.aim_at(now, cap, low);
        }
    }

    /// Moves the cores to where the draw should be, if it is not there.
    fn aim_at(&mut self, now: Instant, cap: Watts, low: f64) {
        let told = self.orders.margin();
        let model = &mut self.predictive;
        let (scale, aim) = (model.curve.slope(), model.aim(cap, told));
        let goal = cap.as_f64() - aim.margin;
        let room = (goal - model.forecast.level_w()) / scale;
        // Where the mean counts, a window says less of it.
        let band = if told.is_some() { WINDOW } else { 1.0 } * aim.band / scale;
        if self.fit(now, View { room, band, low }) || told.is_none() {
            return;
        }
        // Within the band, the mean is moved slowly to where it should be.
        let model = &mut self.predictive;
        if let Some(draw) = model.centre.add(model.draw) {
            let level = |core| self.throttle.level(core);
            let watts = |core| self.estimate.core_w(&self.throttle, &self.fleet, core, level(core));
            let low: f64 = self.throttle.throttled().map(watts).sum();
            let room = low + (goal - draw) / scale;
            self.fit(now, View { room, band: CENTRED * aim.band / scale, low });
        }
    }

    /// The p-states that just fit, if the draw has left the band; whether anything was moved.
    fn fit(&mut self, now: Instant, view: View) -> bool {
        let View { room, band, low } = view;
        let down = low > room + ABOVE * band;
        let up = low < room - BELOW * band
            && self.throttle.any_restricted()
            && !self.orders.emergency(now);
        let free = matches!(
            self.state,
            State::Uncapped | State::Throttled { .. } | State::Recovering { .. }
        );
        if !free || !(down || up) {
            return false;
        }
        let height = self.throttle.highest_fit(room, |core, level| {
            self.estimate.core_w(&self.throttle, &self.fleet, core, level)
        });
        let height = height.max(self.lowest_height());
        // Downward the watts count, not the height: steps may have left the cores uneven.
        if up && height <= self.throttle.height() {
            return false;
        }
        self.throttle.climb_to(height);
        self.write(now, None);
        self.episode.model_took_over();
        let to = match self.state {
            _ if !self.throttle.all_floored() => State::Recovering { over_run: 0 },
            State::Throttled { .. } => return true,
            _ => State::Throttled { over_since: None, probation: false },
        };
        self.go(now, to, "the p-states that fit by the model");
        true
    }

    /// The policy in force: without a model that is trusted, `predictive` is `stepwise`.
    pub(crate) fn policy_effective(&self, now: Instant) -> Policy {
        match self.params.policy {
            Policy::Predictive if self.doubt(now).is_some() => Policy::Stepwise,
            Policy::FullServer if self.params.floating() => Policy::Stepwise,
            policy => policy,
        }
    }

    /// A model that is doubted only after it has acted: before that the policy simply is `stepwise`.
    pub(crate) fn doubt_alarm(&self, now: Instant) -> Option<String> {
        let doubt = self.predictive.doubt(now).filter(|_| self.predictive.trusted)?;
        Some(format!("predictive is stepwise for now: {doubt}"))
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
            in_force: self.policy_effective(now).name().to_owned(),
            doubt: doubt.map(str::to_owned),
            error_w: watts(model.fusion.error_w()),
            margin_w: watts(
                self.cap.map_or(0.0, |cap| model.aim(cap, self.orders.margin()).margin),
            ),
            scale: model.curve.slope(),
        })
    }
}
