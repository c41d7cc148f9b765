//! What the daemons and the command line find on disk: journals, records, recordings, models.

use std::fs;

use ballast_agent::records;
use ballast_hw::{Journal, JournalFolders, Opened};
use ballast_predict::{Features, ModelFile, Request};
use ballast_sim::replay::{Part, replay};
use ballast_types::{BootId, UsageRecord};

use super::machine::Machine;
use super::says_something;

/// The agent's journal. What is adopted of it and written down anew is adopted alike.
pub fn journal(bytes: &[u8]) {
    thread_local!(static FOLDER: Machine = Machine::new());
    FOLDER.with(|folder| {
        let boot = BootId::new("boot-1").expect("an id");
        folder.write(Journal::FILE, bytes);
        let folders = JournalFolders::of(folder.path());
        let (mut journal, opened) = Journal::open(&folders, &boot).expect("a folder of ours");
        let Opened::Adopted(originals) = opened else { return };

        journal.begin(&originals).expect("a folder of ours");
        drop(journal);
        let (journal, again) = Journal::open(&folders, &boot).expect("a folder of ours");
        assert_eq!(again, Opened::Adopted(originals));
        journal.finish().expect("a folder of ours");
    });
}

const DAY: u32 = 20_778;
const DAY_FILE: &str = "2026-11-21.usage";

/// A day's file of records: as it is, and as payloads, each after its length, that are framed as the agent frames them.
/// Nobody guesses a checksum.
pub fn records(bytes: &[u8]) {
    day(bytes);

    let mut file = b"ballastU\x02\0\0\0".to_vec();
    file.extend(DAY.to_le_bytes());
    file.extend(crc32fast::hash(&file).to_le_bytes());
    let mut rest = bytes;
    while let Some((length, after)) = rest.split_first() {
        let (payload, after) = after.split_at(after.len().min(usize::from(*length)));
        file.extend((payload.len() as u16).to_le_bytes());
        file.extend(crc32fast::hash(payload).to_le_bytes());
        file.extend(payload);
        rest = after;
    }
    day(&file);
}

fn day(file: &[u8]) {
    thread_local!(static FOLDER: Machine = Machine::new());
    FOLDER.with(|folder| {
        let read = |all: &mut Vec<UsageRecord>| {
            let summary = records::read(folder.path(), DAY..=DAY, |record| all.push(record));
            summary.expect("a folder of ours")
        };
        folder.write(DAY_FILE, file);
        let mut first = vec![];
        let summary = read(&mut first);
        assert_eq!(summary.records, first.len() as u64);
        summary.problems.iter().for_each(says_something);

        for record in &first {
            assert!(record.bin.day() == DAY, "{record:?}");
            assert!(record.mean().is_none_or(|mean| (0.0..=1.0).contains(&mean)), "{record:?}");
        }

        // A store writes what was read, and then the same is read.
        fs::remove_file(folder.path().join(DAY_FILE)).expect("a folder of ours");
        let limits = records::Limits { days: 10, bytes: 1 << 30 };
        let mut store = records::Store::open(folder.path(), limits).expect("a folder of ours");
        store.append(&first).expect("a folder of ours");
        drop(store);
        let mut second = vec![];
        read(&mut second);
        for all in [&mut first, &mut second] {
            // Records of one VM keep their order, VMs do not.
            all.sort_by(|a, b| (&a.vm, a.start).cmp(&(&b.vm, b.start)));
        }
        assert_eq!(second, first);
    });
}

/// A recording of an agent or a chassis manager, replayed; zero bytes part its files.
pub fn recording(bytes: &[u8]) {
    let files = bytes.split(|byte| *byte == 0).take(4).enumerate();
    let parts = files.map(|(n, lines)| Part { name: format!("file {n}"), lines }).collect();
    match replay(parts) {
        Ok(report) => assert!(report.recorded_s >= 0.0 && report.recorded_s.is_finite(), "{report:?}"),
        Err(error) => says_something(error),
    }
}

/// A model's file: as it is, and as the content of a file whose checksums fit.
pub fn model(bytes: &[u8]) {
    ask_model(bytes);

    // The fuzzer cannot guess a checksum, so the encoder makes the file.
    if let Ok(Ok(file)) = postcard::from_bytes::<ModelFile>(bytes).map(|file| file.encode()) {
        ask_model(&file);
    }
}

fn ask_model(bytes: &[u8]) {
    let file = match ModelFile::decode(bytes) {
        Ok(file) => file,
        Err(error) => return says_something(error),
    };

    // As bytes: a score of no rows is no number, and equals nothing.
    let written = file.encode().expect("room for a model");
    let again = ModelFile::decode(&written).map(|file| file.encode());
    assert_eq!(again.expect("what was written").as_ref(), Ok(&written));
    let features = Features { cores: 4.0, memory_gb: 16.0, vm_type: None, past: None };
    let request = Request { vm_id: None, subscription: Some("s".into()), features };
    if let Ok(reply) = file.answer(&request) {
        assert!(reply.prediction.p95_percent <= 100, "{reply:?}");
    }
}
