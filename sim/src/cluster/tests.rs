use ballast_placement::fits::{Capacity, Open};
use ballast_placement::rules::BestFit;
use ballast_placement::{
    ChassisId, Cluster, Host, MemoryKb, MilliCores, Ranking, Resources, Scheduler, Tier, Ties,
};

use super::*;

const HEAD: &str = "vm_id,batch_id,arrival_s,cores,mem_gb,dur_lo_s,dur_hi_s,censored\n";

fn read(rows: &str) -> Result<Arrivals, ArrivalsError> {
    Arrivals::read(format!("{HEAD}{rows}").as_bytes(), "t.csv")
}

fn scheduler(hosts: u32) -> Scheduler {
    let capacity = Resources::new(MilliCores::from_cores(4), MemoryKb::from_gb(16.0).unwrap());
    let host = Host::new(ChassisId(0), capacity);
    let cluster = Cluster::new(&vec![host; hosts as usize]);
    let ranking = Ranking::new(vec![Tier::one(BestFit::new(&cluster, Ties::Id))], Ties::Id);
    Scheduler::new(cluster, vec![Box::new(Capacity), Box::new(Open)], ranking)
}

/// Lines of `vm_id,host`, and what came of it.
fn play(rows: &str, hosts: u32, options: ReplayOptions) -> (String, Outcome) {
    let mut lines = Vec::new();
    let mut scheduler = scheduler(hosts);
    let outcome = replay(&read(rows).unwrap(), &mut scheduler, &options, &Plan::default(), |vm, host| {
        lines.push(format!("{vm},{}", host.map_or(String::new(), |h| h.to_string())));
    });
    (lines.join(" "), outcome.unwrap())
}

#[test]
fn vms_leave_before_others_come_and_censored_ones_never() {
    let rows = "0,0,100,4,1,0,0,0\n1,0,399,4,1,300,300,0\n2,0,400,4,1,300,900,1\n\
                3,0,90000,4,1,300,300,0\n";
    let (lines, outcome) = play(rows, 1, ReplayOptions::default());
    // 0 lives 300 s although the file says 0; 2 comes at the instant at which it leaves, and stays.
    assert_eq!(lines, "0,0 1, 2,0 3,");
    assert_eq!((outcome.placed, outcome.failed), (2, 2));
    assert_eq!(outcome.failures.into_iter().collect::<Vec<_>>(), [(Reason::Cores, 2)]);
    assert_eq!((outcome.empty_host_ratio, outcome.packing_density), (0.0, 1.0));
}

#[test]
fn the_window_counts_from_the_first_arrival_and_includes_its_end() {
    let rows = "5,0,1000,1,1,300,300,0\n6,0,1600,1,1,300,300,0\n7,0,1601,1,1,300,300,0\n";
    let options = ReplayOptions { until_ms: Some(600_000), ..ReplayOptions::default() };
    let (lines, outcome) = play(rows, 2, options);
    assert_eq!(lines, "5,0 6,0");
    // One of two hosts is used for half of the time, by one of four cores.
    assert_eq!((outcome.empty_host_ratio, outcome.packing_density), (0.75, 0.25));
}

#[test]
fn copies_come_one_after_the_other_at_every_instant() {
    let rows = "0,0,0,2,1,300,300,0\n9,0,0,1,1,300,300,0\n3,1,300,4,1,300,300,0\n";
    let options = ReplayOptions { repeat: 2, ..ReplayOptions::default() };
    let (lines, _) = play(rows, 2, options);
    assert_eq!(lines, "0,0 9,0 10,1 19,0 3,0 13,1");
}

#[test]
fn unordered_files_are_played_in_time() {
    let rows = "0,0,900,1,1,300,300,0\n1,0,0,1,1,300,300,0\n2,0,0,1,1,300,300,0\n";
    assert_eq!(play(rows, 1, ReplayOptions::default()).0, "1,0 2,0 0,0");
}

#[test]
fn a_batch_goes_whole_where_that_is_asked_for() {
    let rows = "0,7,0,2,1,300,300,0\n1,8,0,1,1,300,300,0\n2,7,0,3,1,300,300,0\n";
    let options = ReplayOptions { atomic_batches: true, ..ReplayOptions::default() };
    let (lines, outcome) = play(rows, 1, options);
    assert_eq!(lines, "0, 2, 1,0");
    assert_eq!(outcome.failures[&Reason::Cores], 2);
    assert_eq!(play(rows, 1, ReplayOptions::default()).0, "0,0 1,0 2,");
    // Five cores are there, but no four on one host.
    let rows = "0,0,0,3,1,300,300,0\n1,1,0,4,1,300,300,0\n";
    let (_, outcome) = play(rows, 1, ReplayOptions::default());
    assert_eq!(outcome.failures[&Reason::Cores], 1);
    let rows = "0,0,0,3,1,300,300,0\n1,1,0,2,1,300,300,0\n2,1,0,2,1,300,300,0\n";
    let (_, outcome) = play(rows, 2, options);
    assert_eq!(outcome.failed, 0);
    let rows = "0,0,0,3,1,300,300,0\n1,1,0,3,1,300,300,0\n2,1,0,2,1,300,300,0\n";
    let (_, outcome) = play(rows, 2, ReplayOptions::default());
    assert_eq!(outcome.failures[&Reason::Fragmentation], 1);
}

