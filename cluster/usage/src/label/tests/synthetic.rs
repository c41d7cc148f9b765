//! The synthetic series of the golden table.

use ballast_types::SplitMix64;

use super::{DAY, HALF_HOURS};

pub(super) struct Draw(SplitMix64);

impl Draw {
    pub(super) fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d)))
    }

    /// Between 0 and 1.
    pub(super) fn share(&mut self) -> f64 {
        ((self.0.draw() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Standard normal.
    pub(super) fn normal(&mut self) -> f64 {
        let angle = core::f64::consts::TAU * self.share();
        (-2.0 * libm::log(self.share())).sqrt() * libm::cos(angle)
    }
}

/// One draw of a row.
pub(super) fn series(kind: &str, draw: &mut Draw) -> [f64; HALF_HOURS] {
    let wave = |i: usize, hours: f64| libm::sin(core::f64::consts::TAU * i as f64 / (2.0 * hours));
    let mut walk = 30.0;
    let random_day = (draw.share() * 5.0) as usize;

    core::array::from_fn(|i| {
        let noise = draw.normal();
        let value = match kind {
            "white noise" => 30.0 + 8.0 * noise,
            "diurnal" => 30.0 + 15.0 * wave(i, 24.0) + 5.0 * noise,
            "weak diurnal" => 30.0 + 6.0 * wave(i, 24.0) + 8.0 * noise,
            "one of five days random" if i / DAY == random_day => 60.0 * draw.share(),
            "one of five days random" => 30.0 + 15.0 * wave(i, 24.0) + 4.0 * noise,
            "growth" => {
                let growth = 1.0 + 2.0 * i as f64 / (HALF_HOURS - 1) as f64;
                (30.0 + 15.0 * wave(i, 24.0)) * growth + 6.0 * noise
            }
            "8 h" => 30.0 + 15.0 * wave(i, 8.0) + 5.0 * noise,
            "4 h" => 30.0 + 15.0 * wave(i, 4.0) + 5.0 * noise,
            "1 h" => 30.0 + 15.0 * if i.is_multiple_of(2) { 1.0 } else { -1.0 } + 5.0 * noise,
            "6 h" => 30.0 + 15.0 * wave(i, 6.0) + 4.0 * noise,
            "12 h" => 30.0 + 15.0 * wave(i, 12.0) + 4.0 * noise,
            "nightly batch" if i % DAY < 4 => 60.0 + 5.0 * noise,
            "nightly batch" => 10.0 + 5.0 * noise,
            "random walk" => {
                walk += 1.0 * noise;
                walk
            }
            _ => 30.0,
        };

        value.clamp(0.0, 100.0)
    })
}
