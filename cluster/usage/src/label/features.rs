//! What the learnt labeller looks at.
//!
//! The same questions are put to three forms of a week: the paper's de-trended one, one with interruptions
//! taken out, and that one smoothed. All of it but the mean use is without dimension, and nothing depends on the
//! hour at which a day begins, so that a time zone that was not told does no harm.

use ballast_types::standard_deviation;

use super::Reason;
use super::detrend::{FirstDay, Series};
use super::mask::Masked;
use super::median::percentile;
use super::pattern::template_deviation;
use super::spectrum::power_of;
use crate::week::{DAY, DAYS, HALF_HOURS, Week};

/// Half hours of the templates that a day is compared with; 1 is the median alone.
const PERIODS: [usize; 7] = [24, 16, 12, 8, 6, 4, 1];
/// Lags of the autocorrelation, in half hours.
const LAGS: [usize; 14] = [1, 2, 4, 6, 8, 12, 16, 24, 32, 36, 40, 48, 72, 96];

/// The features of a week, in a fixed order; NaN where one has no value.
pub fn features(week: &Week) -> Result<Vec<f32>, Reason> {
    let series = Series::new(week, FirstDay::Own)?;
    let x = week.values();
    let masked = Masked::new(x);
    let clean = level(&masked.values);
    let smooth = smoothed(&clean);
    let mut out = Vec::with_capacity(150);

    templates(&mut out, series.values(), 0.2);
    templates(&mut out, &clean, 0.1);
    templates(&mut out, &smooth, 0.1);

    for form in [&centre(series.values()), &centre(&clean)] {
        for lag in LAGS {
            out.push(correlation(form, lag));
        }
    }

    best_lag(&mut out, &centre(&smooth));
    spectrum(&mut out, &centre(&clean));
    spectrum(&mut out, &centre(series.values()));
    days(&mut out, &smooth);
    days(&mut out, &smoothed(series.values()));
    phases(&mut out, &clean);
    shape(&mut out, &smooth);
    noise(&mut out, x, &masked, &clean);
    out.push(series.deviation());

    // Ratios may be infinite: trees want numbers.

    Ok(out
        .into_iter()
        .map(|v: f64| if v.is_finite() { v.clamp(-1e6, 1e6) as f32 } else { f32::NAN })
        .collect())
}

/// How much smaller the deviation from a day's template is than from shorter ones.
fn templates(out: &mut Vec<f64>, values: &[f64; HALF_HOURS], trim: f64) {
    let day = template_deviation(values, DAY, trim);
    let shorter = PERIODS.map(|period| template_deviation(values, period, trim));
    out.extend(shorter.map(|d| day / d));
    // Against the best of the shorter ones, each for what it is worth with that many values in a median.
    out.push(shorter[1..6].iter().map(|d| d / shorter[6]).fold(f64::INFINITY, f64::min));
    out.push(day);
}

/// The values over the mean of the 24 hours around them, less 1; in units of their standard deviation.
fn level(x: &[f64; HALF_HOURS]) -> [f64; HALF_HOURS] {
    let half = DAY / 2;
    let mut out: [f64; HALF_HOURS] = core::array::from_fn(|i| {
        let begin = i.saturating_sub(half).min(HALF_HOURS - DAY);
        let around = &x[begin..begin + DAY];
        x[i] / mean(around).max(0.1) - 1.0
    });
    let sd = deviation(&out);
    if sd > 1e-9 {
        out.iter_mut().for_each(|v| *v /= sd);
    }
    out
}

/// Means of five half hours, of those that are there.
fn smoothed(x: &[f64; HALF_HOURS]) -> [f64; HALF_HOURS] {
    core::array::from_fn(|i| {
        let around = &x[i.saturating_sub(2)..(i + 3).min(HALF_HOURS)];
        if around.iter().filter(|v| !v.is_nan()).count() >= 2 { mean(around) } else { f64::NAN }
    })
}

fn there(values: &[f64]) -> impl Iterator<Item = f64> + Clone {
    values.iter().copied().filter(|v| !v.is_nan())
}

fn mean(values: &[f64]) -> f64 {
    there(values).sum::<f64>() / there(values).count() as f64
}

fn deviation(values: &[f64]) -> f64 {
    standard_deviation(there(values)).unwrap_or(f64::NAN)
}

/// Less the mean, and at most three standard deviations away from it; missing values stay missing.
fn centre(values: &[f64; HALF_HOURS]) -> [f64; HALF_HOURS] {
    let (mean, sd) = (mean(values), deviation(values));
    values.map(|v| (v - mean).clamp(-3.0 * sd, 3.0 * sd))
}

