//! A fleet whose law is known, and what is learnt from it.

use ballast_types::SplitMix64;
use proptest::prelude::*;

use super::*;
use crate::lifetime::data::{VmEnd, VmLifetime};
use crate::lifetime::feature::LifetimeFeatures;

/// VMs over 30 days: a tenant's live for 10 minutes, an hour, a day or six days in the mean, as its number says. With
/// `shuffled` that is drawn for each VM instead.
fn fleet(vms: usize, shuffled: bool) -> Vec<VmLifetime> {
    let mut chance = SplitMix64::new(7);
    let mut uniform = move || ((chance.draw() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    let horizon_s = 30 * 86_400;
    let one = |_| {
        let start_s = (uniform() * f64::from(horizon_s)) as i64;
        let tenant = (uniform() * 20.0) as usize;
        let habit = if shuffled { (uniform() * 20.0) as usize } else { tenant };
        let mean_s = [600.0, 3_600.0, 86_400.0, 518_400.0][habit % 4];
        let end_s = start_s + (-mean_s * libm::log(uniform())) as i64;
        let end = if end_s < horizon_s.into() { VmEnd::At(end_s) } else { VmEnd::Running { seen_s: 0 } };
        let features = LifetimeFeatures {
            cores: Some([1.0, 2.0, 4.0][(uniform() * 3.0) as usize]),
            memory_gb: Some(4.0),
            tenant: Some(format!("tenant-{tenant}")),
            ..LifetimeFeatures::default()
        };
        VmLifetime { start_s, end, deployment: String::new(), features }
    };
    (0..vms).map(one).collect()
}

pub(crate) fn small() -> LifetimeFile {
    trained(fleet(2_000, false))
}

fn bytes(file: &LifetimeFile) -> Vec<u8> {
    postcard::to_allocvec(file).unwrap()
}

fn trained(vms: Vec<VmLifetime>) -> LifetimeFile {
    LifetimeTrial::new(&Lifetimes::new(vms)).unwrap().learn_all()
}

#[test]
fn what_tells_lifetimes_is_found_and_beats_kaplan_and_meier() {
    let file = trained(fleet(8_000, false));
    let about = &file.about;
    assert_eq!(about.columns, [Column::Tenant]);
    assert!(about.better_than_kaplan_meier);
    let [tables, all, best] = &about.arms[..] else { panic!("{:?}", about.arms) };
    assert_eq!(best.name, "kaplan-meier by tenant");
    assert!(tables.scores.brier < 0.8 * all.scores.brier, "{about:?}");
    assert!(tables.scores.log_loss < best.scores.log_loss && tables.scores.brier < best.scores.brier * 1.02);
    assert!(tables.scores.c_index > 0.75 && all.scores.c_index == 0.5);
    assert!(tables.scores.calibration_error < 0.07);

    // Means of a day, up to 14 days; a VM that runs has the mean before it again, as its law has no memory.
    let of = |tenant: &str| LifetimeFeatures { tenant: Some(tenant.into()), ..LifetimeFeatures::default() };
    for uptime_s in [0.0, 86_400.0] {
        let answer = file.model.answer(&of("tenant-2"), 0, uptime_s);
        assert!((0.7..1.4).contains(&(answer.expected_s / 86_400.0)), "{answer:?}");
        assert!((0.7..1.4).contains(&(answer.median_s / 59_890.0)), "{answer:?}");
        assert!(answer.p10_s < answer.median_s && answer.median_s < answer.p90_s);
    }
    assert!(file.model.answer(&of("tenant-3"), 0, 0.0).lives_7d > 0.2);
    assert!(file.model.answer(&of("tenant-0"), 0, 0.0).lives_7d < 0.01);
}

#[test]
fn shuffled_lifetimes_are_said_to_be_no_better_than_kaplan_and_meier() {
    let file = trained(fleet(8_000, true));
    let [tables, all, ..] = &file.about.arms[..] else { panic!() };
    assert!(!file.about.better_than_kaplan_meier, "{:?}", file.about);
    assert!((tables.scores.brier / all.scores.brier - 1.0).abs() < 0.01, "{:?}", file.about);
    assert_eq!(file.about.columns, []);
}

#[test]
fn boosting_finds_what_tells_lifetimes_as_well() {
    let lifetimes = Lifetimes::new(fleet(4_000, false));
    let mut trial = LifetimeTrial::new(&lifetimes).unwrap();
    let options = BoostedOptions { seed: 1, threads: std::num::NonZeroUsize::MIN };
    trial.compare_boosted(options).unwrap();
    let of = |name: &str| trial.arms.iter().find(|arm| arm.name == name).unwrap();
    let (hazards, logarithm, all) = (of("boosted hazards"), of("boosted log10 lifetime"), of("kaplan-meier"));
    assert!(hazards.gain > SURE * hazards.gain_error && hazards.scores.brier < 0.85 * all.scores.brier);
    assert!(logarithm.scores.c_index > 0.75 && logarithm.scores.log10_error < 0.6, "{logarithm:?}");
    // A time is no distribution.
    assert!(logarithm.scores.brier > hazards.scores.brier);
}

#[test]
fn who_is_unknown_has_the_curve_of_all() {
    let model = trained(fleet(4_000, false)).model;
    let nobody = LifetimeFeatures { tenant: Some("nobody".into()), ..LifetimeFeatures::default() };
    let nothing = LifetimeFeatures::default();
    assert_eq!(model.curve(&nobody, 0), model.curve(&nothing, i64::MIN));
    assert_eq!(model.answer(&nobody, 0, 0.0).known_columns, 0);
    let known = LifetimeFeatures { tenant: Some("tenant-1".into()), ..nothing };
    assert_eq!(model.answer(&known, 0, 0.0).known_columns, 1);
}

#[test]
fn too_few_are_refused_with_their_number() {
    let refused = LifetimeTrial::new(&Lifetimes::new(fleet(200, false))).unwrap_err().to_string();
    assert!(refused.contains("at least 100 of each"), "{refused}");
    assert!(LifetimeTrial::new(&Lifetimes::new(vec![])).is_err());
}

#[test]
fn a_worse_model_is_refused() {
    let (good, bad) = (Lifetimes::new(fleet(8_000, false)), Lifetimes::new(fleet(8_000, true)));
    let (good, bad) = (LifetimeTrial::new(&good).unwrap(), LifetimeTrial::new(&bad).unwrap());
    let (of_good, of_bad) = (good.score(&good.model), good.score(&bad.model));
    // NaN is equal to nothing.
    assert_eq!(format!("{of_good:?}"), format!("{:?}", good.arms[0].scores));
    assert_eq!(worse(&of_good, &of_bad), None);
    assert_eq!(worse(&of_good, &of_good), None);
    assert!(worse(&of_bad, &of_good).unwrap().contains("above the old model's"));
    assert!(worse(&LifetimeScores { log_loss: f64::NAN, ..of_bad }, &of_good).is_some());
}

#[test]
fn a_damaged_model_is_refused() {
    let model = trained(fleet(4_000, false)).model;
    let text = serde_json::to_string(&model).unwrap();
    assert_eq!(model.check(), Ok(()));
    for (from, to) in [("\"narrower\":[[0,1]", "\"narrower\":[[0,0]"), ("\"curve\":1", "\"curve\":99999")] {
        assert!(text.contains(from));
        let damaged: LifetimeModel = serde_json::from_str(&text.replacen(from, to, 1)).unwrap();
        assert!(damaged.check().is_err(), "{from}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]
    #[test]
    fn the_order_of_rows_changes_no_bit(seed in any::<u64>()) {
        let vms = fleet(2_000, false);
        let (first, mut turned, mut chance) = (trained(vms.clone()), vms, SplitMix64::new(seed));
        for place in (1..turned.len()).rev() {
            turned.swap(place, (chance.draw() % (place as u64 + 1)) as usize);
        }
        prop_assert!(bytes(&trained(turned)) == bytes(&first));
    }
}
