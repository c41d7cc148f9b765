//! How fast models are trained and asked, and how good they are.
//!
//! `cargo bench -p ballast-forest` trains on 200,000 and on 1,000,000 rows of 15 features, on two threads,
//! and asks for single rows: the median of many, beside a walk from node to node, one tree after the other.
//! Numbers behind `--` are other numbers of rows. `CPU, s` is processor time, on a busy machine the better
//! figure.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads clocks")]
#![expect(clippy::unwrap_used, reason = "what cannot be trained cannot be measured")]

use std::num::NonZeroUsize;
use std::time::Instant as Clock;

use ballast_forest::{
    BoostOptions, Ensemble, FeatureTable, ForestOptions, Target, auc, log_loss, train_boosted, train_forest,
};

#[path = "../tests/data/mod.rs"]
mod data;
use data::{Data, FEATURES, friedman};

fn main() {
    let test = friedman(50_000, 2, 2);
    println!(
        "{:38} {:>8} {:>7} {:>6} {:>8} {:>9} {:>9}",
        "", "train, s", "CPU, s", "AUC", "log-loss", "a row, ns", "naive, ns"
    );

    let arguments: Vec<usize> = std::env::args().filter_map(|rows| rows.parse().ok()).collect();
    let sizes = if arguments.is_empty() { vec![200_000, 1_000_000] } else { arguments };

    for rows in sizes {
        let train = friedman(rows, 2, 1);
        let target = Target::Classes { labels: &train.labels, classes: 2 };
        let threads = NonZeroUsize::new(2).unwrap();
        let short = rows > 500_000;

        for rounds in if short { vec![100] } else { vec![100, 200] } {
            let options = BoostOptions { rounds, ..BoostOptions::default() };
            let run = || train_boosted(&train.table, target, None, &options, 1, threads).unwrap();
            report(&format!("{rows} rows, boosted, {rounds} x depth 6"), run, &test);
        }

        let shapes = [(100, 12), (48, 10), (200, 12)];

        for (trees, max_depth) in shapes.into_iter().take(if short { 1 } else { 3 }) {
            let options = ForestOptions { trees, max_depth, ..ForestOptions::default() };
            let run = || train_forest(&train.table, target, None, &options, 1, threads).unwrap();
            report(&format!("{rows} rows, forest, {trees} x depth {max_depth}"), run, &test);
        }
    }
}

fn report(name: &str, train: impl Fn() -> Ensemble, test: &Data) {
    let (begun, cpu) = (Clock::now(), cpu_seconds());
    let model = train();
    let (took, cpu) = (begun.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let all = model.predict_all(&test.table, NonZeroUsize::MIN).unwrap();
    let ones: Vec<f32> = all.chunks(2).map(|shares| shares[1]).collect();
    let naive = Naive::new(&model);
    let row = |ask: &mut dyn FnMut(&[f32]) -> f32| median(&test.table, ask);
    let mut out = [0.0; 2];
    let fast = row(&mut |row| {
        model.predict(row, &mut out);
        out[1]
    });

    let slow = row(&mut |row| naive.sum(row));
    println!(
        "{name:38} {took:8.2} {cpu:7.2} {:6.4} {:8.4} {fast:9.0} {slow:9.0}",
        auc(&ones, &test.labels).unwrap(),
        log_loss(&all, 2, &test.labels).unwrap(),
    );
}

/// Processor time of all threads of this process.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let mut fields = stat.rsplit(") ").next().unwrap().split(' ').skip(11);
    let mut ticks = || fields.next().unwrap().parse::<f64>().unwrap();
    // In hundredths of a second, on every Linux.
    (ticks() + ticks()) / 100.0
}

/// The median time of one row, in nanoseconds: each a different one, eight by one reading of the clock.
fn median(table: &FeatureTable, ask: &mut dyn FnMut(&[f32]) -> f32) -> f64 {
    let mut rows = vec![[0.0; FEATURES]; 20_000];
    rows.iter_mut().enumerate().for_each(|(n, row)| table.read_row(n, row));
    let mut times = Vec::new();
    let mut all = 0.0;
    for rows in rows.chunks(8) {
        let begun = Clock::now();
        rows.iter().for_each(|row| all += ask(row));
        times.push(begun.elapsed().as_nanos() as f64 / 8.0);
    }
    core::hint::black_box(all);
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// The same trees as boxes that point to each other.
struct Naive(Vec<Branch>);

enum Branch {
    Leaf(f32),
    Split { feature: usize, missing_left: bool, threshold: f32, sides: Box<[Branch; 2]> },
}

impl Naive {
    fn new(model: &Ensemble) -> Self {
        let parts = serde_json::to_value(model).unwrap();
        Self(parts["trees"].as_array().unwrap().iter().map(|tree| Self::branch(tree, 0)).collect())
    }

    fn branch(tree: &serde_json::Value, node: i64) -> Branch {
        if node < 0 || tree["slots"].as_array().unwrap().is_empty() {
            let leaf = if node < 0 { !node as usize } else { 0 };
            return Branch::Leaf(tree["values"][leaf].as_f64().unwrap() as f32);
        }
        let slot = tree["slots"][node as usize].as_u64().unwrap() as usize;
        let side = |side: &str| Self::branch(tree, tree[side][node as usize].as_i64().unwrap());
        Branch::Split {
            feature: slot / 2,
            missing_left: slot % 2 == 1,
            threshold: tree["thresholds"][node as usize].as_f64().unwrap() as f32,
            sides: Box::new([side("left"), side("right")]),
        }
    }

    fn sum(&self, row: &[f32]) -> f32 {
        self.0
            .iter()
            .map(|tree| {
                let mut at = tree;
                loop {
                    match at {
                        Branch::Leaf(value) => break *value,
                        Branch::Split { feature, missing_left, threshold, sides } => {
                            let value = row[*feature];
                            let left = if value.is_nan() { *missing_left } else { value <= *threshold };
                            at = &sides[usize::from(!left)];
                        }
                    }
                }
            })
            .sum()
    }
}
