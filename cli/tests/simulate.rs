//! `ballast simulate` as a user runs it.

use std::path::Path;
use std::process::{Command, Output};

use crate::common::{answer as json, azure_arrivals};

const HEAD: &str = "vm_id,batch_id,arrival_s,cores,mem_gb,dur_lo_s,dur_hi_s,censored\n";

fn simulate(trace: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ballast"));
    command.args(["simulate", "--host-cores", "64", "--host-mem-gb", "256", "--trace"]);
    command.arg(trace).args(args).output().unwrap()
}

/// The first day of the Azure file, as a scan over all hosts in double precision places it.
#[test]
fn the_azure_trace_is_placed_as_a_full_scan_places_it() {
    let Some(trace) = azure_arrivals() else { return };
    for (hosts, placed, failed, hash) in [
        ("500", 70_389, 0, "b1089526203608f1403b4c00a01f40854411c26a91f9c8d7f0f186824cef9312"),
        ("300", 66_735, 3654, "874543a206b9f3ed4b760f213cc3f7ef093ffec579c6c5b8acf376572e6558a0"),
    ] {
        let args = ["--servers", hosts, "--until-s", "86400", "--json"];
        let said = json(&simulate(&trace, &[&args[..], &["--ties", "id"]].concat()));
        assert_eq!((&said["placed"], &said["failed"]), (&placed.into(), &failed.into()));
        assert_eq!(said["placement_hash"], hash, "{hosts} hosts");

        // A trace tells nothing of its VMs: the power rule says nothing, and packing is that of best fit. Ties change
        // where VMs go, and not how tightly.
        let best_fit = json(&simulate(&trace, &args));
        let power = json(&simulate(&trace, &[&args[..], &["--policy", "power"]].concat()));
        assert_eq!(power["placement_hash"], best_fit["placement_hash"]);
        assert_ne!(power["placement_hash"], hash);
        let by = |policy, told| {
            let by = ["--policy", policy, "--lifetimes", told];
            json(&simulate(&trace, &[&args[..], &by].concat()))
        };
        assert_eq!(by("nilas", "none")["placement_hash"], best_fit["placement_hash"]);
        for policy in ["nilas", "expected-exit"] {
            let oracle = &by(policy, "oracle")["placement_hash"];
            assert_ne!(oracle, &best_fit["placement_hash"], "{policy}");
            let noisy = &by(policy, "noisy:0.7:5")["placement_hash"];
            assert_eq!(noisy, &by(policy, "noisy:0.7:5")["placement_hash"], "{policy}");
            assert_ne!(noisy, &by(policy, "noisy:0.7:6")["placement_hash"], "{policy}");
            assert_ne!(noisy, oracle, "{policy}");
        }
        let ratio = |said: &serde_json::Value, key| said[key].as_f64().unwrap();
        let empty = |said: &serde_json::Value| ratio(said, "empty_host_ratio");
        assert!(empty(&best_fit) <= ratio(&best_fit, "bound_empty_ratio"), "{best_fit}");
        assert!((empty(&power) - empty(&said)).abs() < 0.02, "{power} {said}");
    }
}

#[test]
fn placements_are_written_in_the_order_of_decisions_and_hashed() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, file) = (folder.path().join("t.csv"), folder.path().join("placements.csv"));
    let rows = "7,0,0,64,16,300,300,0\n8,1,0,1,200,300,300,0\n9,2,300,64,1,300,300,0\n";
    std::fs::write(&trace, format!("{HEAD}{rows}")).unwrap();
    let args = ["--servers", "1", "--json", "--output", file.to_str().unwrap()];
    let said = json(&simulate(&trace, &args));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "7,0\n8,\n9,0\n");
    let keys: Vec<&String> = said.as_object().unwrap().keys().collect();
    let mut expected = [
        "placed",
        "failed",
        "empty_host_ratio",
        "packing_density",
        "bound_empty_ratio",
        "cpu_s",
        "vms_per_cpu_s",
        "placement_hash",
        "failures",
    ];

    expected.sort_unstable();
    assert_eq!(keys, expected);
    assert_eq!((&said["placed"], &said["failed"]), (&2.into(), &1.into()));
    assert_eq!(said["failures"], serde_json::json!({"cores": 1}));
    assert_eq!((&said["empty_host_ratio"], &said["packing_density"]), (&0.0.into(), &1.0.into()));

    // printf '7,0\n8,\n9,0\n' | sha256sum
    assert_eq!(said["placement_hash"], "7ad7a30979749ae1a12195adb521a2f26cf1d2aefe8d4541cc7508ca22de06ca");

    let power = json(&simulate(&trace, &["--servers", "2", "--json", "--policy", "power"]));
    assert_eq!(power["placed"], 3);

    // Where none fails there are no reasons.
    assert!(power.get("failures").is_none());
}

