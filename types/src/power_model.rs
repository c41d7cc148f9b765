use serde::{Deserialize, Serialize};

use crate::Watts;

/// The power of one server as a function of utilisation and frequency.
///
/// `P = idle + slope·f̄ + dynamic · Σ_cores u·f^a / cores`, with `u` and `f` in 0..=1, `f` as a share of
/// the highest frequency and `f̄` its mean. With the paper's server (112 W idle, 310 W at full load,
/// 111–169 W at half frequency) this is `110 + 2f + 198·u·f^1.771`, exact at both measured curves.
///
/// Source: Kumbhare et al., arXiv 2010.15388, Section IV-A.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerModel {
    /// Idle draw at the highest frequency, in watts.
    pub idle_w: f64,
    /// Draw at full load and the highest frequency, in watts.
    pub full_w: f64,
    /// Idle draw at half of the highest frequency, in watts.
    pub half_idle_w: f64,
    /// Draw at full load and half of the highest frequency, in watts.
    pub half_full_w: f64,
}

impl PowerModel {
    /// The paper's server: 2 sockets of 20 cores.
    pub const PAPER: Self = Self { idle_w: 112.0, full_w: 310.0, half_idle_w: 111.0, half_full_w: 169.0 };

    /// A first guess where only the draw at the highest frequency is known: half frequency takes off what it
    /// takes off the paper's server, in proportion.
    pub fn in_proportion(idle_w: f64, full_w: f64) -> Self {
        let half_idle_w = idle_w * Self::PAPER.half_idle_w / Self::PAPER.idle_w;
        let kept = (Self::PAPER.half_full_w - Self::PAPER.half_idle_w) / Self::PAPER.dynamic_w();
        Self { idle_w, full_w, half_idle_w, half_full_w: half_idle_w + (full_w - idle_w) * kept }
    }

    /// Says what is wrong with these watts, if anything.
    ///
    /// # Errors
    /// Names the first relation that does not hold.
    pub fn check(&self) -> Result<(), &'static str> {
        let all = [self.idle_w, self.full_w, self.half_idle_w, self.half_full_w];
        if !all.iter().all(|w| w.is_finite() && *w > 0.0 && *w <= 1e6) {
            return Err("every power must be above 0 and at most 1e6 W");
        }
        if self.full_w <= self.idle_w || self.half_full_w <= self.half_idle_w {
            return Err("full load must draw more than idle");
        }
        if self.half_idle_w > self.idle_w || self.half_full_w - self.half_idle_w >= self.full_w - self.idle_w
        {
            return Err("half frequency must draw less than full frequency");
        }
        Ok(())
    }

    /// Dynamic power at full load and the highest frequency, in watts.
    pub fn dynamic_w(&self) -> f64 {
        self.full_w - self.idle_w
    }

    /// The exponent `a` of `f^a`: 1.771 for the paper's server.
    pub fn exponent(&self) -> f64 {
        libm::log2(self.dynamic_w() / (self.half_full_w - self.half_idle_w))
    }

    /// Watts that do not depend on load, for a mean frequency share `mean_f`.
    pub fn static_w(&self, mean_f: f64) -> f64 {
        let slope = 2.0 * (self.idle_w - self.half_idle_w);
        self.idle_w - slope * (1.0 - mean_f)
    }

    /// `f^a`: what is left of dynamic power at frequency share `f`.
    pub fn scale(&self, f: f64) -> f64 {
        libm::pow(f, self.exponent())
    }

    /// The whole server at one utilisation and one frequency share.
    pub fn power(&self, u: f64, f: f64) -> Watts {
        Watts::from_f64(self.static_w(f) + self.dynamic_w() * u * self.scale(f)).unwrap_or(Watts::ZERO)
    }

    /// The utilisation that makes the whole server draw `power` at frequency share `f`.
    ///
    /// Outside 0..=1 where no utilisation does: the caller clamps and counts.
    pub fn utilisation(&self, power: Watts, f: f64) -> f64 {
        (power.as_f64() - self.static_w(f)) / (self.dynamic_w() * self.scale(f))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_measured_curves_of_the_paper_are_met_exactly() {
        let m = PowerModel::PAPER;
        for (u, f, w) in [(0.0, 1.0, 112), (1.0, 1.0, 310), (0.0, 0.5, 111), (1.0, 0.5, 169)] {
            assert_eq!(m.power(u, f), Watts::from_whole(w), "u {u} f {f}");
        }
        assert!((m.exponent() - 1.771).abs() < 5e-4);
        // The golden value of papers-spec A5 at three quarters: 118.9 W of dynamic power.
        assert!((m.dynamic_w() * m.scale(0.75) - 118.9).abs() < 0.1);
    }

    #[test]
    fn utilisation_inverts_power() {
        let m = PowerModel::PAPER;
        for u in [0.0, 0.25, 0.7, 1.0] {
            for f in [0.5, 0.75, 1.0] {
                assert!((m.utilisation(m.power(u, f), f) - u).abs() < 1e-4);
            }
        }
    }

    #[test]
    fn a_first_guess_of_the_papers_server_is_the_papers_server() {
        let guess = PowerModel::in_proportion(112.0, 310.0);
        assert_eq!(guess.half_idle_w, 111.0);
        assert!((guess.half_full_w - 169.0).abs() < 1e-9);
        let double = PowerModel::in_proportion(224.0, 620.0);
        assert!((double.exponent() - guess.exponent()).abs() < 1e-9);
    }

    #[test]
    fn impossible_servers_are_refused() {
        assert!(PowerModel::PAPER.check().is_ok());
        assert!(PowerModel { full_w: 100.0, ..PowerModel::PAPER }.check().is_err());
        assert!(PowerModel { half_full_w: 400.0, ..PowerModel::PAPER }.check().is_err());
        assert!(PowerModel { idle_w: f64::NAN, ..PowerModel::PAPER }.check().is_err());
    }
}
