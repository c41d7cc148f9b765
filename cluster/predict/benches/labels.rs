//! How long one week's label takes, by each method, and what a million weeks take on all threads.
//!
//! `cargo bench -p ballast-predict --bench labels`. The baseline is the paper's steps word for word: lists on
//! the heap, medians and trimming by sorting. It has to give the same answers, or the run stops.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

#[path = "../../usage/src/label/tests/synthetic.rs"]
mod synthetic;

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::time::Instant as Clock;

use ballast_predict::label::ensemble::{LearnError, Learnt};
use ballast_predict::label::{FirstDay, Pattern, Series, autocorrelation_score, features, fourier_score};
use ballast_usage::week::{DAY, HALF_HOURS, Week};
use synthetic::{Draw, series};

const WEEKS: usize = 16_384;
const LEARNT: usize = 800;
/// Rounds, the median of which counts.
const ROUNDS: usize = 5;
const USER_FACING: [&str; 4] = ["diurnal", "weak diurnal", "one of five days random", "growth"];
const OTHERS: [&str; 4] = ["white noise", "8 h", "4 h", "random walk"];

fn main() -> Result<(), LearnError> {
    let weeks: Vec<Week> = (0..WEEKS).map(synthetic_week).collect();
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let pattern = |week: &Week| Pattern::default().label(week).compare8.unwrap_or(f64::NAN);

    for week in weeks.iter().step_by(8) {
        let (found, plain) = (pattern(week), plainly(week.values()));
        assert!((found - plain).abs() < 1e-9, "{found}, and {plain} by the baseline");
    }

    println!("{:34} {:>12} {:>22}", "", "one thread", "1,000,000 weeks on");
    println!("{:34} {:>12} {:>22}", "", "us a week", format!("{threads} threads, s"));
    print("baseline: heap and sorting", &weeks, threads, |week| plainly(week.values()));
    print("pattern", &weeks, threads, pattern);
    let of_series = |week: &Week, score: fn(&Series) -> f64| {
        Series::new(week, FirstDay::WarmUp).map_or(f64::NAN, |series| score(&series))
    };
    print("acf", &weeks, threads, |week| of_series(week, autocorrelation_score));
    print("fft", &weeks, threads, |week| of_series(week, fourier_score));

    let few = &weeks[..WEEKS / 8];
    let known = weeks[..LEARNT].iter().enumerate();
    let (rows, truth): (Vec<_>, Vec<_>) =
        known.filter_map(|(n, week)| Some((features(week).ok()?, n % 2 == 0))).unzip();
    let start = Clock::now();
    let learnt = Learnt::train(&rows, &truth, 1, threads)?;
    let seconds = start.elapsed().as_secs_f64();
    print("ensemble: features", few, threads, features);
    print("ensemble: features and score", few, threads, |week| learnt.score(week));
    println!("ensemble: learning from {} weeks, {threads} threads: {seconds:.1} s", rows.len());

    Ok(())
}

/// User-facing ones and others in turn, of all kinds.
fn synthetic_week(n: usize) -> Week {
    let kinds = if n.is_multiple_of(2) { USER_FACING } else { OTHERS };
    Week::new(series(kinds[n / 2 % kinds.len()], &mut Draw::new(n as u64)))
}

/// One line: a thread's microseconds a week, and the seconds that a million take on all threads.
fn print<T>(what: &str, weeks: &[Week], threads: NonZeroUsize, label: impl Fn(&Week) -> T + Sync) {
    let each = |threads| 1e6 * median_s(weeks, threads, &label) / weeks.len() as f64;
    println!("{what:34} {:12.2} {:22.1}", each(NonZeroUsize::MIN), each(threads));
}

/// The median over all rounds of the time that all weeks take, each thread having its share of them.
fn median_s<T>(weeks: &[Week], threads: NonZeroUsize, label: impl Fn(&Week) -> T + Sync) -> f64 {
    let share = weeks.len().div_ceil(threads.get());
    let round = |_| {
        let start = Clock::now();
        let label = &label;
        std::thread::scope(|scope| {
            for part in weeks.chunks(share) {
                scope.spawn(move || {
                    for week in part {
                        black_box(label(black_box(week)));
                    }
                });
            }
        });

        start.elapsed().as_secs_f64()
    };

    let mut times: Vec<f64> = (0..ROUNDS).map(round).collect();
    times.sort_unstable_by(f64::total_cmp);

    times[ROUNDS / 2]
}

/// Compare8 of a week without a day before it, step by step.
fn plainly(x: &[f64; HALF_HOURS]) -> f64 {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let scaled: Vec<f64> = (0..HALF_HOURS)
        .map(|i| x[i] / mean(if i < DAY { &x[..DAY] } else { &x[i - DAY..i] }).max(0.1))
        .collect();
    let middle = mean(&scaled);
    let squares: Vec<f64> = scaled.iter().map(|v| (v - middle) * (v - middle)).collect();
    let sd = mean(&squares).sqrt();
    let normal: Vec<f64> = scaled.iter().map(|v| v / sd).collect();
    let fit = |period: usize| {
        let template: Vec<f64> = (0..period)
            .map(|place| sorted_median(normal.iter().skip(place).step_by(period).copied()))
            .collect();
        let mut off: Vec<f64> =
            normal.iter().enumerate().map(|(i, v)| (v - template[i % period]).abs()).collect();
        off.sort_by(f64::total_cmp);

        mean(&off[..HALF_HOURS - HALF_HOURS / 5])
    };

    let day = fit(DAY);

    // The labeller tells Compare12 too.
    black_box(day / fit(DAY / 2));

    day / fit(DAY / 3)
}

fn sorted_median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        0 => f64::midpoint(values[middle - 1], values[middle]),
        _ => values[middle],
    }
}
