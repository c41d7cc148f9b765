//! What came of every scenario, as text and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

/// Figures that a scenario measured, by name; units are suffixes of the names.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Notes(BTreeMap<String, f64>);

impl Notes {
    pub(crate) fn put(&mut self, name: &str, value: f64) {
        self.0.insert(name.to_owned(), (value * 1000.0).round() / 1000.0);
    }

    pub(crate) fn put_ms(&mut self, name: &str, time: std::time::Duration) {
        self.put(&format!("{name}_ms"), (time.as_secs_f64() * 1e4).round() / 10.0);
    }

    /// Median, 99th percentile and longest of some times.
    pub(crate) fn put_spread(&mut self, name: &str, times: &mut [std::time::Duration]) {
        times.sort_unstable();
        let at = |share: f64| times.get(rank(times.len(), share)).copied().unwrap_or_default();
        let (p50, p99, max) = (at(0.5), at(0.99), at(1.0));
        self.put(&format!("{name}_count"), times.len() as f64);
        self.put_ms(&format!("{name}_p50"), p50);
        self.put_ms(&format!("{name}_p99"), p99);
        self.put_ms(&format!("{name}_max"), max);
    }
}

/// The index of a percentile: the least value that is at least as great as `share` of all.
fn rank(count: usize, share: f64) -> usize {
    ((count as f64 * share).ceil() as usize).max(1) - 1
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) scenario: &'static str,
    pub(crate) passed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
    pub(crate) took_s: f64,
    pub(crate) measured: Notes,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Summary {
    pub(crate) passed: bool,
    pub(crate) took_s: f64,
    pub(crate) scenarios: Vec<Outcome>,
}

impl Outcome {
    /// A line, and one more with what was measured.
    pub(crate) fn text(&self) -> String {
        let word = if self.passed { "passed" } else { "FAILED" };
        let mut text = format!("{:<16} {word:<7} {:>6.1} s", self.scenario, self.took_s);
        for (name, value) in &self.measured.0 {
            let _ = write!(text, "  {name} {value}");
        }
        if let Some(why) = &self.why {
            let _ = write!(text, "\n    {}", why.replace('\n', "\n    "));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        for (count, share, index) in
            [(100, 0.5, 49), (100, 0.99, 98), (100, 1.0, 99), (1, 0.5, 0), (3, 0.5, 1), (0, 0.5, 0)]
        {
            assert_eq!(rank(count, share), index, "{count} {share}");
        }
        let mut notes = Notes::default();
        let mut times: Vec<_> = (1..=100).rev().map(Duration::from_millis).collect();
        notes.put_spread("alert", &mut times);
        let json = serde_json::to_value(&notes).unwrap();
        let expected = serde_json::json!({
            "alert_count": 100.0, "alert_p50_ms": 50.0, "alert_p99_ms": 99.0, "alert_max_ms": 100.0
        });
        assert_eq!(json, expected);
    }
}