#[test]
fn what_is_no_record_is_named() {
    for (rows, text) in [
        ("", "t.csv: no record: a trace has a header and at least one VM"),
        ("0,0,0,1,1,300,300,0\n1,0,0,1,1,300\n", "t.csv:3: 6 fields: the header has 8"),
        ("0,0,0,1,NaN,300,300,0\n", "t.csv:2: VM 0: mem_gb = \"NaN\": a number of GB from 0 to 100000"),
        ("4,0,0,-1,1,300,300,0\n", "t.csv:2: VM 4: cores = \"-1\": a number of cores above 0, at most 65536"),
        ("4,0,0,0,1,300,300,0\n", "t.csv:2: VM 4: cores = \"0\": a number of cores above 0, at most 65536"),
        ("4,0,0,1,1,300,-5,0\n", "t.csv:2: VM 4: dur_hi_s = \"-5\": a number of seconds, 0 or above"),
        ("4,0,1e99,1,1,300,300,0\n", "t.csv:2: VM 4: arrival_s = \"1e99\": a number of seconds, 0 or above"),
        ("x,0,0,1,1,300,300,0\n", "t.csv:2: VM x: vm_id = \"x\": a whole number, 0 or above"),
        (
            "4,0,0,1,1,300,300,\n",
            "t.csv:2: VM 4: censored = \"\": 0, or 1 where the trace ends before the VM",
        ),
        (
            "4,0,0,1,1,300,300,0\n5,0,0,1,1,300,300,0\n4,0,0,1,1,300,300,0\n",
            "t.csv:4: vm_id = 4: it stands in line 2 already",
        ),
    ] {
        assert_eq!(read(rows).unwrap_err().to_string(), text);
    }

    let error = Arrivals::read(&b"vm_id,batch_id\n0,0\n"[..], "t.csv").unwrap_err().to_string();
    assert!(error.starts_with("t.csv:1: no column arrival_s: needed are vm_id, "), "{error}");
}

#[test]
fn a_trace_that_is_cut_short_is_no_trace() {
    let row = |n| format!("{n},{n},{},1,1.75,300,300,0\n", n * 300);
    let whole: String = core::iter::once(HEAD.to_owned()).chain((0..5000).map(row)).collect();
    let packed = zstd::encode_all(whole.as_bytes(), 3).unwrap();
    assert_eq!(Arrivals::read(&*packed, "t.csv.zst").unwrap().vms.len(), 5000);

    // Wherever it is cut: in a block, between two, in the checksum.
    let cuts = (1..16).map(|part| packed.len() * part / 16).chain([packed.len() - 1]);

    for cut in cuts {
        let error = Arrivals::read(&packed[..cut], "t.csv.zst").unwrap_err();
        assert!(matches!(error, ArrivalsError::Io { .. }), "{cut}: {error}");
        assert!(error.to_string().starts_with("t.csv.zst, after line "), "{error}");
    }

    let error = Arrivals::read(&whole.as_bytes()[..whole.len() - 5], "t.csv").unwrap_err();
    assert!(error.to_string().starts_with("t.csv:5001: "), "{error}");

    // No end of the last line but the whole one passes.
    let last = whole.trim_end().rfind('\n').unwrap();

    for cut in last + 2..whole.len() - 1 {
        let error = Arrivals::read(&whole.as_bytes()[..cut], "t.csv").unwrap_err();
        assert!(error.to_string().starts_with("t.csv:5001: "), "{cut}: {error}");
    }
}

#[test]
fn a_vm_that_no_host_could_hold_is_named_by_its_record() {
    let rows = "0,0,0,1,1,300,300,0\n1,0,0,5,1,300,300,0\n";
    for atomic_batches in [false, true] {
        let options = ReplayOptions { atomic_batches, ..ReplayOptions::default() };
        let error = replay(&read(rows).unwrap(), &mut scheduler(1), &options, &Plan::default(), |_, _| {});
        assert_eq!(
            error.unwrap_err().to_string(),
            "t.csv:3: VM 1 asks for 5 cores, 1 GB: the largest host has 4 cores, 16 GB"
        );
    }
    let rows = "18446744073709551615,0,0,1,1,300,300,0\n";
    let options = ReplayOptions { repeat: 2, ..ReplayOptions::default() };
    let error = replay(&read(rows).unwrap(), &mut scheduler(1), &options, &Plan::default(), |_, _| {});
    assert!(error.unwrap_err().to_string().starts_with("t.csv: 2 copies: "));
}

#[test]
fn a_month_counts_every_request_and_every_hour() {
    let site = Site {
        chassis: 2,
        servers: 3,
        cores: 40,
        model: ballast_types::PowerModel::PAPER,
        load: 1.5,
        days: 2,
    };

    let load = Workload::generate(6, 240, site.load, site.days);
    let setup = Setup { prediction: Arm::None.prediction(), policy: ballast_placement::Policy::BEST_FIT };

    let free = run(&site, &setup, &load, None);
    assert_eq!(free.requests as usize, load.deployments.len());
    assert_eq!((free.draws_w.len(), free.capped_hours), (2 * 48, 0));

    // More is asked for than there is.
    assert!(free.failure_rate() > 0.0 && free.failures.contains_key(&Reason::Cores), "{free:?}");

    // With a budget below idle every hour is capped, and nothing else changes.
    let capped = run(&site, &setup, &load, Some(100.0));
    assert_eq!((capped.capped_hours, &capped.draws_w), (2 * 48, &free.draws_w));
    assert!(capped.user_facing_throttled_core_h > 0.0);
    assert!(free.draws_w.iter().all(|w| (3.0 * 112.0..=3.0 * 310.0).contains(w)));
}
