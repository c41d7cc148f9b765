//! Load over time, as a share of the VM's cores at the highest frequency.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::generator::{Generator, Source};

/// Load over time. Values are clamped to 0..=1 when they are played.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    Constant(f64),
    /// `(second, value)`, rising in time: each value holds until the next.
    Steps(Arc<[(f64, f64)]>),
    /// `(second, value)`, rising in time: straight lines between, the ends hold.
    Ramps(Arc<[(f64, f64)]>),
    /// Made by a seeded generator, in the shape of real traces.
    Generated(Generator),
    Series(Series),
}

/// How values between two samples of a series are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interpolation {
    /// A sample holds until the next.
    Hold,
    /// Straight lines between samples.
    #[default]
    Linear,
}

/// A recorded series, played again and again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Seconds between two samples, as recorded.
    pub period_s: f64,
    /// The samples, as shares of the VM's cores; NaN counts as idle.
    pub values: Arc<[f32]>,
    pub interpolation: Interpolation,
    /// Every value is multiplied by this.
    pub scale: f64,
    /// Recorded seconds that pass in one second: compresses the load, nothing else.
    pub speedup: f64,
}

impl Series {
    fn value(&self, index: u64) -> f64 {
        let len = self.values.len() as u64;
        let raw = if len == 0 { 0.0 } else { f64::from(self.values[(index % len) as usize]) };
        clamp(raw * self.scale)
    }
}

/// NaN is idle.
fn clamp(value: f64) -> f64 {
    if value > 0.0 { value.min(1.0) } else { 0.0 }
}

/// A straight piece of a profile.
#[derive(Clone, Copy, Debug)]
struct Segment {
    start: f64,
    end: f64,
    value: f64,
    slope: f64,
}

impl Segment {
    fn flat(start: f64, end: f64, value: f64) -> Self {
        Self { start, end, value: clamp(value), slope: 0.0 }
    }
    fn line(start: f64, end: f64, from: f64, to: f64) -> Self {
        let (from, to) = (clamp(from), clamp(to));
        let slope = if end > start { (to - from) / (end - start) } else { 0.0 };
        Self { start, end, value: from, slope }
    }
}

/// Plays a profile forward. Between two turns of its line it costs two floating-point operations.
#[derive(Clone, Debug)]
pub struct Cursor {
    profile: Profile,
    /// Boxed: it is large, and only asked at a turn of the line.
    source: Option<Box<Source>>,
    segment: Segment,
}

impl Cursor {
    pub fn new(profile: Profile) -> Self {
        let source = match &profile {
            Profile::Generated(generator) => Some(Box::new(Source::new(generator))),
            _ => None,
        };
        Self { profile, source, segment: Segment::flat(0.0, 0.0, 0.0) }
    }

    /// The load at second `t`, in 0..=1. `t` must not go back.
    #[inline]
    pub fn at(&mut self, t: f64) -> f64 {
        if t >= self.segment.end {
            self.segment = self.next(t);
        }
        self.segment.value + self.segment.slope * (t - self.segment.start)
    }

    /// The integral of the load over the first `seconds`, before anything was played.
    pub(crate) fn integral(mut self, seconds: f64) -> f64 {
        let (mut t, mut sum) = (0.0, 0.0);
        while t < seconds {
            let piece = self.next(t);
            // Rounding may end a piece where it begins.
            let end = if piece.end > t { piece.end.min(seconds) } else { t + 1e-6 };
            let middle = 0.5 * (t + end) - piece.start;
            sum += (piece.value + piece.slope * middle) * (end - t);
            t = end;
        }
        sum
    }