/// Correlation of pairs, of those that are both there.
fn pearson(pairs: impl Iterator<Item = (f64, f64)>, least: usize) -> f64 {
    let (mut n, mut a, mut b, mut aa, mut bb, mut ab) = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
    for (x, y) in pairs.filter(|(x, y)| !x.is_nan() && !y.is_nan()) {
        n += 1.0;
        a += x;
        b += y;
        aa += x * x;
        bb += y * y;
        ab += x * y;
    }
    let spread = (aa - a * a / n) * (bb - b * b / n);
    if n < least as f64 || spread <= 1e-12 { f64::NAN } else { (ab - a * b / n) / spread.sqrt() }
}

fn correlation(values: &[f64; HALF_HOURS], lag: usize) -> f64 {
    pearson(values[..HALF_HOURS - lag].iter().copied().zip(values[lag..].iter().copied()), 24)
}

/// The lag from 4 to 60 hours with the highest peak of the autocorrelation, and how high it is beside 24
/// hours.
fn best_lag(out: &mut Vec<f64>, values: &[f64; HALF_HOURS]) {
    let r: Vec<f64> = (0..=121).map(|lag| if lag == 0 { 1.0 } else { correlation(values, lag) }).collect();
    let peak = |lag: usize| r[lag] >= r[lag - 1] && r[lag] >= r[lag + 1];
    let best = |range: core::ops::RangeInclusive<usize>| {
        range.filter(|lag| peak(*lag)).max_by(|a, b| r[*a].total_cmp(&r[*b]))
    };
    let all = best(2..=120);
    out.push(all.map_or(0.0, |lag| lag as f64));
    out.push(all.map_or(f64::NAN, |lag| r[lag]));
    let near = best(40..=56);
    out.push(near.map_or(f64::NAN, |lag| (lag as f64 - 48.0).abs()));
    out.push(near.map_or(f64::NAN, |lag| r[lag]));
    let not_near = r[30..=40].iter().chain(&r[56..=66]).copied().fold(f64::NEG_INFINITY, f64::max);
    out.push(r[48] - not_near);
    let short = best(2..=38);
    out.push(short.map_or(0.0, |lag| r[lag]) - r[48]);
    let low = r[20..=28].iter().copied().fold(f64::INFINITY, f64::min);
    out.push(r[48] - low);
}

/// Where the power is: around 24 hours, at its parts, at none of them.
fn spectrum(out: &mut Vec<f64>, values: &[f64; HALF_HOURS]) {
    let filled = values.map(|v| if v.is_nan() { 0.0 } else { v });
    let total = filled.iter().map(|v| v * v).sum::<f64>().max(1e-12) * HALF_HOURS as f64 / 2.0;
    let share: Vec<f64> = (0..=60).map(|bin| power_of(&filled, bin) / total).collect();
    let sum = |bins: core::ops::RangeInclusive<usize>| share[bins].iter().sum::<f64>();
    out.extend([5, 10, 15, 20, 30, 40].map(|bin| share[bin]));
    out.extend([sum(1..=2), sum(3..=4), sum(6..=9), sum(11..=14), sum(16..=30), sum(31..=60)]);
    let best = (1..=60).max_by(|a, b| share[*a].total_cmp(&share[*b])).unwrap_or(0);
    out.extend([best as f64, share[best]]);
    let beside = (1..=9).filter(|bin| *bin != 5).map(|bin| share[bin]).fold(0.0, f64::max);
    let shorter = (10..=60).map(|bin| share[bin]).fold(0.0, f64::max);
    out.push(share[5] / (share[5] + beside + 1e-9));
    out.push(share[5] / (share[5] + shorter + 1e-9));
    let comb: f64 = (1..=12).map(|k| share[5 * k]).sum();
    out.extend([comb, share[5] / (comb + 1e-9)]);
}

/// Do the days look alike?
fn days(out: &mut Vec<f64>, values: &[f64; HALF_HOURS]) {
    let day = |n: usize| values[n * DAY..(n + 1) * DAY].iter().copied();
    let mut pairs = Vec::with_capacity(10);
    for a in 0..DAYS {
        for b in a + 1..DAYS {
            pairs.push(pearson(day(a).zip(day(b)), 12));
        }
    }

    let mut others = Vec::with_capacity(DAYS);

    for n in 0..DAYS {
        let rest: [f64; DAY] = core::array::from_fn(|i| {
            let mut rest: Vec<f64> =
                (0..DAYS).filter(|d| *d != n).map(|d| values[d * DAY + i]).filter(|v| !v.is_nan()).collect();
            percentile(&mut rest, 0.5)
        });

        others.push(pearson(day(n).zip(rest), 12));
    }

    for list in [&mut pairs, &mut others] {
        list.retain(|v| !v.is_nan());
        out.push(mean(list));
        out.extend([0.0, 0.25, 0.5, 0.75, 1.0].map(|q| percentile(list, q)));
    }
}

