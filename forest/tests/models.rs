//! What models learn, on generated data with a known law.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::num::NonZeroUsize;

use ballast_forest::{
    BoostOptions, Ensemble, Features, ForestOptions, Target, auc, log_loss, train_boosted,
    train_forest,
};

mod data;
use data::{Data, friedman};

fn threads(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap()
}

fn classes(data: &Data) -> Target<'_> {
    Target::Classes { labels: &data.labels, classes: data.classes }
}

fn score(model: &Ensemble, data: &Data) -> (f64, f64) {
    let all = model.predict_all(&data.table, threads(2)).unwrap();
    let ones: Vec<f32> = all.chunks(2).map(|shares| shares[1]).collect();
    (auc(&ones, &data.labels).unwrap(), log_loss(&all, 2, &data.labels).unwrap())
}

#[test]
fn both_models_learn_two_classes_nearly_as_well_as_the_law_allows() {
    let (train, test) = (friedman(8000, 2, 1), friedman(4000, 2, 2));
    let forest =
        train_forest(&train.table, classes(&train), None, &ForestOptions::default(), 1, threads(2));
    let forest = score(&forest.unwrap(), &test);
    let boosted =
        train_boosted(&train.table, classes(&train), None, &BoostOptions::default(), 1, threads(2));
    let boosted = score(&boosted.unwrap(), &test);
    let law = log_loss(&test.law, 2, &test.labels).unwrap();
    assert!(forest.0 > 0.87 && forest.1 < law + 0.06, "{forest:?}, {law}");
    assert!(boosted.0 > 0.88 && boosted.1 < law + 0.04, "{boosted:?}, {law}");
}

#[test]
fn a_forest_learns_values_about_as_well_as_noise_allows() {
    let (train, test) = (friedman(8000, 2, 3), friedman(4000, 2, 4));
    let target = Target::Values(&train.values);
    let options = ForestOptions { features: Features::All, ..ForestOptions::default() };
    let forest = train_forest(&train.table, target, None, &options, 1, threads(2)).unwrap();
    let options = BoostOptions { rounds: 200, ..BoostOptions::default() };
    let boosted = train_boosted(&train.table, target, None, &options, 1, threads(2)).unwrap();
    let error = |model: &Ensemble| {
        let all = model.predict_all(&test.table, threads(2)).unwrap();
        all.iter().zip(&test.values).map(|(a, b)| f64::from((a - b) * (a - b))).sum::<f64>()
            / 4000.0
    };
    // The noise alone has variance 1, the values about 24.
    assert!(error(&forest) < 2.6, "{}", error(&forest));
    assert!(error(&boosted) < 1.5, "{}", error(&boosted));
}
