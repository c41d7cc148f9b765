//! What a contender came to over the seeds.

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::Spread;
use crate::trial::Judged;

/// One contender under one limit. Values are medians over the seeds, some with their range; `_norm` is
/// against `none` of the same seed; power is true power.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Medians {
    /// How JSON keys about the limit begin: `over_cap` or `over_budget`.
    pub(crate) over: &'static str,
    /// P95 latency over the requests of all user-facing VMs.
    pub(crate) user_facing_p95_norm: Spread,
    /// Mean run time of the batch VMs, from when they begin in full.
    pub(crate) batch_runtime_norm: Spread,
    /// Lost batch run time less the oracle's, as a share of the run time without a limit.
    pub(crate) excess: f64,
    /// The highest draw of any 100 ms, in watts.
    pub(crate) max_power_w: f64,
    /// The mean draw, in watts; the calm at the start, if there is one, is part of it.
    pub(crate) mean_power_w: f64,
    /// The longest stretch above the limit, by means over 100 ms, in seconds.
    pub(crate) over_s_max: Spread,
    /// The share of the time above the limit, by means over 100 ms.
    pub(crate) over_fraction: Spread,
    /// The same by the plant's own steps of 10 ms.
    pub(crate) over_fraction_10ms: f64,
    /// Core-seconds that user-facing cores were held down, by any cause.
    pub(crate) user_facing_throttled_core_s: f64,
    /// P-state changes of a batch core in a minute, as a mean over them.
    pub(crate) pstate_changes_per_core_min: f64,
    /// Seconds in which some server's own hardware limit was on beside its agent.
    pub(crate) server_limit_s: f64,
    pub(crate) seeds: usize,
}

impl Medians {
    pub(crate) fn of(over_key: &'static str, seeds: &[Judged<'_>]) -> Self {
        let over = |f: fn(&Judged<'_>) -> f64| Spread::of(seeds.iter().map(f));
        Self {
            over: over_key,
            user_facing_p95_norm: over(|j| j.own.p95_ms / j.none.p95_ms),
            batch_runtime_norm: over(|j| j.own.batch_s / j.none.batch_s),
            excess: over(|j| (j.own.batch_s - j.oracle.batch_s) / j.none.batch_s).median,
            max_power_w: over(|j| j.own.watch.max_w()).median,
            mean_power_w: over(|j| j.own.watch.mean_w()).median,
            over_s_max: over(|j| j.own.watch.over(j.limit).0),
            over_fraction: over(|j| j.own.watch.over(j.limit).1),
            over_fraction_10ms: over(|j| j.own.watch.over(j.limit).2).median,
            user_facing_throttled_core_s: over(|j| j.own.user_facing_throttled).median,
            pstate_changes_per_core_min: over(|j| j.own.pstate_changes).median,
            server_limit_s: over(|j| j.own.server_limit_s).median,
            seeds: seeds.len(),
        }
    }

    #[cfg(test)]
    pub(crate) fn sample(over: &'static str, p95: f64, runtime: f64) -> Self {
        let spread = |median: f64, off: f64| Spread { median, min: median - off, max: median + off };
        Self {
            over,
            user_facing_p95_norm: spread(p95, 0.01),
            batch_runtime_norm: spread(runtime, 0.02),
            excess: runtime - 1.1,
            max_power_w: 231.0,
            mean_power_w: 225.0,
            over_s_max: spread(0.3, 0.2),
            over_fraction: spread(0.02, 0.01),
            over_fraction_10ms: 0.04,
            user_facing_throttled_core_s: 0.0,
            pstate_changes_per_core_min: 20.0,
            server_limit_s: 0.0,
            seeds: 2,
        }
    }
}

/// A figure with a range is three keys: the median, `_min` and `_max`.
impl Serialize for Medians {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let over = self.over;
        let mut map = serializer.serialize_map(None)?;
        for (key, spread) in [
            ("user_facing_p95_norm", self.user_facing_p95_norm),
            ("batch_runtime_norm", self.batch_runtime_norm),
            (&format!("{over}_s_max"), self.over_s_max),
            (&format!("{over}_fraction"), self.over_fraction),
        ] {
            map.serialize_entry(key, &spread.median)?;
            map.serialize_entry(&format!("{key}_min"), &spread.min)?;
            map.serialize_entry(&format!("{key}_max"), &spread.max)?;
        }

        for (key, value) in [
            ("excess", self.excess),
            ("max_power_w", self.max_power_w),
            ("mean_power_w", self.mean_power_w),
            (&format!("{over}_fraction_10ms"), self.over_fraction_10ms),
            ("user_facing_throttled_core_s", self.user_facing_throttled_core_s),
            ("pstate_changes_per_core_min", self.pstate_changes_per_core_min),
            ("server_limit_s", self.server_limit_s),
        ] {
            map.serialize_entry(key, &value)?;
        }

        map.serialize_entry("seeds", &self.seeds)?;
        map.end()
    }
}
