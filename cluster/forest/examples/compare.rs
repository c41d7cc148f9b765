//! This crate's side of `cluster/forest/compare/compare.py`: writes the generated data, then trains and scores.
//!
//! `cargo run --release -p ballast-forest --example compare -- DIR [ROWS]`
#![expect(clippy::print_stdout, reason = "it prints its figures")]
#![expect(clippy::disallowed_methods, reason = "it writes files")]
#![expect(clippy::unwrap_used, reason = "a development tool")]

use std::io::Write;
use std::num::NonZeroUsize;

use ballast_forest::{
    BoostOptions, Ensemble, Features, ForestOptions, Target, auc, log_loss, train_boosted, train_forest,
};

#[path = "../tests/data/mod.rs"]
mod data;
use data::{Data, FEATURES, friedman};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().unwrap_or_else(|| ".".into());
    let rows = arguments.next().map_or(200_000, |rows| rows.parse().unwrap());

    for classes in [2, 4] {
        let (train, test) = (friedman(rows, classes, 1), friedman(rows / 4, classes, 2));
        write(&format!("{dir}/train{classes}.csv"), &train);
        write(&format!("{dir}/test{classes}.csv"), &test);
        let target = Target::Classes { labels: &train.labels, classes };
        let threads = NonZeroUsize::new(2).unwrap();
        let print = |name: &str, model: &Ensemble| {
            let all = model.predict_all(&test.table, threads).unwrap();
            let ones: Vec<f32> = all.chunks(classes as usize).map(|shares| shares[1]).collect();
            let area = auc(&ones, &test.labels).filter(|_| classes == 2);
            let loss = log_loss(&all, classes as usize, &test.labels).unwrap();
            let correct = all
                .chunks(classes as usize)
                .zip(&test.labels)
                .filter(|(shares, label)| shares.iter().all(|share| *share <= shares[**label as usize]));
            let accuracy = correct.count() as f64 / test.labels.len() as f64;
            let area = area.map_or(String::from("     -"), |area| format!("{area:.4}"));
            println!("{classes} classes, {name:28} AUC {area}, log-loss {loss:.4}, accuracy {accuracy:.4}");
        };

        let truth = log_loss(&test.truth, classes as usize, &test.labels).unwrap();
        println!("{classes} classes, {:28} AUC      -, log-loss {truth:.4}", "the truth itself");
        let options = BoostOptions::default();
        let model = train_boosted(&train.table, target, None, &options, 1, threads).unwrap();
        print("boosted, 100 x depth 6", &model);

        for (name, features) in
            [("forest, 100 x depth 12", Features::Sqrt), ("forest, all features", Features::All)]
        {
            let options = ForestOptions { max_depth: 12, features, ..ForestOptions::default() };
            print(name, &train_forest(&train.table, target, None, &options, 1, threads).unwrap());
        }
    }

    let (train, test) = (friedman(rows, 2, 3), friedman(rows / 4, 2, 4));
    write(&format!("{dir}/train_values.csv"), &train);
    write(&format!("{dir}/test_values.csv"), &test);
    let threads = NonZeroUsize::new(2).unwrap();
    let target = Target::Values(&train.values);
    let print = |name: &str, model: &Ensemble| {
        let all = model.predict_all(&test.table, threads).unwrap();
        let error = |(a, b): (&f32, &f32)| f64::from(a - b) * f64::from(a - b);
        let error = all.iter().zip(&test.values).map(error).sum::<f64>() / all.len() as f64;
        println!("values, {name:28} mean squared error {error:.4}");
    };

    let model = train_boosted(&train.table, target, None, &BoostOptions::default(), 1, threads);
    print("boosted, 100 x depth 6", &model.unwrap());
    let options = ForestOptions { max_depth: 12, features: Features::Count(5), ..ForestOptions::default() };
    print("forest, 5 features", &train_forest(&train.table, target, None, &options, 1, threads).unwrap());
}

/// Features, label, value; nothing where missing.
fn write(path: &str, data: &Data) {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).unwrap());
    let mut row = [0.0; FEATURES];
    for n in 0..data.table.rows() {
        data.table.read_row(n, &mut row);
        for value in row {
            if value.is_nan() { write!(file, ",") } else { write!(file, "{value},") }.unwrap();
        }
        writeln!(file, "{},{}", data.labels[n], data.values[n]).unwrap();
    }
    file.flush().unwrap();
}
