//! Generated rows with a known truth.
#![allow(dead_code, reason = "tests, benchmark and example each use a part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use ballast_forest::FeatureTable;

pub(crate) struct Data {
    pub(crate) table: FeatureTable,
    pub(crate) labels: Vec<u32>,
    pub(crate) classes: u32,
    /// Of every row, the true probability of each class.
    pub(crate) truth: Vec<f32>,
    /// Of every row, a value with noise.
    pub(crate) values: Vec<f32>,
}

/// A linear congruential generator: good enough for data.
pub(crate) struct Draws(pub(crate) u64);

impl Draws {
    pub(crate) fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

pub(crate) const FEATURES: usize = 15;

/// J. Friedman's first function (*Multivariate adaptive regression splines*, 1991) of the first five of 15
/// features; a tenth of the fifth is missing, and that counts as 0.5. From the eighth on features are whole
/// numbers of 0 to 7, and pairs of them add their product over 16. The class is drawn: of two by the logistic
/// function of the value, of more by the value's distance to the class.
pub(crate) fn friedman(rows: usize, classes: u32, seed: u64) -> Data {
    let mut draws = Draws(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut columns = vec![Vec::new(); FEATURES];
    let (mut labels, mut truth, mut values) = (vec![], vec![], vec![]);

    for _ in 0..rows {
        let mut x: Vec<f64> = (0..FEATURES).map(|_| draws.uniform()).collect();
        x[7..].iter_mut().for_each(|x| *x = libm::floor(8.0 * *x));
        if draws.uniform() < 0.1 {
            x[4] = f64::NAN;
        }
        columns.iter_mut().zip(&x).for_each(|(column, x)| column.push(*x as f32));
        let last = if x[4].is_nan() { 0.5 } else { x[4] };
        let sine = 10.0 * libm::sin(core::f64::consts::PI * x[0] * x[1]);
        let pairs = x[7..].chunks(2).map(|pair| pair[0] * pair[1] / 16.0).sum::<f64>() - 3.0;
        let value = sine + 20.0 * (x[2] - 0.5) * (x[2] - 0.5) + 10.0 * x[3] + 5.0 * last + pairs;
        let weights: Vec<f64> = match classes {
            2 => vec![1.0, libm::exp((value - 14.4) / 2.0)],
            _ => (0..classes)
                .map(|class| {
                    let middle = 5.0 + 20.0 * (f64::from(class) + 0.5) / f64::from(classes);
                    libm::exp(-(value - middle) * (value - middle) / 10.0)
                })
                .collect(),
        };

        let all: f64 = weights.iter().sum();
        let mut left = draws.uniform() * all;
        let label = weights.iter().position(|weight| {
            left -= weight;
            left < 0.0
        });

        labels.push(label.unwrap_or(0) as u32);
        truth.extend(weights.iter().map(|weight| (weight / all) as f32));

        // The sum of twelve uniform draws: nearly normal.
        let noise = (0..12).map(|_| draws.uniform()).sum::<f64>() - 6.0;
        values.push((value + noise) as f32);
    }

    Data { table: FeatureTable::from_columns(columns).unwrap(), labels, classes, truth, values }
}