#[test]
fn what_is_wrong_is_named_and_ends_with_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("t.csv");
    for (rows, text) in [
        (
            "7,0,0,65,16,300,300,0\n",
            "t.csv:2: VM 7 asks for 65 cores, 16 GB: the largest host has 64 cores, 256 GB",
        ),
        ("7,0,0,1,nan,300,300,0\n", "t.csv:2: VM 7: mem_gb = \"nan\": a number of GB from 0"),
        ("7,0,0,1,1,300\n", "t.csv:2: 6 fields: the header has 8"),
        ("7,0,0,1,1,1,1,0\n7,0,0,1,1,1,1,0\n", "t.csv:3: vm_id = 7: it stands in line 2 already"),
        ("7,0,0,1,1,1,1,0\n7,0,9,1,1,1,1,0\n", "t.csv:3: VM 7 is already placed, on host 0"),
        (
            "7,0,9,1,1,1,1,0\n8,0,0,1,1,1,1,0\n",
            "t.csv:3: VM 8: arrival_s = 0: the VM before it comes at 9: sort the file by arrival_s",
        ),
    ] {
        std::fs::write(&trace, format!("{HEAD}{rows}")).unwrap();
        let output = simulate(&trace, &["--servers", "1"]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(text) && output.stdout.is_empty(), "{error}");
    }

    for args in [
        &["--servers", "0"][..],
        &["--servers", "1", "--until-s", "-1"],
        &["--servers", "1", "--alpha", "nan"],
        &["--servers", "1", "--ties", "name"],
    ] {
        assert_eq!(simulate(&trace, args).status.code(), Some(2), "{args:?}");
    }

    assert_eq!(simulate(&folder.path().join("none"), &["--servers", "1"]).status.code(), Some(1));
}

