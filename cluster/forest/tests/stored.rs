//! Models that are written and read again; and what is damaged, that must not be taken for a model.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use std::num::NonZeroUsize;
use std::sync::LazyLock;

use ballast_forest::{BoostOptions, Ensemble, ForestOptions, Target, train_boosted, train_forest};
use proptest::prelude::*;

mod data;
use data::{Data, FEATURES, friedman};

static DATA: LazyLock<[Data; 2]> = LazyLock::new(|| [friedman(300, 2, 1), friedman(300, 3, 1)]);

/// Of every kind one, small.
static MODELS: LazyLock<Vec<Ensemble>> = LazyLock::new(|| {
    let one = NonZeroUsize::MIN;
    let grow = ForestOptions { trees: 9, max_depth: 5, ..ForestOptions::default() };
    let boost = BoostOptions { rounds: 9, max_depth: 3, ..BoostOptions::default() };
    let models = DATA.iter().flat_map(|data| {
        let (table, values) = (&data.table, Target::Values(&data.values));
        let target = Target::Classes { labels: &data.labels, classes: data.classes };
        [
            train_forest(table, target, None, &grow, 1, one),
            train_boosted(table, target, None, &boost, 1, one),
            train_forest(table, values, None, &grow, 1, one),
            train_boosted(table, values, None, &boost, 1, one),
        ]
    });
    models.map(Result::unwrap).collect()
});

#[test]
fn what_is_read_is_what_was_written() {
    for model in MODELS.iter() {
        let text = serde_json::to_string(model).unwrap();
        let read: Ensemble = serde_json::from_str(&text).unwrap();
        assert_eq!(&read, model);
        let table = &DATA[0].table;
        let all = |model: &Ensemble| model.predict_all(table, NonZeroUsize::MIN).unwrap();
        let (a, b) = (all(&read), all(model));
        assert!(a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
}

#[test]
fn a_part_that_is_wrong_is_named() {
    let whole = serde_json::to_value(&MODELS[0]).unwrap();
    let refused = |damage: &dyn Fn(&mut serde_json::Value)| {
        let mut parts = whole.clone();
        damage(&mut parts);
        serde_json::from_value::<Ensemble>(parts).unwrap_err().to_string()
    };

    for (error, damage) in [
        ("features = 0", &|m: &mut serde_json::Value| m["features"] = 0.into()),
        ("outputs = 33", &|m: &mut serde_json::Value| m["outputs"] = 33.into()),
        ("gains = 15; allowed: 14", &|m: &mut serde_json::Value| m["features"] = 14.into()),
        ("trees = 0", &|m: &mut serde_json::Value| m["trees"] = serde_json::json!([])),
        ("start values = 1; allowed: 0", &|m: &mut serde_json::Value| {
            m["start"] = serde_json::json!([0.5]);
        }),
        ("tree 3: a feature", &|m: &mut serde_json::Value| m["trees"][3]["splits"][0] = 30.into()),
        ("tree 2: votes", &|m: &mut serde_json::Value| m["trees"][2]["values"][0] = 1.5.into()),
        ("unknown variant", &|m: &mut serde_json::Value| m["link"] = "cubic".into()),
        ("unknown field", &|m: &mut serde_json::Value| m["more"] = 1.into()),
    ] as [(&str, &dyn Fn(&mut serde_json::Value)); 9]
    {
        let found = refused(damage);
        assert!(found.contains(error), "{found}");
    }
}

proptest! {
    /// Whatever changes in a file: it is refused, or it still is a model that answers.
    #[test]
    fn no_damage_makes_a_panic_or_a_wrong_index(
        which in 0..8usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(),
            prop::sample::select(b"0123456789-.,e[]{}\"n ".to_vec())), 1..4),
    ) {
        let mut bytes = serde_json::to_vec(&MODELS[which]).unwrap();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(model) = serde_json::from_slice::<Ensemble>(&bytes) {
            let mut out = vec![0.0; model.outputs()];
            for value in [0.0, 1.0, f32::NAN, f32::MAX, f32::NEG_INFINITY] {
                model.predict(&vec![value; model.features()], &mut out);
                prop_assert!(out.iter().all(|value| !value.is_nan()));
            }
            prop_assert_eq!(model.importance().len(), model.features());
        }
    }

    /// The same, aimed at the numbers of a tree.
    #[test]
    fn no_number_makes_a_panic_or_a_wrong_index(
        which in 0..8usize,
        tree in 0..9usize,
        part in prop::sample::select(vec!["splits", "left", "right", "thresholds", "values"]),
        at in any::<prop::sample::Index>(),
        number in prop_oneof![-40..40i64, any::<i64>(), any::<i32>().prop_map(i64::from)],
    ) {
        let mut parts = serde_json::to_value(&MODELS[which]).unwrap();
        let numbers = parts["trees"][tree][part].as_array_mut().unwrap();
        if numbers.is_empty() {
            return Ok(());
        }
        let at = at.index(numbers.len());
        numbers[at] = number.into();

        if let Ok(model) = serde_json::from_value::<Ensemble>(parts) {
            let mut out = vec![0.0; model.outputs()];
            for value in [0.0, 1.0, f32::NAN, 1e30] {
                model.predict(&[value; FEATURES], &mut out);
            }
            prop_assert!(out.iter().all(|value| !value.is_nan()));
        }
    }
}
