//! One cap for every server instead of a chassis manager: what the agents are told, again and again.

use ballast_types::wire::{Alert, Level, Report};
use ballast_types::{ChassisId, Epoch, Seq, Watts};

/// Longer than any two messages are apart, so that the lease never ends.
const VALID_FOR_MS: u64 = 2000;

/// Where the draw is kept in a capping event: under the limit by what flickers above a mean, for the share of
/// time that the operator allows, and by 1 % at least.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetPoint {
    /// So many standard deviations of the flicker lie between the set point and the limit: the normal
    /// quantile of the share of time above it.
    sigmas: f64,
}

impl SetPoint {
    /// At most this share of the limit, in parts per million.
    const MAX_PPM: u32 = 990_000;

    /// For this share of 100 ms means above the limit, in parts per million.
    pub(crate) fn new(above_share_ppm: u32) -> Self {
        Self { sigmas: normal_quantile(f64::from(above_share_ppm) / 1e6) }
    }

    /// Under this limit, with 100 ms means that deviate by `flicker_w` watts from their mean.
    pub(crate) fn under(&self, limit: Watts, flicker_w: f64) -> Watts {
        let flicker = Watts::from_f64(self.sigmas * flicker_w).unwrap_or_default();
        limit.ppm(Self::MAX_PPM).min(limit - flicker)
    }
}

#[derive(Debug)]
pub(crate) struct FixedCap {
    chassis_id: ChassisId,
    watts: Watts,
    /// Tells the margin that a chassis of that one server would keep; `None` to leave it to the agent.
    set_point: Option<SetPoint>,
    seq: u64,
    /// The newest report of every server.
    heard: Vec<Option<Report>>,
}

impl FixedCap {
    pub(crate) fn new(
        chassis_id: ChassisId,
        watts: Watts,
        set_point: Option<SetPoint>,
        servers: usize,
    ) -> Self {
        Self { chassis_id, watts, set_point, seq: 0, heard: vec![None; servers] }
    }

    pub(crate) fn heard(&mut self, server: usize, report: Report) {
        if let Some(heard) = self.heard.get_mut(server) {
            *heard = Some(report);
        }
    }

    fn margin(&self, heard: Option<&Report>) -> Option<Watts> {
        let flicker_w = heard.and_then(|report| report.flicker_w).map_or(0.0, Watts::as_f64);
        Some(self.watts - self.set_point?.under(self.watts, flicker_w))
    }

    /// The next message for every server.
    pub(crate) fn round(&mut self) -> Vec<(usize, Alert)> {
        self.seq += 1;
        let alert = |(server, heard): (usize, &Option<Report>)| {
            let alert = Alert {
                level: Level::Cap,
                echo_boot_id: heard.as_ref().map(|report| report.boot_id.clone()),
                echo_agent_ms: heard.as_ref().map(|report| report.agent_ms),
                chassis_limit_w: self.heard.iter().map(|_| self.watts).sum(),
                cap_w: Some(self.watts),
                margin_w: self.margin(heard.as_ref()),
                fallback_w: self.watts,
                valid_for_ms: VALID_FOR_MS,
                ..Alert::watch(self.chassis_id.clone(), Epoch(1), Seq(self.seq))
            };
            (server, alert)
        };
        self.heard.iter().enumerate().map(alert).collect()
    }
}

/// How many standard deviations lie beyond the mean where a normal value lies with probability `above`;
/// within 0 and 6.
fn normal_quantile(above: f64) -> f64 {
    let (mut low, mut high) = (0.0, 6.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if 0.5 * libm::erfc(middle / core::f64::consts::SQRT_2) > above {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (above, sigmas) in [(0.5, 0.0), (0.1, 1.2816), (0.01, 2.3263), (0.001, 3.0902)] {
            assert!((normal_quantile(above) - sigmas).abs() < 1e-3, "{above}");
        }
        assert!(normal_quantile(0.0) <= 6.0 && normal_quantile(f64::NAN).is_finite());
    }
}
