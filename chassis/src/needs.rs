//! What one server needs, from its reports: with every low-priority core at its floor, and with all of
//! them free.
//!
//! A report's draw is older than its estimates of what can be shed or restored, because the meter lags. So a
//! draw goes with the estimates of a report from before it. CPU use is a mean over a second, so after a
//! change of load the estimates are off for as long; what counts is an order statistic of the last reports.
//!
//! What a server needs while its own hardware limits it cannot be seen. Then what was known stays, and
//! grows with what it is given, until the limit is lifted.

use std::collections::VecDeque;

use ballast_types::Watts;
use ballast_types::wire::Report;
use serde::{Deserialize, Serialize};

/// Reports that are kept: 2 s while alerting, 5 s of heartbeats in a calm chassis.
const KEPT: usize = 10;

/// Of a server with low-priority cores the median of those counts, and a rise that so many reports in a row
/// agree on (0.6 s).
const AGREE: usize = 3;

/// A meter shows after so long what throttling did.
const LAG_MS: u64 = 400;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// Its draw with every low-priority core at its floor.
    pub(crate) base: Watts,
    /// Its draw with nothing restricted; at least `base`.
    pub(crate) demand: Watts,
    /// The most that it lately drew.
    pub(crate) peak: Watts,
    /// Whether it has low-priority cores at all.
    pub(crate) sheds: bool,
}

/// The last reports of one server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Needs {
    /// Oldest first: base, demand and draw.
    observed: VecDeque<(Watts, Watts, Watts)>,
    /// What lately could be shed and restored, and when by the agent's clock.
    estimates: VecDeque<(u64, Watts, Watts)>,
    sheds: bool,
    /// The least base that was ever seen: it draws that idle, or less.
    lowest: Option<Watts>,
}

impl Needs {
    /// Takes a report. A draw that is missing, or more than `most`, makes the need unknown.
    pub(crate) fn take(&mut self, report: &Report, most: Watts) {
        let Some(power) = report.power_w.filter(|&w| w > Watts::ZERO && w <= most) else {
            self.estimates.clear();
            return self.observed.clear();
        };

        let sheds = report.low_cores > 0;
        if sheds != self.sheds {
            self.observed.clear();
            self.sheds = sheds;
        }

        if self.observed.len() == KEPT {
            self.observed.pop_front();
        }
        let within = |w: Watts| w.at_least_zero().min(most);
        let (sheddable, restorable) = (within(report.sheddable_w), within(report.restorable_w));
        let (shed, restore) = self.before(report.agent_ms, sheddable, restorable);
        let restore = if report.server_limit { restorable } else { restore };
        let mut base = (power - shed.max(sheddable)).at_least_zero();

        // Under its hardware limit a server draws less than it needs; where it draws more than was
        // known, it needs at least that.
        if report.server_limit {
            base = base.max(self.need().map_or(power, |n| n.base));
        }
        self.lowest = Some(self.lowest.map_or(base, |lowest| lowest.min(base)));
        self.observed.push_back((base, power + restore, power));
    }

    /// What could be shed and restored when the meter took the draw that is reported at `now_ms`.
    fn before(&mut self, now_ms: u64, shed: Watts, restore: Watts) -> (Watts, Watts) {
        if self.estimates.back().is_some_and(|&(ms, ..)| ms > now_ms) {
            self.estimates.clear();
        }
        self.estimates.push_back((now_ms, shed, restore));
        // The newest that is old enough stays in front.
        while self.estimates.get(1).is_some_and(|&(ms, ..)| ms.saturating_add(LAG_MS) <= now_ms) {
            self.estimates.pop_front();
        }
        self.estimates.front().map_or((shed, restore), |&(_, shed, restore)| (shed, restore))
    }

    /// What it needs; `None` if that is not known.
    pub(crate) fn need(&self) -> Option<Need> {
        let high = |pick: fn(&(Watts, Watts, Watts)) -> Watts| {
            let mut values: Vec<_> = self.observed.iter().map(pick).collect();
            let newest = values.len().saturating_sub(AGREE);
            let agreed = values[newest..].iter().copied().min()?;
            values.sort_unstable_by(|a, b| b.cmp(a));
            let rank = if self.sheds { values.len() / 2 } else { 0 };
            values.get(rank).map(|&value| value.max(agreed))
        };
        let base = high(|s| s.0)?;
        let peak = self.observed.iter().map(|s| s.2).max()?;
        Some(Need { base, demand: high(|s| s.1)?.max(base), peak, sheds: self.sheds })
    }

    /// Whether it has low-priority cores, as far as is known.
    pub(crate) fn may_shed(&self) -> bool {
        self.observed.is_empty() || self.sheds
    }

