//! Telemetry as CSV.

use ballast_sim::trace::{ReadOptions, Trace, Unit};

use super::says_something;

/// A trace: every series has one value a period, and each is in the range of its unit or a gap.
pub fn telemetry(bytes: &[u8]) {
    let trace = match Trace::read(bytes, "f.csv", &ReadOptions::default()) {
        Ok(trace) => trace,
        Err(error) => return says_something(error),
    };

    assert!(trace.period_s.is_finite() && trace.period_s > 0.0, "{}", trace.period_s);
    let length = trace.series.first().map_or(0, |series| series.values.len());
    for series in &trace.series {
        assert_eq!(series.values.len(), length);
        let most = match series.unit {
            Unit::Percent => 100.0,
            Unit::Share => 1.0,
            Unit::Watts => f32::MAX,
        };
        let good = |value: &f32| value.is_nan() || (0.0..=most).contains(value);
        assert!(series.values.iter().all(good), "{:?} of {:?}", series.values, series.unit);
    }
}
