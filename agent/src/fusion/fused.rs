//! Two meters as one: prompt as RAPL, and never below what the slow meter says.

use core::time::Duration;

use ballast_types::{Instant, Watts};

use super::Fusion;
use crate::meter::{Sample, plausible};
use crate::{Reading, SensorFault};

/// The slow meter may be late by so many refreshes before its word counts as old.
const LATE: u32 = 2;

/// The draw of a server by a slow meter that is right (a BMC, an ACPI power meter) and RAPL that is
/// prompt: every window of RAPL, carried up to the server by the regression learnt between both.
///
/// It is honest about what it does not know. The regression is raised by what the newest slow reading was
/// above it. While the regression is doubted or the slow meter is late, twice the regression's error is added; and
/// when the slow meter has said nothing for `stale`, there is no reading.
#[derive(Clone, Debug)]
pub struct Fused {
    fusion: Fusion,
    /// A slow reading older than this is late.
    late: Duration,
    stale: Duration,
    newest: Option<Instant>,
}

impl Fused {
    /// For a slow meter whose value is a mean over `refresh` that ended `lag` before it can be read.
    pub fn new(lag: Duration, refresh: Duration, stale: Duration) -> Self {
        let late = refresh.saturating_mul(LATE);
        Self { fusion: Fusion::new(lag, refresh), late, stale, newest: None }
    }

    /// Takes a reading of the slow meter, and when it was produced; one that has not moved is none.
    pub fn slow(&mut self, watts: Watts, taken_at: Instant) {
        if plausible(watts) && self.newest.is_none_or(|newest| taken_at > newest) {
            self.newest = Some(taken_at);
            self.fusion.meter(Sample { watts, taken_at });
        }
    }

    /// Takes a window of RAPL; the reading is as young as the window's end.
    pub fn fast(&mut self, from: Instant, to: Instant, rapl: Watts) -> Reading {
        if !plausible(rapl) || to <= from {
            return Reading::Fault(SensorFault::Implausible);
        }
        self.fusion.window(from, to, rapl.as_f64());
        let Some(age) = self.newest.map(|newest| to.since(newest)).filter(|age| *age < self.stale) else {
            return Reading::Fault(SensorFault::Unreadable);
        };
        let doubted = self.fusion.doubt().is_some() || age > self.late;
        let watts = self.fusion.bound(rapl.as_f64(), doubted).and_then(Watts::from_f64);
        match watts.filter(|watts| plausible(*watts)) {
            Some(watts) => Reading::Sample { watts, taken_at: to },
            None => Reading::Fault(SensorFault::Unreadable),
        }
    }

