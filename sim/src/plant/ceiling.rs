//! A limit that hardware keeps by itself: one ceiling over the frequency of many cores.

use super::STEP_S;

/// No lower than this share of the highest frequency: 800 MHz on a 2.4 GHz part.
const LOWEST: f64 = 1.0 / 3.0;
/// Above this share it is off.
const OFF: f64 = 0.998;

/// A first-order regulator of one frequency ceiling.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ceiling {
    /// The ceiling as a share of the highest frequency; 1 is off.
    pub(super) share: f64,
    /// What it moves by in a step, as a share of what is left to its target.
    gain: f64,
}

impl Ceiling {
    pub(super) const fn new(tau_s: f64) -> Self {
        Self { share: 1.0, gain: (STEP_S / tau_s).min(1.0) }
    }

    pub(super) fn is_off(&self) -> bool {
        self.share >= 1.0
    }

    /// Moves it by one step.
    ///
    /// `dynamic_w` is drawn now by the cores it holds and `room_w` is what they may draw, if there is a
    /// limit; `top` is the highest share that any of them runs at, `root` one over the power model's exponent.
    pub(super) fn step(&mut self, dynamic_w: f64, room_w: Option<f64>, top: f64, root: f64) {
        let target = match room_w {
            None if self.is_off() => return,
            None => 1.0,
            Some(room) if self.is_off() && dynamic_w <= room => return,
            Some(room) => {
                let ratio = (room / dynamic_w.max(1e-9)).clamp(0.0, 4.0);
                let base = self.share.min(top);
                self.share = base;
                (base * libm::pow(ratio, root)).clamp(LOWEST, 1.0)
            }
        };
        self.share += (target - self.share) * self.gain;
        if target >= 1.0 && self.share > OFF {
            self.share = 1.0;
        }
    }
}
