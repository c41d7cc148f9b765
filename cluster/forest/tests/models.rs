//! What models learn, on generated data with a known truth.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use std::num::NonZeroUsize;

use ballast_forest::{
    BoostOptions, EarlyStopping, Ensemble, FeatureTable, Features, ForestOptions, Gradient, Link, Loss,
    Target, TrainError, auc, log_loss, train_boosted, train_forest, train_forest_out_of_bag, train_with_loss,
};

use ballast_types::SplitMix64;

mod data;
use data::{Data, FEATURES, friedman};

fn threads(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap()
}

fn classes(data: &Data) -> Target<'_> {
    Target::Classes { labels: &data.labels, classes: data.classes }
}

fn forest(data: &Data, target: Target<'_>, options: &ForestOptions<'_>) -> Ensemble {
    train_forest(&data.table, target, None, options, 1, threads(2)).unwrap()
}

fn boosted(data: &Data, target: Target<'_>, options: &BoostOptions<'_>) -> Ensemble {
    train_boosted(&data.table, target, None, options, 1, threads(2)).unwrap()
}

fn ask(model: &Ensemble, table: &FeatureTable) -> Vec<f32> {
    model.predict_all(table, threads(2)).unwrap()
}

/// Area under the curve and log-loss.
fn score(model: &Ensemble, data: &Data) -> (f64, f64) {
    let all = ask(model, &data.table);
    let ones: Vec<f32> = all.chunks(2).map(|shares| shares[1]).collect();
    (auc(&ones, &data.labels).unwrap(), log_loss(&all, 2, &data.labels).unwrap())
}

fn squared_error(model: &Ensemble, data: &Data) -> f64 {
    let all = ask(model, &data.table);
    let errors = all.iter().zip(&data.values).map(|(a, b)| f64::from((a - b) * (a - b)));
    errors.sum::<f64>() / all.len() as f64
}

#[test]
fn both_models_learn_two_classes_nearly_as_well_as_the_truth_allows() {
    let (train, test) = (friedman(8000, 2, 1), friedman(4000, 2, 2));
    let truth = log_loss(&test.truth, 2, &test.labels).unwrap();
    let model = forest(&train, classes(&train), &ForestOptions::default());
    let (area, loss) = score(&model, &test);
    assert!(area > 0.85 && loss < truth + 0.11, "{area} {loss}, {truth}");
    // The useful features stand out; the sixth and seventh are noise.
    let importance = model.importance();
    assert!((importance.iter().sum::<f64>() - 1.0).abs() < 1e-6);
    assert!([0, 1, 3].iter().all(|useful| importance[*useful] > 2.0 * importance[5].max(importance[6])));
    let (area, loss) = score(&boosted(&train, classes(&train), &BoostOptions::default()), &test);
    assert!(area > 0.87 && loss < truth + 0.05, "{area} {loss}, {truth}");
}

#[test]
fn both_models_learn_several_classes() {
    for kinds in [3, 5] {
        let (train, test) = (friedman(3000, kinds, 1), friedman(2000, kinds, 2));
        let truth = log_loss(&test.truth, kinds as usize, &test.labels).unwrap();
        let options = BoostOptions { rounds: 40, ..BoostOptions::default() };
        let forest = forest(&train, classes(&train), &ForestOptions::default());
        let boosted = boosted(&train, classes(&train), &options);
        for (model, more) in [(forest, 0.6), (boosted, 0.4)] {
            let all = ask(&model, &test.table);
            assert!(all.chunks(kinds as usize).all(|s| (s.iter().sum::<f32>() - 1.0).abs() < 1e-5));
            let loss = log_loss(&all, kinds as usize, &test.labels).unwrap();
            assert!(loss < truth + more && loss > truth - 0.03, "{kinds} {loss}, {truth}");
        }
    }
}

#[test]
fn both_models_learn_values() {
    let (train, test) = (friedman(5000, 2, 3), friedman(3000, 2, 4));
    let target = Target::Values(&train.values);
    let options = ForestOptions { features: Features::All, ..ForestOptions::default() };
    let error = squared_error(&forest(&train, target, &options), &test);
    // The noise alone has variance 1, the values about 30.
    assert!(error < 4.5, "{error}");
    let options = BoostOptions { rounds: 200, ..BoostOptions::default() };
    let error = squared_error(&boosted(&train, target, &options), &test);
    assert!(error > 0.9 && error < 1.9, "{error}");
}

