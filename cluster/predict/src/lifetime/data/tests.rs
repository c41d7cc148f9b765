//! What a table may hold, and what becomes of it.

use super::*;

fn vm(start_s: i64, end: VmEnd) -> VmLifetime {
    VmLifetime { start_s, end, deployment: String::new(), features: LifetimeFeatures::default() }
}

fn of(tenant: &str, deployment: &str, start_s: i64) -> VmLifetime {
    let features = LifetimeFeatures { tenant: Some(tenant.into()), ..LifetimeFeatures::default() };
    VmLifetime { deployment: deployment.into(), features, ..vm(start_s, VmEnd::At(start_s + 10)) }
}

/// A hundred VMs, one a minute, each of ten minutes.
fn hundred() -> Vec<VmLifetime> {
    (0..100).map(|n| vm(1_000_000 + 60 * n, VmEnd::At(1_000_600 + 60 * n))).collect()
}

#[test]
fn what_cannot_be_is_left_out_or_clamped_and_counted() {
    let good = hundred().len() as u64;
    let clean = Cleaned { vms: good, ..Cleaned::default() };
    for (what, bad, expected) in [
        ("nothing", vm(1_000_000, VmEnd::At(1_000_600)), Cleaned { vms: good + 1, ..clean }),
        ("before its start", vm(1_000_000, VmEnd::At(999_999)), Cleaned { end_before_start: 1, ..clean }),
        (
            "a wrong way round",
            vm(1_000_000, VmEnd::Between { from_s: 9, to_s: 8 }),
            Cleaned { end_before_start: 1, ..clean },
        ),
        ("zero", vm(1_000_000, VmEnd::At(1_000_000)), Cleaned { vms: good + 1, zero_lifetime: 1, ..clean }),
        ("1970", vm(0, VmEnd::At(1_000_000)), Cleaned { start_out_of_time: 1, ..clean }),
        (
            "the future",
            vm(2_000_000_000, VmEnd::Running { seen_s: 0 }),
            Cleaned { start_out_of_time: 1, ..clean },
        ),
        ("no time", vm(i64::MIN, VmEnd::At(i64::MAX)), Cleaned { start_out_of_time: 1, ..clean }),
        (
            "an end in the future",
            vm(1_000_000, VmEnd::At(2_000_000_000)),
            Cleaned { vms: good + 1, running: 1, end_out_of_time: 1, ..clean },
        ),
        (
            "an end beyond all numbers",
            vm(1_000_000, VmEnd::At(i64::MAX)),
            Cleaned { vms: good + 1, running: 1, end_out_of_time: 1, ..clean },
        ),
    ] {
        let mut vms = hundred();
        vms.push(bad);
        let lifetimes = Lifetimes::new(vms);
        assert_eq!(*lifetimes.cleaned(), expected, "{what}");
        assert_eq!(lifetimes.horizon_s(), 1_000_600 + 60 * 99, "{what}");
    }

    assert_eq!(*Lifetimes::new(vec![]).cleaned(), Cleaned::default());
}

#[test]
fn a_lifetime_is_known_as_far_as_the_record_goes() {
    let lifetimes = Lifetimes::new(vec![
        vm(0, VmEnd::Running { seen_s: 0 }),
        vm(0, VmEnd::Between { from_s: 500, to_s: 5_000 }),
        vm(0, VmEnd::At(0)),
        vm(1_000, VmEnd::At(1_200)),
    ]);
    let spans: Vec<_> = lifetimes.rows().iter().map(|row| (row.span.from_s, row.span.to_s)).collect();
    assert_eq!(lifetimes.horizon_s(), 1_200);
    for expected in [(1_200.0, None), (500.0, Some(1_200.0)), (0.0, Some(1.0)), (200.0, Some(200.0))] {
        assert!(spans.contains(&expected), "{spans:?}");
    }

    // By second 600 the one between 500 and 1,200 s may have ended; the last had not begun.
    let known: Vec<_> = (0..4).map(|row| lifetimes.known_by(row, 600)).map(|s| (s.from_s, s.to_s)).collect();
    for expected in [(600.0, None), (500.0, None), (0.0, Some(1.0)), (0.0, None)] {
        assert!(known.contains(&expected), "{known:?}");
    }
}

#[test]
fn groups_are_deployments_or_what_started_together() {
    let lifetimes = Lifetimes::new(vec![
        of("a", "", 0),
        of("a", "", 300),
        of("a", "", 301),
        of("b", "d", 0),
        of("b", "d", 900),
        of("b", "e", 900),
    ]);
    let column = lifetimes.columns().iter().position(|column| *column == Column::BatchVms).unwrap();
    let seen = |row: u32| {
        let batch = &lifetimes.names(column)[lifetimes.value(row, column) as usize];
        (lifetimes.rows()[row as usize].start_s, lifetimes.group(row), batch.as_str())
    };
    let seen: Vec<_> = (0..6).map(seen).collect();
    // By start, then by tenant.
    assert_eq!(seen, [(0, 0, "2"), (0, 1, "1"), (300, 0, "2"), (301, 2, "1"), (900, 1, "1"), (900, 3, "1")]);
}

#[test]
fn a_batch_that_is_told_is_not_counted() {
    let mut told = of("a", "", 0);
    told.features.batch_vms = Some(9);
    let lifetimes = Lifetimes::new(vec![told, of("a", "", 0), of("b", "", 0)]);
    let column = lifetimes.columns().iter().position(|column| *column == Column::BatchVms).unwrap();
    assert_eq!(lifetimes.names(column), ["1", "2", "9"]);
}

#[test]
fn what_is_held_out_came_later_and_is_of_no_group_that_had_begun() {
    let mut vms: Vec<_> = (0..90).map(|n| of(&format!("t{n}"), "", 1_000 * n)).collect();
    vms.push(of("both", "d", 0));
    vms.push(of("both", "d", 80_000));
    let lifetimes = Lifetimes::new(vms);
    let split = lifetimes.split();
    assert_eq!(split.cut_s, 89_010 - 89_010 / 3);
    assert_eq!((split.fit.len(), split.held_out.len()), (61, 30));
    assert!(split.held_out.iter().all(|row| lifetimes.rows()[*row as usize].start_s >= split.cut_s));
}

#[test]
fn the_order_of_a_table_changes_nothing() {
    let vms: Vec<_> = (0..200_i64).map(|n| of(&format!("t{}", n % 7), "", 60 * (n % 50))).collect();
    let (one, mut turned) = (Lifetimes::new(vms.clone()), vms);
    turned.reverse();
    turned.rotate_left(31);
    let other = Lifetimes::new(turned);
    assert_eq!((one.rows(), &one.values, &one.drawn), (other.rows(), &other.values, &other.drawn));
}