    /// The straight piece that holds `t`.
    fn next(&mut self, t: f64) -> Segment {
        match &self.profile {
            Profile::Constant(value) => Segment::flat(t, f64::INFINITY, *value),
            Profile::Steps(points) => match piece(points, t) {
                (None, None) => Segment::flat(t, f64::INFINITY, 0.0),
                (None, Some(b)) => Segment::flat(t, b.0, b.1),
                (Some(a), None) => Segment::flat(t, f64::INFINITY, a.1),
                (Some(a), Some(b)) => Segment::flat(a.0, b.0, a.1),
            },
            Profile::Ramps(points) => match piece(points, t) {
                (None, None) => Segment::flat(t, f64::INFINITY, 0.0),
                (None, Some(b)) => Segment::flat(t, b.0, b.1),
                (Some(a), None) => Segment::flat(t, f64::INFINITY, a.1),
                (Some(a), Some(b)) => Segment::line(a.0, b.0, a.1, b.1),
            },
            Profile::Generated(_) => match &mut self.source {
                Some(source) => {
                    let (start, end, from, to) = source.piece(t);
                    Segment::line(start, end, from, to)
                }
                None => Segment::flat(t, f64::INFINITY, 0.0),
            },
            Profile::Series(series) => {
                let grain = series.period_s / series.speedup;
                if !(grain > 0.0 && grain.is_finite()) {
                    return Segment::flat(t, f64::INFINITY, series.value(0));
                }
                let mut index = (t / grain) as u64;

                // Rounding may put `t` on the end of its own piece.
                if (index + 1) as f64 * grain <= t {
                    index += 1;
                }
                let (start, end) = (index as f64 * grain, (index + 1) as f64 * grain);

                match series.interpolation {
                    Interpolation::Hold => Segment::flat(start, end, series.value(index)),
                    Interpolation::Linear => {
                        Segment::line(start, end, series.value(index), series.value(index + 1))
                    }
                }
            }
        }
    }
}

type Point = (f64, f64);

/// The points before (or at) and after `t`.
fn piece(points: &[Point], t: f64) -> (Option<Point>, Option<Point>) {
    let after = points.partition_point(|p| p.0 <= t);
    (after.checked_sub(1).map(|i| points[i]), points.get(after).copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn play(profile: Profile, times: &[f64]) -> Vec<f64> {
        let mut cursor = Cursor::new(profile);
        times.iter().map(|t| cursor.at(*t)).collect()
    }

    #[test]
    fn steps_hold_and_ramps_are_straight() {
        let points: Arc<[_]> = [(1.0, 0.2), (2.0, 0.6)].into();
        let times = [0.0, 1.0, 1.5, 2.0, 9.0];
        assert_eq!(play(Profile::Steps(points.clone()), &times), [0.2, 0.2, 0.2, 0.6, 0.6]);
        let ramp = play(Profile::Ramps(points), &times);
        for (got, want) in ramp.iter().zip([0.2, 0.2, 0.4, 0.6, 0.6]) {
            assert!((got - want).abs() < 1e-12, "{ramp:?}");
        }
    }

    #[test]
    fn speedup_compresses_a_series_and_it_starts_again_at_its_end() {
        let series = Series {
            period_s: 300.0,
            values: [0.0f32, 0.4, 0.8, f32::NAN].into(),
            interpolation: Interpolation::Hold,
            scale: 2.0,
            speedup: 600.0,
        };
        let got = play(Profile::Series(series), &[0.0, 0.5, 0.99, 1.0, 1.5, 2.6]);
        let want = [0.0, 0.8, 0.8, 1.0, 0.0, 0.8];
        assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-6), "{got:?}");
    }

    #[test]
    fn senseless_profiles_are_idle_and_never_stick() {
        let empty = Series {
            period_s: 0.0,
            values: [].into(),
            interpolation: Interpolation::Linear,
            scale: 1.0,
            speedup: 0.0,
        };
        for profile in [
            Profile::Series(empty),
            Profile::Steps([].into()),
            Profile::Ramps([].into()),
            Profile::Constant(f64::NAN),
            Profile::Constant(-3.0),
        ] {
            assert_eq!(play(profile, &[0.0, 1.0]), [0.0, 0.0]);
        }
    }
}