    /// Why the reading is an upper bound or missing at `now`, if it is.
    pub fn doubt(&self, now: Instant) -> Option<&'static str> {
        match self.newest.map(|newest| now.since(newest)) {
            None => Some("the slow meter has not been read yet"),
            Some(age) if age >= self.stale => Some("the slow meter is silent: no reading"),
            Some(age) if age > self.late => Some("the slow meter is late: an upper bound"),
            Some(_) => self.fusion.doubt(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Instant = Instant::from_millis;
    const W: fn(i64) -> Watts = Watts::from_whole;
    const SECOND: Duration = Duration::from_secs(1);

    /// RAPL of 200 ms, and a meter of lag and refresh 1 s that shows `60 + 1.05 × RAPL + more`.
    struct Bench {
        fused: Fused,
        now: u64,
        rapl: Vec<i64>,
        more: i64,
        slow: bool,
    }

    impl Bench {
        fn new() -> Self {
            let fused = Fused::new(SECOND, SECOND, 5 * SECOND);
            Self { fused, now: 0, rapl: vec![], more: 0, slow: true }
        }
        fn draw(&self, rapl: i64) -> f64 {
            60.0 + 1.05 * rapl as f64 + self.more as f64
        }
        /// One window; the reading, and its error.
        fn window(&mut self, rapl: i64) -> Result<f64, SensorFault> {
            let from = MS(self.now);
            self.now += 200;
            self.rapl.push(rapl);
            let n = self.rapl.len();
            if self.slow && n.is_multiple_of(5) && n >= 10 {
                let mean = self.rapl[n - 10..n - 5].iter().map(|r| self.draw(*r)).sum::<f64>() / 5.0;
                self.fused.slow(Watts::from_f64(mean).unwrap(), MS(self.now));
            }
            match self.fused.fast(from, MS(self.now), W(rapl)) {
                Reading::Sample { watts, taken_at } => {
                    assert_eq!(taken_at, MS(self.now), "as young as the window");
                    Ok(watts.as_f64() - self.draw(rapl))
                }
                Reading::Fault(fault) => Err(fault),
            }
        }
        fn learn(&mut self) {
            for n in 0..300 {
                // Nothing may be too low, not even at first.
                if let Ok(error) = self.window(if n / 13 % 2 == 0 { 100 } else { 150 }) {
                    assert!(error > -0.5, "window {n}: {error}");
                }
            }
            assert_eq!(self.fused.doubt(MS(self.now)), None);
        }
    }

    #[test]
    fn it_is_right_within_a_window_of_a_step_that_the_slow_meter_shows_two_seconds_later() {
        let mut bench = Bench::new();
        bench.learn();
        for rapl in [220, 220, 90, 90, 160] {
            let error = bench.window(rapl).unwrap();
            assert!((-0.5..3.0).contains(&error), "{rapl}: {error}");
        }
    }

    #[test]
    fn before_the_first_comparison_there_is_no_reading() {
        let mut bench = Bench::new();
        let faults = (0..9).filter(|_| bench.window(100).is_err()).count();
        assert_eq!(faults, 9);
        assert!(bench.window(100).is_ok());
        assert!(bench.fused.doubt(MS(bench.now)).is_some(), "but only a bound");
        // Twice RAPL's rise is the most that it can mean.
        assert!(bench.window(200).unwrap() > 90.0);
    }

    #[test]
    fn what_rapl_does_not_see_raises_it_with_the_first_slow_reading() {
        let mut bench = Bench::new();
        bench.learn();
        bench.more = 30;
        // Lag, and what of its refresh was before: two seconds, then the whole of it.
        let errors: Vec<_> = (0..15).map(|_| bench.window(150).unwrap()).collect();
        assert!(errors[0] < -25.0, "nobody can see it yet: {errors:?}");
        assert!(errors[11..].iter().all(|error| *error > -0.5), "{errors:?}");
    }

    #[test]
    fn a_slow_meter_that_goes_leaves_a_bound_and_then_nothing() {
        let mut bench = Bench::new();
        bench.learn();
        bench.slow = false;
        let silent = bench.now;
        let mut late = 0;

        while bench.now < silent + 4800 {
            let error = bench.window(150).unwrap();
            assert!(error > -0.5, "{error}");
            late += u32::from(bench.fused.doubt(MS(bench.now)).is_some());
        }

        assert!(late > 10, "said to be a bound");

        for _ in 0..50 {
            bench.window(150).ok();
        }
        assert_eq!(bench.window(150), Err(SensorFault::Unreadable));
        bench.slow = true;

        for _ in 0..30 {
            bench.window(150).ok();
        }
        assert!(bench.window(150).unwrap().abs() < 3.0);
    }

    #[test]
    fn nonsense_is_never_low_power() {
        let mut bench = Bench::new();
        bench.learn();
        let (a, b) = (MS(bench.now), MS(bench.now + 200));
        for (from, to, rapl) in [(a, b, W(0)), (a, b, W(-5)), (b, a, W(100)), (a, a, W(100))] {
            assert!(matches!(bench.fused.fast(from, to, rapl), Reading::Fault(_)), "{rapl}");
        }
        for watts in [W(0), W(-300)] {
            bench.fused.slow(watts, MS(bench.now + 1));
        }
        assert!(bench.window(150).unwrap() > -0.5, "an implausible slow reading teaches nothing");
    }
}