#[test]
fn models_do_not_depend_on_the_number_of_threads_and_do_on_the_seed() {
    let data = friedman(1500, 3, 5);
    let stop = Some(EarlyStopping { hold_out: 0.2, patience: 5 });
    let boost = BoostOptions {
        rounds: 12,
        subsample: 0.7,
        features: Features::Count(6),
        early_stopping: stop,
        ..BoostOptions::default()
    };

    let whole = BoostOptions { rounds: 5, ..BoostOptions::default() };
    let grow = ForestOptions { trees: 13, ..ForestOptions::default() };

    for target in [classes(&data), Target::Values(&data.values)] {
        let train = |seed, n| {
            let (table, n) = (&data.table, threads(n));
            let forest = train_forest_out_of_bag(table, target, None, &grow, seed, n).unwrap();
            let boosted = train_boosted(table, target, None, &boost, seed, n).unwrap();
            let plain = train_boosted(table, target, None, &whole, seed, n).unwrap();

            (forest.0, forest.1.iter().map(|v| v.to_bits()).collect::<Vec<_>>(), boosted, plain)
        };

        let one = train(7, 1);
        for n in [2, 3, 8] {
            assert!(train(7, n) == one, "{n} threads");
        }
        let other = train(8, 1);
        assert!(other.0 != one.0 && other.2 != one.2);

        // Nothing is drawn: the seed does not matter.
        assert!(other.3 == one.3);
        let (a, b) = (one.0.predict_all(&data.table, threads(1)), one.0.predict_all(&data.table, threads(3)));

        assert_eq!(a, b);
    }
}

#[test]
fn leaf_by_leaf_without_a_bound_is_level_by_level_and_threads_change_nothing() {
    let data = friedman(1500, 3, 5);
    let all = Some(1 << 20);
    let level = BoostOptions { rounds: 5, ..BoostOptions::default() };
    let leaf = BoostOptions { max_leaves: all, ..level };
    let grow = ForestOptions { trees: 9, features: Features::All, ..ForestOptions::default() };
    let grow_leaf = ForestOptions { max_leaves: all, ..grow };

    for target in [classes(&data), Target::Values(&data.values)] {
        let answers = |model: Ensemble| ask(&model, &data.table);
        assert_eq!(answers(boosted(&data, target, &level)), answers(boosted(&data, target, &leaf)));
        assert_eq!(answers(forest(&data, target, &grow)), answers(forest(&data, target, &grow_leaf)));

        let few = BoostOptions { max_leaves: Some(8), features: Features::Count(6), ..level };
        let train = |n| train_boosted(&data.table, target, None, &few, 1, threads(n)).unwrap();
        let one = train(1);
        assert!(train(2) == one && train(3) == one);
        assert_ne!(answers(one), answers(boosted(&data, target, &level)));
    }
}

/// A table of the rows `picked`, with few different values.
fn coarse(data: &Data, picked: &[usize]) -> FeatureTable {
    let column = |feature: usize| {
        let values = data.table.column(feature).unwrap();
        picked.iter().map(|row| (values[*row] * 20.0).floor()).collect()
    };
    FeatureTable::from_columns((0..FEATURES).map(column).collect()).unwrap()
}

