use super::*;
use proptest::prelude::*;

/// Monday, 2013-08-05.
const MONDAY: i32 = 15_922;

fn filled(period_s: u32, days: impl Iterator<Item = i32>) -> HalfHours {
    let mut half_hours = HalfHours::new(period_s).unwrap();
    for day in days {
        for sample in 0..86_400 / period_s {
            let slot = (sample * period_s / 1800) as usize;
            half_hours.add(day, slot, f64::from(day - MONDAY) + slot as f64 / 100.0);
        }
    }
    half_hours
}

/// The days of a week, as differences to the Monday.
fn days(week: &Week) -> Vec<i32> {
    week.values().chunks(DAY).map(|day| day[0] as i32).collect()
}

#[test]
fn five_working_days_are_taken_and_the_one_before_warms_up() {
    let calendar = Calendar::default();
    let two_weeks = filled(300, MONDAY..MONDAY + 14);
    let last = two_weeks.week(Choice::Last, &calendar).unwrap();
    assert_eq!(days(&last), [7, 8, 9, 10, 11]);
    assert_eq!(last.warm_up().unwrap()[0], 4.0);
    let first = two_weeks.week(Choice::First, &calendar).unwrap();
    assert_eq!((days(&first), first.warm_up()), (vec![0, 1, 2, 3, 4], None));
    let from = two_weeks.week(Choice::From(MONDAY + 2), &calendar).unwrap();
    assert_eq!(days(&from), [2, 3, 4, 7, 8]);
    let saturday = two_weeks.week(Choice::From(MONDAY + 5), &calendar).unwrap();
    assert_eq!(days(&saturday), [7, 8, 9, 10, 11]);
    assert_eq!(two_weeks.week(Choice::From(MONDAY + 8), &calendar), Err(Reason::TooShort));

    let holidays = Calendar { holidays: [MONDAY + 9].into(), dateless: false };
    assert_eq!(days(&two_weeks.week(Choice::Last, &holidays).unwrap()), [4, 7, 8, 10, 11]);
    let dateless = Calendar { dateless: true, ..Calendar::default() };
    assert_eq!(days(&two_weeks.week(Choice::Last, &dateless).unwrap()), [9, 10, 11, 12, 13]);
}

#[test]
fn days_with_too_little_in_them_are_stepped_over() {
    let calendar = Calendar::default();
    let mut half_hours = filled(1800, MONDAY..MONDAY + 12);
    for slot in 0..DAY_NEEDS - 1 {
        half_hours.add(MONDAY + 14, slot, 1.0);
    }
    assert_eq!(days(&half_hours.week(Choice::Last, &calendar).unwrap()), [7, 8, 9, 10, 11]);
    half_hours.add(MONDAY + 14, DAY_NEEDS - 1, 1.0);
    let week = half_hours.week(Choice::Last, &calendar).unwrap();
    assert_eq!(&days(&week)[..4], [8, 9, 10, 11]);

    let mut holey = filled(1800, (MONDAY..MONDAY + 5).filter(|day| *day != MONDAY + 2));
    assert_eq!(holey.week(Choice::Last, &calendar), Err(Reason::TooManyGaps));
    holey.forget_before(MONDAY + 1);
    assert_eq!(holey.week(Choice::Last, &calendar), Err(Reason::TooShort));
    assert_eq!(HalfHours::new(60).unwrap().week(Choice::Last, &calendar), Err(Reason::TooShort));
}

#[test]
fn a_half_hour_needs_half_of_its_samples() {
    let half_hours = filled(1800, MONDAY..MONDAY + 5);
    let week = half_hours.week(Choice::Last, &Calendar::default()).unwrap();
    assert_eq!(week.values()[3], 0.03);

    let mut fine = filled(300, MONDAY + 1..MONDAY + 5);
    for slot in 0..DAY {
        for sample in 0..if slot < 10 { 2 } else { 3 } {
            fine.add(MONDAY, slot, f64::from(sample));
        }
        for wrong in [f64::NAN, -1.0, 1e7, f64::INFINITY] {
            fine.add(MONDAY, slot, wrong);
        }
    }
    fine.add(MONDAY, 48, 1.0);
    let week = fine.week(Choice::Last, &Calendar::default()).unwrap();
    assert!(week.values()[..10].iter().all(|v| v.is_nan()));
    assert!(week.values()[10..48].iter().all(|v| *v == 1.0));
}

#[test]
fn periods_divide_half_an_hour() {
    for period in [1, 10, 300, 900, 1800] {
        assert!(HalfHours::new(period).is_ok());
    }
    for period in [0, 7, 1000, 3600] {
        let error = HalfHours::new(period).unwrap_err();
        assert!(error.to_string().contains(&period.to_string()), "{error}");
    }
}

#[test]
fn weekends_are_no_working_days() {
    let calendar = Calendar::default();
    let working: Vec<i32> = calendar.working_days(-4, 6).collect();
    // 1970-01-01 was a Thursday.
    assert_eq!(working, [-3, -2, -1, 0, 1, 4, 5, 6]);
    assert_eq!(calendar.working_day_before(4), Some(1));
    let never = Calendar { holidays: (-400..0).collect(), dateless: false };
    assert_eq!(never.working_day_before(0), None);
    assert_eq!(calendar.working_day_before(i32::MIN), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_samples_give_a_week_that_can_be_labelled_or_a_reason(
        samples in prop::collection::vec((MONDAY..MONDAY + 9, 0usize..50, prop::num::f64::ANY), 0..1500),
        start in prop::num::i32::ANY,
    ) {
        let mut half_hours = HalfHours::new(1800).unwrap();
        for (day, slot, value) in samples {
            half_hours.add(day, slot, value);
        }
        for choice in [Choice::Last, Choice::First, Choice::From(start)] {
            match half_hours.week(choice, &Calendar::default()) {
                Ok(week) => prop_assert!(week.check().is_ok()),
                Err(reason) => prop_assert!(matches!(reason, Reason::TooShort | Reason::TooManyGaps)),
            }
        }
    }
}
