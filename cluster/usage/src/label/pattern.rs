//! The paper's labeller: does a typical day fit better than typical 8 hours?

use serde::{Deserialize, Serialize};

use super::detrend::{FirstDay, Series};
use super::median::trimmed_mean;
use super::{Label, Reason};
use crate::week::{DAY, HALF_HOURS, Week};
use ballast_types::median;

/// Compare8 below which a VM is user-facing (IV-B).
pub const THRESHOLD: f64 = 0.72;
/// Compare12 from which 12 hours explain a series as well as a day; that of noise is 0.81.
const GUARD12: f64 = 0.78;
/// The share of the largest deviations that is left out: one day of five.
const TRIM: f64 = 0.2;
/// Half hours of a day, of 12 and of 8 hours.
const PERIODS: [usize; 3] = [DAY, DAY / 2, DAY / 3];

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PatternOptions {
    /// User-facing is a VM whose Compare8 is below this.
    pub threshold: f64,
    pub first_day: FirstDay,
    /// Whether a series that 12 hours explain as well as a day is not user-facing. It rejects periods of 6
    /// and 12 hours, which Compare8 takes for daily.
    pub guard12: bool,
    /// Whether a series that never changes counts as user-facing.
    pub flat_user_facing: bool,
}

impl Default for PatternOptions {
    fn default() -> Self {
        Self { threshold: THRESHOLD, first_day: FirstDay::default(), guard12: true, flat_user_facing: false }
    }
}

/// The pattern labeller (III-B).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pattern {
    options: PatternOptions,
}

impl Pattern {
    pub fn new(options: PatternOptions) -> Self {
        Self { options }
    }

    pub fn label(&self, week: &Week) -> Label {
        match Compare::of(week, self.options.first_day) {
            Ok(compare) => self.decide(compare),
            Err(Reason::Flat) => Label {
                compare8: Some(1.0),
                compare12: Some(1.0),
                user_facing: self.options.flat_user_facing,
                reason: Reason::Flat,
            },
            Err(reason) => Label::unknown(reason),
        }
    }

    /// The label of a week that compares so: only Compare8 decides, and Compare12 where it may.
    pub fn decide(&self, Compare { compare8, compare12 }: Compare) -> Label {
        let reason = match compare8 < self.options.threshold {
            false => Reason::NotDaily,
            true if self.options.guard12 && compare12 >= GUARD12 => Reason::HalfDaily,
            true => Reason::Daily,
        };
        Label {
            compare8: Some(compare8),
            compare12: Some(compare12),
            user_facing: reason == Reason::Daily,
            reason,
        }
    }
}

/// How well a typical day fits, against shorter templates. Infinite where the shorter one fits without any
/// deviation and the day does not; 1 where both do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compare {
    pub compare8: f64,
    pub compare12: f64,
}

impl Compare {
    /// Compares the templates of a week.
    pub fn of(week: &Week, first_day: FirstDay) -> Result<Self, Reason> {
        Ok(Self::of_series(&Series::new(week, first_day)?))
    }

    /// Compares the templates of a series that is de-trended already.
    pub fn of_series(series: &Series) -> Self {
        let [day, half, third] = PERIODS.map(|period| template_deviation(series.values(), period, TRIM));
        Self { compare8: ratio(day, third), compare12: ratio(day, half) }
    }
}

/// A template that fits perfectly is no better than another that does.
fn ratio(day: f64, shorter: f64) -> f64 {
    if day == 0.0 && shorter == 0.0 { 1.0 } else { day / shorter }
}

/// Mean deviation from the template of a period without the largest `trim` of the deviations (steps 2 to 4).
/// The template is the median of the values with the same place in the period.
pub(super) fn template_deviation(values: &[f64; HALF_HOURS], period: usize, trim: f64) -> f64 {
    let mut deviations = [0.0; HALF_HOURS];
    let mut count = 0;
    let mut same = [0.0; HALF_HOURS];
    for place in 0..period {
        let mut n = 0;
        for value in values[place..].iter().step_by(period).filter(|v| !v.is_nan()) {
            same[n] = *value;
            n += 1;
        }
        let typical = median(&mut same[..n]);
        for value in &same[..n] {
            deviations[count] = (value - typical).abs();
            count += 1;
        }
    }
    trimmed_mean(&mut deviations[..count], trim)
}