#[test]
fn a_weight_is_as_good_as_repeated_rows() {
    let data = friedman(400, 2, 6);
    let once: Vec<usize> = (0..400).collect();
    let times = |row: usize| row % 4;
    let often: Vec<usize> = once.iter().flat_map(|row| core::iter::repeat_n(*row, times(*row))).collect();
    let weights: Vec<f32> = once.iter().map(|row| times(*row) as f32).collect();
    let (table, repeated) = (coarse(&data, &once), coarse(&data, &often));
    let labels: Vec<u32> = often.iter().map(|row| data.labels[*row]).collect();
    let values: Vec<f32> = often.iter().map(|row| data.values[*row]).collect();
    let grow = ForestOptions {
        trees: 1,
        bootstrap: false,
        features: Features::All,
        max_depth: 4,
        ..ForestOptions::default()
    };

    let boost = BoostOptions { rounds: 5, max_depth: 3, ..BoostOptions::default() };

    for (target, target_repeated) in [
        (classes(&data), Target::Classes { labels: &labels, classes: 2 }),
        (Target::Values(&data.values), Target::Values(&values)),
    ] {
        let weights = Some(&weights[..]);
        let one = threads(1);
        for (a, b) in [
            (
                train_forest(&table, target, weights, &grow, 1, one).unwrap(),
                train_forest(&repeated, target_repeated, None, &grow, 1, one).unwrap(),
            ),
            (
                train_boosted(&table, target, weights, &boost, 1, one).unwrap(),
                train_boosted(&repeated, target_repeated, None, &boost, 1, one).unwrap(),
            ),
        ] {
            let (a, b) = (ask(&a, &table), ask(&b, &table));
            let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-4 * a.abs().max(1.0);
            assert!(a.iter().zip(&b).all(close), "{a:?} {b:?}");
        }
    }
}

#[test]
fn missing_values_learn_where_they_belong() {
    // Known values say nothing; that one is missing says all, in one tree even more than noise.
    for missing_class in [0, 1] {
        let mut draws = data::Draws(11);
        let known: Vec<bool> = (0..2000).map(|_| draws.uniform() < 0.7).collect();
        let values = known.iter().map(|known| if *known { draws.uniform() as f32 } else { f32::NAN });
        let table = FeatureTable::from_columns(vec![values.collect()]).unwrap();
        let labels: Vec<u32> =
            known.iter().map(|known| if *known { 1 - missing_class } else { missing_class }).collect();
        let target = Target::Classes { labels: &labels, classes: 2 };
        let grow = ForestOptions { trees: 3, max_depth: 2, ..ForestOptions::default() };

        for model in [
            train_forest(&table, target, None, &grow, 1, threads(1)).unwrap(),
            train_boosted(&table, target, None, &BoostOptions::default(), 1, threads(1)).unwrap(),
        ] {
            let ask = |value| {
                let mut out = [0.0; 2];
                model.predict(&[value], &mut out);
                out[missing_class as usize]
            };

            assert!(ask(f32::NAN) > 0.99 && ask(0.3) < 0.01 && ask(0.99) < 0.01);

            // What lies beyond all that was seen goes where its side went.
            assert!(ask(f32::INFINITY) < 0.01 || ask(f32::INFINITY) > 0.99);
            assert!(ask(-1e30) < 0.01);
        }
    }
}

#[test]
fn a_value_at_an_edge_goes_the_same_way_as_in_training() {
    // Neighbouring floats: no threshold fits between them.
    let base = [0.0f32, 1.0, -1.0, 1e-40, 3e38, 16_777_216.0];
    for low in base {
        let values: Vec<f32> = (0..40).map(|n| if n % 2 == 0 { low } else { low.next_up() }).collect();
        let labels: Vec<u32> = (0..40).map(|n| n % 2).collect();
        let table = FeatureTable::from_columns(vec![values]).unwrap();
        let target = Target::Classes { labels: &labels, classes: 2 };
        let grow = ForestOptions { bootstrap: false, trees: 1, ..ForestOptions::default() };
        let model = train_forest(&table, target, None, &grow, 1, threads(1)).unwrap();
        assert_eq!(log_loss(&ask(&model, &table), 2, &labels), Some(0.0), "{low}");
    }
}

