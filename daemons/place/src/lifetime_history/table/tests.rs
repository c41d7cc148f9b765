use std::collections::BTreeMap;

use ballast_placement::inventory::{NamedVm, Placed, VmSpec, VmTraits};
use ballast_placement::{MemoryKb, MilliCores, Resources};

use super::*;

const HEADER: &str = "vm_id,start_s,end_s,tenant,cores,memory_gb,vm_type,deployment,batch_vms,labels\n";

fn at(s: u64) -> Instant {
    Instant::from_millis(s * 1000)
}

fn row(name: &str, start_s: u64, end_s: Option<u64>) -> HistoryRow {
    let resources = Resources::new(MilliCores::from_cores(2), MemoryKb::from_gb(3.5).unwrap());
    let vm = NamedVm { name: name.into(), spec: VmSpec::new(resources) };
    (Placed { vm, host: "s1".into(), since: at(start_s) }, end_s.map(at))
}

fn table(folder: &Path, bytes_max: u64, now_s: u64, there: &[(&str, u64)]) -> HistoryTable {
    let mut table = HistoryTable::new(folder.join("lifetimes.csv"), bytes_max, at(now_s));
    let there: Vec<_> = there.iter().map(|(name, since_s)| ((*name).to_owned(), at(*since_s))).collect();
    table.open(&there).unwrap();
    table
}

fn text(folder: &Path) -> String {
    fs::read_to_string(folder.join("lifetimes.csv")).unwrap()
}

#[test]
fn a_vm_has_a_row_when_it_comes_and_one_when_it_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut history = table(folder, 1 << 20, 100, &[]);
    let (mut placed, _) = row("a,\"b\"", 100, None);
    placed.vm.spec.tenant = Some("t".into());
    placed.vm.spec.deployment = Some("d".into());
    placed.vm.spec.traits = VmTraits {
        vm_type: Some("general".into()),
        batch_vms: Some(3),
        labels: BTreeMap::from([("zone".into(), "z\n1".into())]),
    };
    history.append(&[(placed.clone(), None)], at(100)).unwrap();
    // Of one that came before the table began nobody knows which others had ended by then.
    history.append(&[(placed, Some(at(160))), row("old", 99, Some(170))], at(170)).unwrap();

    let rest = "2,3.5,general,d,3,\"{\"\"zone\"\":\"\"z\\n1\"\"}\"\n";
    let rows = format!("\"a,\"\"b\"\"\",100,,t,{rest}\"a,\"\"b\"\"\",100,160,t,{rest}");
    assert_eq!(text(folder), format!("{HEADER}{rows}"));
}

#[test]
fn a_row_that_a_crash_has_cost_is_written_at_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut history = table(folder, 1 << 20, 100, &[]);
    history.append(&[row("a", 100, None), row("b", 110, None), row("c", 120, Some(130))], at(130)).unwrap();
    let before = text(folder);
    let mut cut = before.clone();
    cut.push_str("d,140,,half a r");
    fs::write(folder.join("lifetimes.csv"), cut).unwrap();

    // Of these a is there, and b has ended unseen. Another VM has a name of before.
    let there = [("a", 100), ("c", 150), ("older", 50)];
    let mut history = table(folder, 1 << 20, 200, &there);
    assert_eq!(text(folder), format!("{before}b,110,130,,2,3.5,,,,\n"));
    history.append(&[row("e", 200, None), row("older", 50, Some(200))], at(200)).unwrap();
    drop(history);
    table(folder, 1 << 20, 300, &[("a", 100), ("e", 200)]);
    assert_eq!(text(folder), format!("{before}b,110,130,,2,3.5,,,,\ne,200,,,2,3.5,,,,\n"));
}

#[test]
fn what_is_no_history_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for other in ["vm_id,start_s\na,1\n", "\u{0}\u{1}\n\n", "no line"] {
        fs::write(folder.join("lifetimes.csv"), other).unwrap();
        table(folder, 1 << 20, 100, &[]);
        assert_eq!(text(folder), HEADER);
    }
    assert_eq!(fs::read_to_string(folder.join("lifetimes.csv.bad")).unwrap(), "\u{0}\u{1}\n\n");
}

#[test]
fn the_table_is_bounded_and_keeps_all_vms_that_started_last() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let max = 4_000;
    let mut history = table(folder, max, 0, &[]);
    for n in 0..1_000_u64 {
        let name = format!("vm-{n}");
        history.append(&[row(&name, n, None)], at(n)).unwrap();
        // Every seventh runs on, the others end three seconds later.
        if n >= 3 && n % 7 != 0 {
            history.append(&[row(&format!("vm-{}", n - 3), n - 3, Some(n))], at(n)).unwrap();
        }
        let size = fs::metadata(folder.join("lifetimes.csv")).unwrap().len();
        assert!(size <= max && size == history.bytes(), "{n}: {size}");
    }

    let scanned = history.scan().unwrap();
    let first_s = scanned.first_s.unwrap();
    assert!((850..970).contains(&first_s), "{first_s}");
    for n in first_s..1_000 {
        let last = &scanned.last[&(hash(format!("vm-{n}").as_bytes()), n)];
        assert_eq!(last.ended, n + 3 < 1_000 && (n + 3) % 7 != 0, "{n}");
    }
    assert!(!folder.join("lifetimes.csv.new").exists());

    // A row that is longer than all that is allowed is left out.
    let long = row(&"x".repeat(5_000), 1_000, None);
    assert!(history.append(&[long], at(1_000)).is_err());
    assert!(history.bytes() <= max);
    history.append(&[row("next", 1_100, None)], at(1_100)).unwrap();
}

#[test]
fn a_full_disk_costs_the_rows_that_it_does_not_take() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut history = table(folder, 1 << 20, 0, &[]);
    history.append(&[row("a", 1, None)], at(1)).unwrap();
    let good = history.file.replace(OpenOptions::new().write(true).open("/dev/full").unwrap());
    let error = history.append(&[row("b", 2, None)], at(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert!(error.to_string().contains("lifetimes.csv: "), "{error}");
    history.file = good;
    history.append(&[row("c", 3, None)], at(3)).unwrap();
    assert_eq!(text(folder), format!("{HEADER}a,1,,,2,3.5,,,,\nc,3,,,2,3.5,,,,\n"));
}