#[test]
fn hosts_are_drained_the_policy_changes_and_a_reserve_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("t.csv");
    let rows =
        "0,0,50,32,64,0,90000,0\n1,1,50,64,16,0,300,0\n2,2,1050,16,16,0,300,0\n3,3,1650,16,16,0,300,0\n";
    std::fs::write(&trace, format!("{HEAD}{rows}")).unwrap();
    let drain =
        ["--ties", "id", "--servers", "3", "--drain", "400=0-0,2", "--open", "1200=0", "--migration-s", "5"];
    let said = json(&simulate(&trace, &[&drain[..], &["--json"]].concat()));

    // 0 moves within 5 s + 64 GB × 1 s/GB, and holds 32 cores on both hosts.
    let drained = &said["drained"];
    assert_eq!((&drained["hosts"], &drained["emptied"]), (&2.into(), &2.into()));
    assert_eq!((&drained["moved"], &drained["left"]), (&1.into(), &0.into()));
    assert_eq!((&drained["scheduled"], &drained["saved"]), (&1.into(), &0.into()));
    assert_eq!(drained["longest_s"], 69.0);
    assert_eq!(drained["held_core_h"], 32.0 * 69.0 / 3600.0);
    assert!(said.get("phases").is_none() && said.get("failures").is_none());
    let text = simulate(&trace, &drain);
    let text = String::from_utf8_lossy(&text.stdout);
    assert!(text.contains("2 hosts drained: 2 became empty, the last after 69 s; 1 VMs moved"), "{text}");

    // With one move at a time the longest-lived of host 0 and 1 goes first; who ends before its turn is saved.
    let lives = "0,0,0,8,0,0,900,0\n1,1,0,60,0,0,90000,0\n2,2,0,60,0,0,800,0\n3,3,2000,1,0,0,300,0\n";
    let other = folder.path().join("lives.csv");
    std::fs::write(&other, format!("{HEAD}{lives}")).unwrap();
    let drain = ["--ties", "id", "--servers", "6", "--drain", "400=0-2", "--migration-s", "600", "--json"];
    for (order, moved, saved) in [("global", 1, 2), ("arrival", 1, 1)] {
        let args = ["--drain-order", order, "--drain-limit", "1", "--lifetimes", "oracle"];
        let said = json(&simulate(&other, &[&drain[..], &args].concat()));
        let drained = &said["drained"];
        assert_eq!((&drained["moved"], &drained["saved"]), (&moved.into(), &saved.into()), "{order}: {said}");
        assert_eq!((&drained["scheduled"], &drained["left"]), (&3.into(), &0.into()), "{order}: {said}");
    }
    let args = ["--servers", "4", "--defragment-below", "0.6=1", "--json"];
    let said = json(&simulate(&other, &args));
    assert!(said["drained"]["hosts"].as_u64() > Some(0), "{said}");

    let args =
        ["--ties", "id", "--servers", "2", "--policy-after", "1000=first-fit", "--admission", "reserve=0.2"];
    let said = json(&simulate(&trace, &[&args[..], &["--json"]].concat()));

    // 96 of 128 cores would leave a quarter of them; at 1050 s 32 + 16 do as well.
    assert_eq!((&said["placed"], &said["failed"]), (&4.into(), &0.into()));
    let phases = said["phases"].as_array().unwrap();
    let of = |n: usize, key: &str| phases[n][key].clone();
    assert_eq!((of(0, "policy"), of(0, "from_s")), ("best-fit".into(), 0.0.into()));
    assert_eq!((of(1, "policy"), of(1, "from_s")), ("first-fit".into(), 1000.0.into()));
    assert_eq!((of(0, "placed"), of(1, "placed")), (2.into(), 2.into()));
    let args = ["--servers", "2", "--admission", "reserve=0.3", "--json"];
    let said = json(&simulate(&trace, &args));
    assert_eq!((&said["failed"], &said["failures"]["admission"]), (&1.into(), &1.into()));

    for (args, code, text) in [
        (&["--drain", "9999=0"][..], 1, "9999 s after the first arrival: the last VM comes after 1600 s"),
        (&["--drain", "10=0-7"], 1, "10 s after the first arrival: host 2: there are 2 hosts"),
        (&["--drain", "10=3-1"], 2, "S=HOSTS is needed"),
        (&["--policy-after", "10=worst-fit"], 2, "S=NAME is needed"),
        (&["--defragment", "10=0"], 2, "S=N is needed"),
        (&["--defragment-below", "1.5=3"], 2, "SHARE=K is needed"),
        (&["--defragment-below", "0.1=0"], 2, "SHARE=K is needed"),
        (&["--drain-limit", "0"], 2, "0 is not in 1..=100000"),
        (&["--resize", "10=0-7:4:16"], 1, "10 s after the first arrival: host 2: there are 2 hosts"),
        (&["--resize", "10=0:0:16"], 2, "S=HOSTS:CORES:GB is needed"),
        (&["--admission", "reserve=1.5"], 2, "reserve=F is needed, F from 0 to 1"),
        (&["--migration-s", "nan"], 2, "a number of seconds from 0"),
    ] {
        let output = simulate(&trace, &[&["--servers", "2"], args].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && error.contains(text), "{args:?}: {error}");
    }
}

#[test]
fn empty_hosts_are_powered_down_beyond_a_reserve() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("t.csv");
    // One VM for a day on one of four hosts; a second one wants a host of its own after half of it.
    let rows = "1,0,0,64,16,86400,86400,0\n2,1,43200,64,16,86400,86400,0\n3,2,86400,1,1,300,300,0\n";
    std::fs::write(&trace, format!("{HEAD}{rows}")).unwrap();
    let args = ["--servers", "4", "--json", "--power-down-reserve", "1", "--idle-w", "110", "--off-w", "10"];
    let said = &json(&simulate(&trace, &args))["power_down"];
    // Two hosts are off for half a day, then one, but for the three minutes in which another wakes up: it draws then.
    let saved = said["saved_w"].as_f64().unwrap();
    assert!((saved - 150.0).abs() < 0.5, "{said}");
    // The third VM takes the reserve at the very end, so that one more is woken up.
    assert_eq!((&said["wakes"], &said["waited_vms"]), (&2.into(), &0.into()), "{said}");

    let none = json(&simulate(&trace, &args[..3]));
    assert!(none.get("power_down").is_none(), "{none}");
    let wrong = simulate(&trace, &[&args[..7], &["--off-w", "111"]].concat());
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("at most the 110 W"), "{wrong:?}");
}