#[test]
fn rows_out_of_bag_score_as_rows_never_seen() {
    let (train, test) = (friedman(3000, 2, 8), friedman(3000, 2, 9));
    let run = |data: &Data, target: Target<'_>| {
        let options = ForestOptions::default();
        train_forest_out_of_bag(&data.table, target, None, &options, 1, threads(2)).unwrap()
    };

    let (model, unseen) = run(&train, classes(&train));
    let told = model.unseen_loss().unwrap();
    assert!((log_loss(&unseen, 2, &train.labels).unwrap() - told).abs() < 1e-5);
    let (_, fresh) = score(&model, &test);

    // Learnt rows look far better than they should.
    let (_, learnt) = score(&model, &train);
    assert!((told - fresh).abs() < 0.02 && learnt < fresh - 0.1, "{told} {fresh} {learnt}");
    let (model, unseen) = run(&train, Target::Values(&train.values));
    assert_eq!(unseen.len(), 3000);
    let (told, fresh) = (model.unseen_loss().unwrap(), squared_error(&model, &test));
    assert!((told / fresh - 1.0).abs() < 0.1, "{told} {fresh}");
    let options = ForestOptions { bootstrap: false, trees: 2, ..ForestOptions::default() };
    let all = train_forest_out_of_bag(&train.table, classes(&train), None, &options, 1, threads(1));
    let (model, unseen) = all.unwrap();
    assert!(model.unseen_loss().is_none() && unseen.iter().all(|share| share.is_nan()));
}

#[test]
fn boosting_stops_where_held_out_rows_gain_nothing_more() {
    let (train, test) = (friedman(2000, 2, 12), friedman(4000, 2, 13));
    let long = BoostOptions { rounds: 200, learning_rate: 0.3, min_leaf: 5, ..BoostOptions::default() };
    let stop = EarlyStopping { hold_out: 0.2, patience: 10 };
    let stopping = BoostOptions { early_stopping: Some(stop), ..long };
    let (all, stopped) =
        (boosted(&train, classes(&train), &long), boosted(&train, classes(&train), &stopping));
    assert_eq!((all.trees(), all.unseen_loss()), (200, None));
    assert!((5..100).contains(&stopped.trees()), "{}", stopped.trees());
    let (over, fresh) = (score(&all, &test).1, score(&stopped, &test).1);
    assert!(fresh < over - 0.1, "{fresh} {over}");
    assert!((stopped.unseen_loss().unwrap() - fresh).abs() < 0.06);
}

#[test]
fn without_anything_to_learn_the_prior_is_the_answer() {
    let table = FeatureTable::from_columns(vec![vec![1.0; 100], vec![f32::NAN; 100]]).unwrap();
    let labels: Vec<u32> = (0..100).map(|n| u32::from(n % 4 == 0)).collect();
    let target = Target::Classes { labels: &labels, classes: 2 };
    let grow = ForestOptions { bootstrap: false, ..ForestOptions::default() };
    let forest = train_forest(&table, target, None, &grow, 1, threads(1)).unwrap();
    let boosted = train_boosted(&table, target, None, &BoostOptions::default(), 1, threads(1)).unwrap();
    for model in [forest, boosted] {
        let mut out = [0.0; 2];
        model.predict(&[3.0, 4.0], &mut out);
        assert!((out[1] - 0.25).abs() < 1e-5, "{out:?}");
        assert_eq!(model.importance(), [0.0, 0.0]);
    }

    // One class alone.
    let target = Target::Classes { labels: &[1; 100], classes: 3 };
    let boosted = train_boosted(&table, target, None, &BoostOptions::default(), 1, threads(1)).unwrap();
    let mut out = [0.0; 3];
    boosted.predict(&[3.0, 4.0], &mut out);
    assert!(out[1] > 0.999, "{out:?}");
}

#[test]
fn values_of_any_size_are_learnt() {
    let table = FeatureTable::from_columns(vec![(0..100).map(|n| n as f32).collect()]).unwrap();
    for size in [1e-38f32, 1.0, 1e15, 3e38] {
        let values: Vec<f32> = (0..100).map(|n| if n < 50 { -size } else { size }).collect();
        let target = Target::Values(&values);
        let boost = BoostOptions { rounds: 300, ..BoostOptions::default() };
        for model in [
            train_forest(&table, target, None, &ForestOptions::default(), 1, threads(1)).unwrap(),
            train_boosted(&table, target, None, &boost, 1, threads(1)).unwrap(),
        ] {
            let mut out = [0.0];
            model.predict(&[99.0], &mut out);
            assert!((out[0] / size - 1.0).abs() < 1e-3, "{size}: {out:?}");
            assert_eq!(model.importance(), [1.0]);
        }
    }
}