    /// The least that it needs; zero before the first report.
    pub(crate) fn lowest(&self) -> Watts {
        self.lowest.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ballast_types::wire::AgentState;
    use ballast_types::{BootId, Epoch, Seq, ServerId};

    const W: fn(i64) -> Watts = Watts::from_whole;
    const MAX: Watts = Watts::from_whole(1000);

    fn report(power: Option<i64>, shed: i64, restore: i64, low_cores: u16) -> Report {
        Report {
            epoch_obeyed: Epoch(1),
            seq_obeyed: Seq(1),
            state: AgentState::Uncapped,
            power_w: power.map(W),
            sheddable_w: W(shed),
            restorable_w: W(restore),
            low_cores,
            ..Report::blank(ServerId::new("s").unwrap(), BootId::new("b").unwrap())
        }
    }
    fn need(base: i64, demand: i64, sheds: bool) -> Option<(Watts, Watts, bool)> {
        Some((W(base), W(demand), sheds))
    }
    fn observed(n: &Needs) -> Option<(Watts, Watts, bool)> {
        n.need().map(|n| (n.base, n.demand, n.sheds))
    }

    /// The `k`-th report of an agent that is polled every 200 ms.
    fn nth(k: u64, report: Report) -> Report {
        Report { agent_ms: 200 * k, ..report }
    }

    #[test]
    fn a_draw_goes_with_the_estimates_from_before_it() {
        let mut n = Needs::default();
        assert_eq!(observed(&n), None);
        for k in 0..60 {
            let r = match k {
                0..24 => report(Some(230), 70, 0, 24),
                24..26 => report(Some(230), 0, 70, 24), // the meter lags
                _ => report(Some(160), 0, 70, 24),
            };
            n.take(&nth(k, r), MAX);
            assert_eq!(observed(&n), need(160, 230, true), "report {k}");
        }
    }

    #[test]
    fn a_rise_is_believed_once_three_reports_agree_and_a_fall_by_the_median() {
        let mut n = Needs::default();
        let mut take = |k, watts| {
            n.take(&nth(k, report(Some(watts), 0, 0, 24)), MAX);
            n.need().map(|n| n.base)
        };
        (0..20).for_each(|k| assert_eq!(take(k, 160), Some(W(160))));
        assert_eq!(take(20, 190), Some(W(160)));
        assert_eq!(take(21, 190), Some(W(160)));
        assert_eq!(take(22, 190), Some(W(190)));
        (23..32).for_each(|k| assert_eq!(take(k, 190), Some(W(190))));
        (32..36).for_each(|k| assert_eq!(take(k, 150), Some(W(190))));
        assert_eq!((36..38).map(|k| take(k, 150)).last(), Some(Some(W(150))));
    }

    #[test]
    fn a_server_that_cannot_shed_needs_its_recent_peak() {
        let mut n = Needs::default();
        for watts in [200, 240, 210] {
            n.take(&report(Some(watts), 0, 0, 0), MAX);
        }
        assert_eq!(observed(&n), need(240, 240, false));
        // Its first batch VM: what was seen before says nothing.
        n.take(&report(Some(220), 50, 0, 6), MAX);
        assert_eq!(observed(&n), need(170, 220, true));
    }

    #[test]
    fn under_its_hardware_limit_a_server_needs_no_less() {
        for low_cores in [0, 24] {
            let mut n = Needs::default();
            n.take(&report(Some(240), 0, 0, low_cores), MAX);
            let limited = |watts| Report { server_limit: true, ..report(Some(watts), 0, 30, low_cores) };
            for _ in 0..2 * KEPT {
                n.take(&limited(200), MAX);
            }
            assert_eq!(n.need().map(|n| n.base), Some(W(240)));
            for _ in 0..=KEPT / 2 {
                n.take(&limited(250), MAX);
            }
            assert_eq!(n.need().map(|n| n.base), Some(W(250)));
        }
    }

    #[test]
    fn what_cannot_be_a_draw_makes_the_need_unknown() {
        for bad in [None, Some(0), Some(-5), Some(1001)] {
            let mut n = Needs::default();
            n.take(&report(Some(200), 0, 0, 0), MAX);
            n.take(&report(bad, 0, 0, 0), MAX);
            assert_eq!(observed(&n), None, "{bad:?}");
        }
        let mut n = Needs::default();
        n.take(&report(Some(200), i64::MAX / 1000, i64::MIN / 1000, 6), MAX);
        assert_eq!(observed(&n), need(0, 200, true), "implausible estimates stay within bounds");
    }
}
