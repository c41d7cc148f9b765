//! What is written comes back; what is damaged is left out, and harms nothing else.

use std::fs;

use ballast_types::{Counters, MemoryUse, UsageBin, UsageRecord, VmId, VmStart};

use super::*;

const DAY: u32 = 20_778;
const LIMITS: Limits = Limits { days: 21, bytes: 1 << 20 };

fn record(vm: &str, start: u64, slot: u32, seconds: u32) -> UsageRecord {
    let slot = UsageBin(DAY * 288 + slot);
    let mut record = UsageRecord::empty(VmId::new(vm).unwrap(), VmStart(start), slot, 4);
    for second in 0..seconds {
        record.cpu.add(second * 7919 % 4001);
    }
    record
}

/// Records with everything in them.
fn some() -> Vec<UsageRecord> {
    let mut rich = record("web-1", u64::MAX, 0, 300);
    let (used_bytes, peak_bytes) = (Some(u64::MAX - 1023), Some(0));
    rich.memory = MemoryUse { used_bytes, peak_bytes, working_set_bytes: Some(1 << 20) };
    rich.counters = Counters([Some(7), Some(0), None, Some(u64::MAX - 1), Some(300), Some(1)]);
    let mut throttled = record("batch", 2, 0, 0);
    (0..300).for_each(|mc| throttled.throttled.add(mc % 7));
    throttled.memory.peak_bytes = Some(4096);
    vec![rich, throttled, record("batch", 3, 1, 299), record("web-1", u64::MAX, 287, 1)]
}

fn all(folder: &Path) -> (Vec<UsageRecord>, ReadSummary) {
    let mut all = vec![];
    let summary = read(folder, 0..=u32::MAX, |record| all.push(record)).unwrap();
    all.sort_by_key(|it| (it.bin, it.vm.clone(), it.start));
    (all, summary)
}

fn sorted(mut records: Vec<UsageRecord>) -> Vec<UsageRecord> {
    records.sort_by_key(|it| (it.bin, it.vm.clone(), it.start));
    records
}

fn file(folder: &Path) -> PathBuf {
    folder.join("2026-11-21.usage")
}

#[test]
fn records_come_back_over_restarts_and_days() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("usage");
    assert_eq!(all(&folder).0, []);
    let mut store = Store::open(&folder, LIMITS).unwrap();
    store.append(&some()).unwrap();
    let mut store = Store::open(&folder, LIMITS).unwrap();
    let tomorrow = [record("web-1", 5, 288, 300), record("web-1", 5, 289, 300)];
    let again = record("batch", 3, 2, 300);
    store.append(&[again.clone(), tomorrow[0].clone(), tomorrow[1].clone()]).unwrap();
    let mut expected = some();
    expected.extend(tomorrow);
    expected.push(again);
    let (got, summary) = all(&folder);
    assert_eq!(got, sorted(expected));
    assert_eq!(summary, ReadSummary { records: 7, ..ReadSummary::default() });
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
    let sizes = days(&folder).unwrap().into_iter().map(|(.., size)| size);
    assert_eq!(store.bytes().unwrap(), sizes.sum::<u64>());
    let mut of_day = 0;
    read(&folder, DAY + 1..=DAY + 1, |_| of_day += 1).unwrap();
    assert_eq!(of_day, 2);
}

#[test]
fn the_bytes_are_what_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(dir.path(), LIMITS).unwrap();
    let mut it = record("v", 0x0102_0304, 3, 0);
    it.cpu.add(40);
    it.cpu.add(2000);
    store.append(&[it]).unwrap();
    let bytes: String =
        fs::read(file(dir.path())).unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
    let expected = concat!(
        "62616c6c61737455020000002a510000f5397a68", // header
        "0b00462ecf9c",                             // VM 0
        "0100040302010000000076",
        "1b007f2ed56c",                         // its record
        "03000304e11be14800f80fd00fc19ef40100", // its CPU, and no throttled second
        "000000000000000000",                   // nothing else is known
    );
    assert_eq!(bytes, expected);
}

#[test]
fn a_file_cut_anywhere_gives_what_is_whole_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(dir.path(), LIMITS).unwrap();
    store.append(&some()).unwrap();
    let whole = fs::read(file(dir.path())).unwrap();
    let ends: Vec<usize> = (0..=whole.len())
        .filter(|cut| {
            fs::write(file(dir.path()), &whole[..*cut]).unwrap();
            let summary = all(dir.path()).1;
            summary.dropped == 0 && summary.problems.is_empty()
        })
        .collect();
    // After the header, the three VMs and the four records.
    assert_eq!(ends.len(), 8, "{ends:?}");

    for cut in ends[5]..whole.len() {
        fs::write(file(dir.path()), &whole[..cut]).unwrap();
        let before = all(dir.path()).0;
        let mut store = Store::open(dir.path(), LIMITS).unwrap();
        let more = record("new", 9, 100, 300);
        store.append(std::slice::from_ref(&more)).unwrap();
        assert_eq!(store.damaged(), u64::from(!ends.contains(&cut)), "{cut}");
        assert_eq!(store.aside(), []);
        let (after, summary) = all(dir.path());
        assert_eq!((after, summary.dropped), (sorted([before, vec![more]].concat()), 0), "{cut}");
    }
}