#[test]
fn where_chosen_features_cannot_split_others_are_tried() {
    // One useful column among nineteen that never change.
    let mut columns = vec![vec![1.0f32; 200]; 20];
    columns[13] = (0..200).map(|n| n as f32).collect();
    let labels: Vec<u32> = (0..200).map(|n| u32::from(n >= 100)).collect();
    let table = FeatureTable::from_columns(columns).unwrap();
    let target = Target::Classes { labels: &labels, classes: 2 };
    let grow = ForestOptions { trees: 5, features: Features::Count(1), ..ForestOptions::default() };
    let model = train_forest(&table, target, None, &grow, 1, threads(1)).unwrap();
    let ones: Vec<f32> = ask(&model, &table).chunks(2).map(|shares| shares[1]).collect();
    assert_eq!(auc(&ones, &labels), Some(1.0));
}

/// Absolute error, smoothed: of one's own.
struct PseudoHuber<'a>(&'a [f32]);

impl Loss for PseudoHuber<'_> {
    fn outputs(&self) -> usize {
        1
    }

    fn link(&self) -> Link {
        Link::Identity
    }

    fn start(&self, _: &mut dyn Iterator<Item = (usize, f32)>) -> Vec<f32> {
        vec![0.0]
    }

    fn gradients(&self, row: usize, scores: &[f32], out: &mut [Gradient]) {
        let error = scores[0] - self.0[row];
        let root = (1.0 + error * error).sqrt();
        out[0] = Gradient { first: error / root, second: 1.0 / (root * root * root) };
    }

    fn loss(&self, row: usize, scores: &[f32]) -> f64 {
        f64::from((1.0 + (scores[0] - self.0[row]) * (scores[0] - self.0[row])).sqrt())
    }
}

#[test]
fn a_loss_of_ones_own_is_made_small() {
    let table = FeatureTable::from_columns(vec![(0..600).map(|n| (n % 2) as f32).collect()]).unwrap();
    // Outliers that a mean would follow.
    let values: Vec<f32> = (0..600).map(|n| if n % 20 < 2 { 1000.0 } else { (n % 2) as f32 * 2.0 }).collect();
    let options = BoostOptions { rounds: 300, ..BoostOptions::default() };
    let train = |loss: &dyn Loss| train_with_loss(&table, loss, None, &options, 1, threads(1));
    let model = train(&PseudoHuber(&values)).unwrap();
    let mut out = [0.0];
    for (value, expected) in [(0.0, 0.0), (1.0, 2.0)] {
        model.predict(&[value], &mut out);
        assert!((out[0] - expected).abs() < 0.3, "{value}: {out:?}");
    }
    let broken = [f32::NAN; 600];
    assert!(matches!(train(&PseudoHuber(&broken)), Err(TrainError::Unsound(_))));
}

#[test]
fn what_cannot_be_trained_is_refused_by_name() {
    let data = friedman(50, 2, 1);
    let one = threads(1);
    let grow = ForestOptions::default();
    let refused = |target, weights: Option<&[f32]>, options: &ForestOptions<'_>| {
        train_forest(&data.table, target, weights, options, 1, one).unwrap_err().to_string()
    };
    let two = classes(&data);
    let mut labels = data.labels.clone();
    labels[7] = 2;
    let wrong = Target::Classes { labels: &labels, classes: 2 };
    assert_eq!(refused(wrong, None, &grow), "row 7: class 2; allowed: 0 to 1");
    let wrong = Target::Classes { labels: &[], classes: 2 };
    assert_eq!(refused(wrong, None, &grow), "0 labels for 50 rows");
    let wrong = Target::Classes { labels: &labels, classes: 33 };
    assert_eq!(refused(wrong, None, &grow), "classes = 33; allowed: 2 to 32");
    let mut values = data.values.clone();
    values[3] = f32::NAN;
    assert_eq!(refused(Target::Values(&values), None, &grow), "row 3: value NaN; allowed: finite");
    let mut weights = vec![1.0; 50];
    weights[4] = -1.0;
    let error = "row 4: weight -1; allowed: finite, not negative";
    assert_eq!(refused(two, Some(&weights), &grow), error);
    let error = "no row with a weight above 0 to learn from";
    assert_eq!(refused(two, Some(&[0.0; 50]), &grow), error);

    for (options, error) in [
        (ForestOptions { trees: 0, ..grow }, "trees = 0; allowed: 1 to 100000"),
        (ForestOptions { max_depth: 21, ..grow }, "max_depth = 21; allowed: 1 to 20"),
        (ForestOptions { features: Features::Count(0), ..grow }, "features = 0; allowed: at least 1"),
    ] {
        assert_eq!(refused(two, None, &options), error);
    }

    let boost = BoostOptions::default();

    for (options, error) in [
        (BoostOptions { subsample: 0.0, ..boost }, "subsample = 0; allowed: above 0, at most 1"),
        (
            BoostOptions { learning_rate: f32::NAN, ..boost },
            "learning_rate = NaN; allowed: above 0, at most 1",
        ),
        (BoostOptions { l2: -1.0, ..boost }, "l2 = -1; allowed: finite, at least 0"),
    ] {
        let error_found = train_boosted(&data.table, two, None, &options, 1, one).unwrap_err();
        assert_eq!(error_found.to_string(), error);
    }

    let model = train_forest(&data.table, two, None, &grow, 1, one).unwrap();
    let narrow = FeatureTable::from_columns(vec![vec![1.0]]).unwrap();
    let error = model.predict_all(&narrow, one).unwrap_err();
    assert_eq!(error.to_string(), "1 columns for a model of 15 features");
}

