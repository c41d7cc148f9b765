//! From weeks of records to advice.

use ballast_types::VmClass::{NonUserFacing, UserFacing};
use ballast_usage::week::HalfHours;

use super::advice::{Advice, advise, make};
use super::*;
use crate::config::{ConfigFile as _, RecordsConfig};
use crate::records::{Limits, Store};

/// A Monday: 2026-11-02.
const MONDAY: i32 = 20_759;

fn config(keys: &str) -> RecordsConfig {
    let text = format!("server = \"s\"\nchassis = \"c\"\nmeter.offset_w = 60\n{keys}");
    AgentConfig::parse("agent.toml", &text).unwrap().records
}

/// Busy by day, every day.
fn diurnal(slot: usize) -> f64 {
    let hour = (slot % 288) as f64 / 12.0;
    30.0 - 20.0 * (hour / 24.0 * std::f64::consts::TAU).cos()
}

/// Jobs of two hours, one every seven.
fn jobs(slot: usize) -> f64 {
    if slot % 84 < 24 { 85.0 } else { 4.0 }
}

/// Five-minute means of the first `days` from [`MONDAY`] on; those of which `there` says no are missing.
fn halves(days: i32, of: fn(usize) -> f64, there: impl Fn(i32, usize) -> bool) -> HalfHours {
    let mut halves = HalfHours::new(300).unwrap();
    for day in 0..days {
        for slot in (0..288).filter(|slot| there(day, *slot)) {
            halves.add(MONDAY + day, slot / 6, of(day as usize * 288 + slot));
        }
    }
    halves
}

fn advised(days: i32, of: fn(usize) -> f64, there: impl Fn(i32, usize) -> bool) -> Advice {
    advise(&halves(days, of, there), MONDAY + days, &config(""))
}

#[test]
fn batch_takes_two_weeks_and_user_facing_none() {
    let all = |_, _| true;
    for (days, of, class, why) in [
        (4, jobs as fn(usize) -> f64, UserFacing, "4 of 5 working days recorded"),
        (5, jobs, UserFacing, "not-daily"),
        (11, jobs, UserFacing, "for less than two weeks"),
        (12, jobs, NonUserFacing, "for two weeks"),
        (21, jobs, NonUserFacing, "for two weeks"),
        (21, diurnal, UserFacing, "daily"),
        (21, |_| 50.0, NonUserFacing, "flat"),
    ] {
        let advice = advised(days, of, all);
        assert_eq!(advice.class, class, "{days}: {advice:?}");
        assert!(advice.why.contains(why), "{days}: {advice:?}");
    }

    // The first week that is daily ends it.
    let turns = |slot| if slot < 14 * 288 { jobs(slot) } else { 8.0 * diurnal(slot) };
    assert_eq!(advised(14, turns, all).class, NonUserFacing);
    assert_eq!(advised(19, turns, all).class, UserFacing);
}

#[test]
fn weekends_and_holidays_do_not_count_and_gaps_do() {
    let workday = |day: i32, _| day % 7 < 5;
    assert_eq!(advised(12, jobs, workday).class, NonUserFacing);
    // A working day that is wholly missing: no two whole weeks on end without it.
    let gap = |day: i32, _| day != 4;
    assert_eq!(advised(12, jobs, gap).class, UserFacing);
    assert_eq!(advised(21, jobs, gap).class, NonUserFacing);
    // What held before goes on for a week without any label, and no longer.
    let ends = |day: i32, _| day < 14;
    assert_eq!(advised(19, jobs, ends).class, NonUserFacing);
    assert_eq!(advised(22, jobs, ends).class, UserFacing);
    let holidays = config("[records]\nholidays = [\"2026-11-06\"]\n");
    let days = halves(13, jobs, gap);
    assert_eq!(advise(&days, MONDAY + 13, &holidays).class, UserFacing);
    let days = halves(15, jobs, gap);
    assert_eq!(advise(&days, MONDAY + 15, &holidays).class, NonUserFacing);
}

#[test]
fn seconds_while_throttled_are_missing_and_every_life_is_labelled_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(dir.path(), Limits { days: 30, bytes: 1 << 30 }).unwrap();
    let id = |name: &str| VmId::new(name).unwrap();

    for day in 0..19u32 {
        let mut records = vec![];
        for slot in 0..288u32 {
            let at = ballast_types::UsageBin((MONDAY as u32 + day) * 288 + slot);
            let mut add = |vm: &str, start: u64, percent: f64, throttled: bool| {
                let mut it = UsageRecord::empty(id(vm), VmStart(start), at, 4);
                if throttled {
                    (0..300).for_each(|_| it.throttled.add(0));
                } else {
                    (0..300).for_each(|_| it.cpu.add((percent * 10.0 * f64::from(it.cores)) as u32));
                }

                records.push(it);
            };

            let n = (day * 288 + slot) as usize;
            add("jobs", 1, jobs(n), false);
            add("capped", 1, jobs(n), slot > 100);
            add("web", 1, diurnal(n), false);

            // Another VM of that name, since the second week.
            add("anew", 1 + u64::from(day >= 7), jobs(n), false);
        }

        store.append(&records).unwrap();
    }

    let lives: Vec<_> = [("jobs", 1), ("capped", 1), ("web", 1), ("anew", 2), ("none", 1)]
        .map(|(vm, start)| (id(vm), VmStart(start)))
        .into();
    let advice = make(dir.path(), &lives, MONDAY + 18, &config("")).unwrap();
    let got: Vec<_> = advice.iter().map(|((vm, _), it)| (vm.as_str(), it.class)).collect();
    let wanted = [
        ("anew", UserFacing),
        ("capped", UserFacing),
        ("jobs", NonUserFacing),
        ("none", UserFacing),
        ("web", UserFacing),
    ];

    assert_eq!(got, wanted, "{advice:?}");
    assert!(advice[&lives[1]].why.contains("too-many-gaps"), "{advice:?}");
}