/// Is every day's first harmonic at the same hour?
fn phases(out: &mut Vec<f64>, values: &[f64; HALF_HOURS]) {
    let (mut sum, mut unit, mut total, mut count) = ([0.0; 2], [0.0; 2], 0.0, 0.0);
    let mut lengths = Vec::with_capacity(DAYS);
    for day in values.chunks(DAY) {
        let mean = mean(day);
        let mut at = [0.0; 2];
        let mut known = 0.0;

        for (i, v) in day.iter().enumerate().filter(|(_, v)| !v.is_nan()) {
            let angle = core::f64::consts::TAU * i as f64 / DAY as f64;
            at[0] += (v - mean) * libm::cos(angle);
            at[1] += (v - mean) * libm::sin(angle);
            known += 1.0;
        }

        let length = libm::hypot(at[0], at[1]);

        if known < DAY as f64 / 2.0 || length <= 0.0 {
            continue;
        }
        let length = length / known;

        for k in 0..2 {
            sum[k] += at[k] / known;
            unit[k] += at[k] / known / length;
        }

        total += length;
        count += 1.0;
        lengths.push(length);
    }

    out.push(libm::hypot(sum[0], sum[1]) / total);
    out.push(libm::hypot(unit[0], unit[1]) / count);
    out.push(libm::hypot(sum[0], sum[1]) / count);
    out.push(percentile(&mut lengths, 0.0));
    out.push(percentile(&mut lengths, 0.5));
}

/// What the typical day looks like: one smooth hill, or many.
fn shape(out: &mut Vec<f64>, values: &[f64; HALF_HOURS]) {
    let template: [f64; DAY] = core::array::from_fn(|i| {
        let mut same: Vec<f64> = (0..DAYS).map(|d| values[d * DAY + i]).filter(|v| !v.is_nan()).collect();
        percentile(&mut same, 0.5)
    });

    let (mean, sd) = (mean(&template), deviation(&template));
    out.push(sd);
    let filled = template.map(|v| if v.is_nan() { 0.0 } else { v - mean });
    let total = filled.iter().map(|v| v * v).sum::<f64>().max(1e-12) * DAY as f64 / 2.0;
    out.extend([1, 2, 3, 4, 6].map(|k| {
        let (mut re, mut im) = (0.0, 0.0);
        for (i, v) in filled.iter().enumerate() {
            let angle = core::f64::consts::TAU * (k * i) as f64 / DAY as f64;
            re += v * libm::cos(angle);
            im += v * libm::sin(angle);
        }

        (re * re + im * im) / total
    }));

    let high = filled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let low = filled.iter().copied().fold(f64::INFINITY, f64::min);
    let way: f64 = (0..DAY).map(|i| (filled[(i + 1) % DAY] - filled[i]).abs()).sum();
    out.push(way / (high - low).max(1e-9));
    let middle = f64::midpoint(high, low);
    out.push(filled.iter().filter(|v| **v > middle).count() as f64 / DAY as f64);
    let crossings = (0..DAY).filter(|i| (filled[*i] > middle) != (filled[(i + 1) % DAY] > middle));
    out.push(crossings.count() as f64);
}

/// How noisy, spiky and high it is.
fn noise(out: &mut Vec<f64>, x: &[f64; HALF_HOURS], masked: &Masked, clean: &[f64; HALF_HOURS]) {
    out.extend([masked.still, masked.bursts]);
    let (mean, sd) = (mean(x), deviation(x));
    out.extend([mean, sd / mean.max(0.1), masked.step / sd.max(1e-9)]);
    let mut known: Vec<f64> = there(x).collect();
    let q = [0.05, 0.25, 0.5, 0.75, 0.95, 1.0].map(|share| percentile(&mut known, share));
    let span = (q[4] - q[0]).max(1e-9);
    out.extend([(q[3] - q[1]) / span, (q[5] - q[4]) / span, (q[2] - q[0]) / span]);
    let mut steps: Vec<f64> = clean.windows(2).map(|w| (w[1] - w[0]).abs()).filter(|s| !s.is_nan()).collect();
    out.extend([0.5, 0.9, 1.0].map(|share| percentile(&mut steps, share)));
    let low = q[0] + 0.1 * span;
    out.push(there(x).filter(|v| *v < low).count() as f64 / HALF_HOURS as f64);

    // Second differences tell noise from walks.
    let mut bends: Vec<f64> =
        clean.windows(3).map(|w| (w[2] - 2.0 * w[1] + w[0]).abs()).filter(|s| !s.is_nan()).collect();
    out.push(percentile(&mut bends, 0.5) / percentile(&mut steps, 0.5).max(1e-9));
}