#[test]
fn rows_of_a_group_are_seen_or_unseen_together() {
    // Forty groups of ten rows each; a group's answer is a coin, and its first feature names it.
    let mut chance = SplitMix64::new(5);
    let coins: Vec<u32> = (0..40).map(|_| (chance.draw() >> 63) as u32).collect();
    let groups: Vec<u32> = (0..400).map(|row| row / 10).collect();
    let labels: Vec<u32> = groups.iter().map(|group| coins[*group as usize]).collect();
    let column = groups.iter().map(|group| *group as f32).collect();
    let table = FeatureTable::from_columns(vec![column]).unwrap();
    let target = Target::Classes { labels: &labels, classes: 2 };
    let right = |groups| {
        let options = ForestOptions { groups, min_leaf: 1, ..ForestOptions::default() };
        let (_, unseen) = train_forest_out_of_bag(&table, target, None, &options, 1, threads(2)).unwrap();
        let right = |(shares, label): (&[f32], &u32)| u32::from((shares[1] >= 0.5) == (*label == 1));
        unseen.chunks(2).zip(&labels).map(right).sum::<u32>()
    };

    // Row by row, the other rows of the group give its answer away; as a whole nobody knows it.
    assert_eq!(right(None), 400);
    assert!((100..300).contains(&right(Some(&groups))), "{}", right(Some(&groups)));

    // Boosting that stops early: what was held out by rows cannot say that a coin was learnt by heart.
    let rounds = |groups| {
        let stop = Some(EarlyStopping { hold_out: 0.3, patience: 5 });
        let options = BoostOptions { min_leaf: 1, early_stopping: stop, groups, ..BoostOptions::default() };
        train_boosted(&table, target, None, &options, 1, threads(1)).unwrap().trees()
    };
    assert!(rounds(Some(&groups)) < rounds(None) / 2, "{} {}", rounds(Some(&groups)), rounds(None));
}

#[test]
fn groups_that_do_not_fit_are_refused() {
    let table = FeatureTable::from_columns(vec![vec![1.0, 2.0, 3.0]]).unwrap();
    let target = Target::Classes { labels: &[0, 1, 0], classes: 2 };
    for (groups, message) in
        [(&[0, 1][..], "2 groups for 3 rows"), (&[0, 3, 1], "row 1: group 3; allowed: 0 to 2")]
    {
        let grow = ForestOptions { groups: Some(groups), ..ForestOptions::default() };
        let error = train_forest(&table, target, None, &grow, 1, threads(1)).unwrap_err();
        assert_eq!(error.to_string(), message);
        let boost = BoostOptions { groups: Some(groups), ..BoostOptions::default() };
        assert_eq!(train_boosted(&table, target, None, &boost, 1, threads(1)).unwrap_err(), error);
    }
}