#[test]
fn a_damaged_header_sets_the_file_aside() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(dir.path(), LIMITS).unwrap();
    store.append(&some()).unwrap();
    let whole = fs::read(file(dir.path())).unwrap();

    for byte in 0..codec::HEADER {
        let mut damaged = whole.clone();
        damaged[byte] ^= 1;
        fs::write(file(dir.path()), &damaged).unwrap();
        let (records, summary) = all(dir.path());
        assert!(records.is_empty() && summary.problems.len() == 1, "{byte}: {summary:?}");
        let mut store = Store::open(dir.path(), LIMITS).unwrap();
        store.append(&some()[..1]).unwrap();
        assert!(store.aside()[0].message.contains(&format!("usage.bad{}", byte + 1)), "{:?}", store.aside());

        assert_eq!(all(dir.path()).0, some()[..1]);
    }

    let kept = dir.path().join("2026-11-21.usage.bad20");
    assert_eq!(fs::read(kept).unwrap()[..19], whole[..19]);

    // Neither a newer version nor another day's file is overwritten.
    let other = |day: u32| codec::header(day).to_vec();
    assert_eq!(codec::check_header(&other(DAY)[..].try_into().unwrap(), DAY + 1), Err(Damage::Day));
}

#[test]
fn damage_in_the_middle_costs_what_it_hits() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(dir.path(), LIMITS).unwrap();
    store.append(&some()).unwrap();
    let whole = fs::read(file(dir.path())).unwrap();

    for byte in codec::HEADER..whole.len() {
        let mut damaged = whole.clone();
        damaged[byte] ^= (byte * 37) as u8 | 1;
        fs::write(file(dir.path()), &damaged).unwrap();
        let (records, summary) = all(dir.path());
        assert!(summary.dropped > 0, "{byte}");
        assert!(records.iter().all(|it| some().contains(it)), "{byte}: a record was made up");

        // And it can be written on.
        if byte % 8 == 0 {
            let mut store = Store::open(dir.path(), LIMITS).unwrap();
            let more = record("web-1", u64::MAX, 50, 300);
            store.append(std::slice::from_ref(&more)).unwrap();
            assert!(all(dir.path()).0.contains(&more), "{byte}");
        }
    }
}

#[test]
fn one_five_minutes_over_a_restart_is_one_record() {
    let dir = tempfile::tempdir().unwrap();
    for seconds in [100, 150] {
        let mut store = Store::open(dir.path(), LIMITS).unwrap();
        store.append(&[record("v", 1, 7, seconds), record("w", 1, 7, 10)]).unwrap();
    }
    let (records, _) = all(dir.path());
    let samples: Vec<_> = records.iter().map(|it| it.cpu.samples()).collect();
    assert_eq!(samples, [250, 20]);
}

#[test]
fn the_oldest_days_go_first_and_the_newest_never() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { days: 3, bytes: 1 << 20 };
    let mut store = Store::open(dir.path(), limits).unwrap();

    for day in 0..10 {
        store.append(&[record("v", 1, day * 288, 300)]).unwrap();
    }
    fs::write(dir.path().join("notes.txt"), "kept").unwrap();
    fs::write(dir.path().join("2026-1-1.usage"), "no name of ours").unwrap();
    let names = |folder: &Path| days(folder).unwrap().iter().map(|(day, ..)| day - DAY).collect();
    let left: Vec<u32> = names(dir.path());
    assert_eq!(left, [6, 7, 8, 9]);
    let size = days(dir.path()).unwrap()[0].2;
    Store::open(dir.path(), Limits { bytes: 2 * size, ..limits }).unwrap();
    let left: Vec<u32> = names(dir.path());
    assert_eq!(left, [8, 9]);
    Store::open(dir.path(), Limits { bytes: 1, days: 0 }).unwrap();
    let left: Vec<u32> = names(dir.path());
    assert_eq!(left, [9]);
    assert!(dir.path().join("notes.txt").exists() && dir.path().join("2026-1-1.usage").exists());
}

#[test]
fn a_disk_that_is_full_costs_what_was_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(dir.path(), LIMITS).unwrap();
    store.append(&some()[..1]).unwrap();

    // The kernel's own answer of a full disk.
    store.fail_with(fs::File::options().write(true).open("/dev/full").unwrap());
    let error = store.append(&some()[1..2]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");

    // What had got through of it is cut off.
    let mut cut = fs::read(file(dir.path())).unwrap();
    cut.extend([30, 0, 1, 2, 3]);
    fs::write(file(dir.path()), cut).unwrap();
    store.append(&some()[2..]).unwrap();
    assert_eq!(store.damaged(), 1);
    let expected = [&some()[..1], &some()[2..]].concat();
    assert_eq!(all(dir.path()).0, sorted(expected));

    // A folder that is gone is made again, once that can be.
    fs::remove_dir_all(dir.path()).unwrap();
    let mut store = Store::open(&dir.path().join("usage"), LIMITS).unwrap();
    fs::remove_dir_all(dir.path()).unwrap();
    assert!(store.append(&some()).is_err());
    fs::create_dir_all(dir.path().join("usage")).unwrap();
    store.append(&some()).unwrap();
    assert_eq!(all(&dir.path().join("usage")).0, sorted(some()));
}
