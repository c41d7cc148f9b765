//! Replays what fuzzing has found, and changes of it that a seed makes: `proof/fuzz/corpus`.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};

use ballast_tests::{TARGETS, Target};
use ballast_types::SplitMix64;

const FUZZ: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../proof/fuzz");
const CHANGED: usize = 400;
/// No input that is kept, or made, is longer.
const LONGEST: usize = 64 << 10;
/// The whole corpus, in bytes: a clone pays for it.
const CORPUS_MAX: usize = 5 << 20;

/// What stands in a folder, in the order of names.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut all: Vec<_> = all.map(|entry| entry.expect("an entry").path()).collect();
    all.sort();
    all
}

/// The inputs of a target, each with the name of its file.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let read = |path: &PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        (name, fs::read(path).expect("a file of the corpus"))
    };
    entries(&Path::new(FUZZ).join("corpus").join(target)).iter().map(read).collect()
}

/// An input with a few changes: bytes turned, taken out, put in twice, taken from another input.
fn changed(inputs: &[(String, Vec<u8>)], random: &mut SplitMix64) -> Vec<u8> {
    let mut below = |most: usize| (random.draw() % most.max(1) as u64) as usize;
    let mut bytes = inputs[below(inputs.len())].1.clone();

    for _ in 0..=below(4) {
        let (at, length) = (below(bytes.len()), 1 + below(8));
        let end = bytes.len().min(at + length);
        match below(5) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << below(8),
            1 if !bytes.is_empty() => bytes[at] = below(256) as u8,
            2 => drop(bytes.drain(at..end)),
            3 => {
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            _ => {
                let other = &inputs[below(inputs.len())].1;
                let from = below(other.len());
                bytes.truncate(at);
                bytes.extend(&other[from..]);
            }
        }
    }

    bytes.truncate(LONGEST);
    bytes
}

/// The target's own panic stands above the message, which says the input.
fn replay(name: &str, target: Target, input: &str, bytes: &[u8]) {
    let ran = panic::catch_unwind(AssertUnwindSafe(|| target(bytes)));
    assert!(ran.is_ok(), "{name} fails on {input}: {:?}", String::from_utf8_lossy(bytes));
}

#[test]
fn every_input_of_the_corpus_and_changes_of_it_are_read_or_refused() {
    let mut total = 0;
    for (name, target) in TARGETS {
        let inputs = corpus(name);
        assert!(!inputs.is_empty(), "proof/fuzz/corpus/{name} has no input");

        for (file, bytes) in &inputs {
            assert!(bytes.len() <= LONGEST, "proof/fuzz/corpus/{name}/{file}: {} bytes", bytes.len());
            total += bytes.len();
            replay(name, target, file, bytes);
        }

        let mut random = SplitMix64::new(1);
        for n in 0..CHANGED {
            replay(name, target, &format!("change {n}"), &changed(&inputs, &mut random));
        }
    }
    assert!(total <= CORPUS_MAX, "proof/fuzz/corpus has {total} bytes; {CORPUS_MAX} are allowed");
}

#[test]
fn every_target_is_fuzzed_and_has_a_folder() {
    let names = |folder: &str| -> BTreeSet<String> {
        let all = entries(&Path::new(FUZZ).join(folder));
        all.iter().map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned()).collect()
    };
    let targets: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();

    assert_eq!(names("fuzz_targets"), targets);
    assert_eq!(names("corpus"), targets);
    let manifest = fs::read_to_string(Path::new(FUZZ).join("Cargo.toml")).expect("proof/fuzz/Cargo.toml");
    for name in targets {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "proof/fuzz/Cargo.toml has no {name}");
    }
}
