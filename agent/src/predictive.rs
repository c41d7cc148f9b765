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

use ballast_types::{Instant, Watts};
use serde::{Deserialize, Serialize};

use crate::fusion::{Fusion, Regression};
use crate::meter::{Sample, plausible};
use crate::recent::Recent;
use crate::{Fast, Params, Tuning};
use centre::Centre;
use flicker::Flicker;
use forecast::Forecast;

/// Windows older than this many periods are stale.
const STALE: u32 = 4;
/// The curve follows within so many windows (1 s), and learns its slope over 30 s.
const CURVE_OVER: (f64, f64) = (20.0, 600.0);
/// Movement of 5 W says as much of the slope as the model does.
const CURVE_PRIOR: f64 = 25.0;
/// The model, and whether it may act.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Predictive {
    tuning: Tuning,
    period: Duration,
    sigmas: f64,
    fusion: Fusion,
    curve: Regression,
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

/// Where the low-priority cores should be, in the model's watts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// What they may draw.
    pub(crate) watts: f64,
    /// Lower them when they draw so much more.
    pub(crate) above: f64,
    /// Raise them when they draw so much less.
    pub(crate) below: f64,
}

impl Room {
    fn new(tuning: &Tuning, watts: f64, band: f64) -> Self {
        Self { watts, above: tuning.above * band, below: tuning.below * band }
    }
}

/// A window of RAPL that says something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    from: Instant,
    to: Instant,
    length: Duration,
    rapl: f64,
}

impl Span {
    /// Whether cores that were moved at `at` drew two things in it.
    pub(crate) fn is_mixed(&self, at: Instant) -> bool {
        at > self.from + self.length / 4
    }
}

impl Predictive {
    pub(crate) fn new(params: &Params, tuning: Tuning) -> Self {
        let lag = params.settle.saturating_sub(params.sample_period);
        Self {
            tuning,
            period: params.fast_period,
            sigmas: params.margin_sigmas,
            fusion: Fusion::new(lag, params.sample_period),
            curve: Regression::new(CURVE_OVER.0, CURVE_OVER.1, CURVE_PRIOR),
            forecast: Forecast::new(tuning),
            flicker: Flicker::default(),
            centre: Centre::new(tuning.centre_windows),
            newest: None,
            draw: 0.0,
            over_run: 0,
            excess: Recent::default(),
            aside_until: None,
            trusted: false,
        }
    }

    /// Why the model does not act, if it does not.
    pub(crate) fn doubt(&self, now: Instant) -> Option<&'static str> {
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
    fn aim(&self, cap: Watts, margin: Option<Watts>) -> Aim {
        let (miss, bias) = (self.forecast.miss_w(), self.fusion.bias_w());
        let spread = self.sigmas * (miss * miss + bias * bias).sqrt();
        let own = spread.max(self.tuning.min_margin * cap.as_f64());
        Aim { margin: margin.map_or(own, Watts::as_f64), band: own }
    }

    /// A meter reading under a cap: what the regression is learnt from, and the last word on whether it is right.
    ///
    /// Around a margin that the chassis says half of the readings may be above the cap: then the mean counts.
    pub(crate) fn meter(&mut self, now: Instant, sample: Sample, cap: Option<Watts>, has_margin: bool) {
        self.fusion.meter(sample);
        let Some(cap) = cap else {
            self.excess.clear();
            self.over_run = 0;
            return;
        };
        self.excess.push(now, sample.watts - cap);
        let over = if has_margin {
            self.excess.mean().is_some_and(|mean| mean > self.tuning.noise(cap))
        } else {
            sample.watts > cap
        };
        self.over_run = if over { self.over_run.saturating_add(1) } else { 0 };
        if self.over_run >= self.tuning.doubt_run {
            self.over_run = 0;
            self.aside_until = Some(now + self.tuning.aside);
        }
    }

    /// How far the draw flickers, if that is seen.
    pub(crate) fn flicker_w(&self, now: Instant) -> Option<Watts> {
        let seen = self.newest.is_some_and(|at| now.since(at) <= self.period.saturating_mul(STALE));
        self.flicker.rms_w().filter(|_| seen).and_then(Watts::from_f64)
    }

    /// Whether the newest window shows more than its aim under `cap`.
    pub(crate) fn is_over(&self, cap: Watts, margin: Option<Watts>) -> bool {
        let aim = self.aim(cap, margin);
        // Where the mean counts, one window above it says nothing.
        let band = if margin.is_some() { self.tuning.above * aim.band } else { 0.0 };
        self.draw + aim.margin > cap.as_f64() + band
    }

    /// What a window says, if it is plausible, newer and not too long.
    pub(crate) fn span(&self, now: Instant, fast: &Fast) -> Option<Span> {
        let (from, to) = (fast.from, fast.to.min(now));
        let length = to.since(from);
        let timely = !length.is_zero() && length <= self.period.saturating_mul(STALE);
        let newer = self.newest.is_none_or(|newest| to > newest);
        let rapl = fast.rapl_w.as_f64();
        (plausible(fast.rapl_w) && timely && newer).then_some(Span { from, to, length, rapl })
    }

    /// Takes a window in which cores were moved.
    pub(crate) fn mixed(&mut self, span: Span) {
        self.see(span);
        self.flicker.moved();
        self.centre.restart();
    }

    /// Takes a window, with what the model says that the low-priority cores, and all of them, drew in it;
    /// whether the regression is believed.
    pub(crate) fn window(&mut self, span: Span, low: f64, all: f64) -> bool {
        self.see(span);
        if self.fusion.doubt().is_some() {
            return false;
        }
        self.draw = self.fusion.draw(span.rapl);
        self.flicker.add(span.length, self.draw);
        self.curve.add(all, self.draw);
        self.forecast.add(self.draw - self.curve.slope() * low);
        true
    }

    fn see(&mut self, span: Span) {
        self.newest = Some(span.to);
        self.fusion.window(span.from, span.to, span.rapl);
    }

    /// Where the cores should be by the newest window; from now on it is worth a word if the model is doubted.
    pub(crate) fn room(&mut self, cap: Watts, margin: Option<Watts>) -> Room {
        self.trusted = true;
        let (scale, aim) = (self.curve.slope(), self.aim(cap, margin));
        let room = (cap.as_f64() - aim.margin - self.forecast.level_w()) / scale;
        // Where the mean counts, a window says less of it.
        let wider = if margin.is_some() { self.tuning.window } else { 1.0 };
        Room::new(&self.tuning, room, wider * aim.band / scale)
    }

    /// Where the mean counts, every two seconds: where the cores should be that have drawn `low` watts.
    pub(crate) fn centre(&mut self, cap: Watts, margin: Watts, low: f64) -> Option<Room> {
        let (scale, aim) = (self.curve.slope(), self.aim(cap, Some(margin)));
        let draw = self.centre.add(self.draw)?;
        let off = (cap.as_f64() - aim.margin - draw) / scale;
        Some(Room::new(&self.tuning, low + off, self.tuning.centred * aim.band / scale))
    }

    /// Whether it has acted in this run.
    pub(crate) fn was_trusted(&self) -> bool {
        self.trusted
    }

    /// How far under the cap the draw is kept, in watts.
    pub(crate) fn margin_w(&self, cap: Watts, margin: Option<Watts>) -> f64 {
        self.aim(cap, margin).margin
    }

    /// What the regression from RAPL to the meter lately missed the meter by, in watts.
    pub(crate) fn error_w(&self) -> f64 {
        self.fusion.error_w()
    }

    /// Watts that a modelled watt really is.
    pub(crate) fn scale(&self) -> f64 {
        self.curve.slope()
    }
}
