//! The model file: what was learnt, from what, how good it is, and the history to ask it with.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `BALLAST` and a zero |
//! | 4 | version, little-endian |
//! | 8 | length of the content, little-endian |
//! | 32 | SHA-256 of all of the above and the content |
//! | rest | the content: [`ModelFile`] in postcard's encoding |

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::data::SplitBy;
use crate::features::COLUMN_NAMES;
use crate::history::History;
use crate::model::{Algorithm, Model};
use crate::score::Scores;

/// How a model file begins.
const MAGIC: [u8; 8] = *b"BALLAST\0";
/// The version that is written, and the only one that is read.
pub const VERSION: u32 = 2;
/// Bytes before the checksum, and before the content.
const SUMMED: usize = 8 + 4 + 8;
const HEAD: usize = SUMMED + 32;

/// A model with all that belongs to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelFile {
    /// How it came to be.
    pub about: About,
    /// What answers: it has learnt from all that was known.
    pub model: Model,
    /// What was scored: it has not seen the hold-out. A later training is compared with it.
    pub trial: Model,
    /// What was known of every subscription when it was trained.
    pub history: History,
}

/// How a model came to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct About {
    pub algorithm: Algorithm,
    /// The seed of what is random in that.
    pub seed: u64,
    /// The features, in the order of the columns.
    pub features: Vec<String>,
    /// The first arrival that was learnt from, in Unix seconds.
    pub from_s: i64,
    /// The hold-out begins: what was scored had learnt from nothing that became known at this second or
    /// later.
    pub until_s: i64,
    /// How the hold-out was told apart: class, and P95.
    pub split: [SplitBy; 2],
    /// Up to when the history reaches, and what was learnt from after the scoring.
    pub history_until_s: i64,
    /// From how many VMs the class was learnt, and the P95; and of how many deployments.
    pub rows: [u64; 2],
    pub deployments: [u64; 2],
    /// Scores of the class on the hold-out.
    pub class: Scores,
    /// Scores of the P95 bucket on the hold-out.
    pub p95: Scores,
}

/// Why bytes are no model.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FileError {
    /// They begin otherwise.
    #[error("not a Ballast model file")]
    Foreign,
    /// Another version wrote them.
    #[error("model file of version {found}; this program reads version {VERSION}: {remedy}")]
    Version { found: u32, remedy: &'static str },
    /// They end too early, or too late.
    #[error("truncated or overlong model file: {found} bytes, {expected} are announced")]
    Length {
        /// How many there are.
        found: u64,
        /// How many there should be.
        expected: u64,
    },
    /// The checksum is another one.
    #[error("damaged model file: the SHA-256 checksum does not fit")]
    Damaged,
    /// The checksum fits, but the content is no model of this program.
    #[error("model file with impossible content: {0}")]
    Content(String),
}

impl ModelFile {
    /// The bytes of the file. The same model gives the same bytes.
    /// This fails only if there is no memory for them.
    pub fn encode(&self) -> Result<Vec<u8>, FileError> {
        let content = |error: postcard::Error| FileError::Content(error.to_string());
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        // Length and checksum are filled in behind the content.
        bytes.resize(HEAD, 0);
        let mut bytes = postcard::to_extend(self, bytes).map_err(content)?;
        let length = (bytes.len() - HEAD) as u64;
        bytes[12..SUMMED].copy_from_slice(&length.to_le_bytes());
        let sum = checksum(&bytes);
        bytes[SUMMED..HEAD].copy_from_slice(&sum);
        Ok(bytes)
    }

    /// The model in these bytes. This fails when they are no whole and sound model file of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, FileError> {
        if !is_ours(bytes) {
            return Err(FileError::Foreign);
        }
        let length = |expected| FileError::Length { found: bytes.len() as u64, expected };
        let (Some(version), Some(announced)) = (number(bytes, 8..12), number(bytes, 12..SUMMED)) else {
            return Err(length(HEAD as u64));
        };

        // The version comes first: another one may announce and sum otherwise.
        if version != u64::from(VERSION) {
            let newer = version > u64::from(VERSION);
            let remedy = if newer { "update this program" } else { "train again" };
            return Err(FileError::Version { found: version as u32, remedy });
        }

        let expected = announced.saturating_add(HEAD as u64);

        if bytes.len() as u64 != expected {
            return Err(length(expected));
        }
        if bytes[SUMMED..HEAD] != checksum(bytes) {
            return Err(FileError::Damaged);
        }
        let file: Self =
            postcard::from_bytes(&bytes[HEAD..]).map_err(|error| FileError::Content(error.to_string()))?;
        file.model.check().and_then(|()| file.trial.check()).map_err(FileError::Content)?;

        if file.about.features != COLUMN_NAMES {
            let features = file.about.features.join(", ");
            return Err(FileError::Content(format!("other features: {features}")));
        }

        Ok(file)
    }
}

/// Whether these bytes begin as a model file of any version does.
pub fn is_ours(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// The checksum that these bytes say they have, in hexadecimal; `None` where they are too few.
///
/// It names a model: [`ModelFile::decode`] refuses bytes that it does not fit.
pub fn checksum_in(bytes: &[u8]) -> Option<String> {
    let sum = bytes.get(SUMMED..HEAD)?;
    Some(sum.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A little-endian number; `None` where the bytes end before it does.
fn number(bytes: &[u8], range: std::ops::Range<usize>) -> Option<u64> {
    let bytes = bytes.get(range)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// The checksum of a whole file, which leaves out its own place.
fn checksum(bytes: &[u8]) -> [u8; 32] {
    let mut sum = Sha256::new();
    sum.update(&bytes[..SUMMED]);
    sum.update(&bytes[HEAD..]);
    sum.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::tests::small;
    use proptest::prelude::*;

    #[test]
    fn a_file_comes_back_as_it_went() {
        let file = small();
        let bytes = file.encode().unwrap();
        let back = ModelFile::decode(&bytes).unwrap();
        assert_eq!(back.encode().unwrap(), bytes);
        assert_eq!((&back.model, &back.history), (&file.model, &file.history));
        assert_eq!(back.about.features, COLUMN_NAMES);
        let hex: String = checksum(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!((checksum_in(&bytes), checksum_in(&bytes[..40])), (Some(hex), None));
    }

    /// The checksum made good again, as another program would have written it.
    fn summed(mut bytes: Vec<u8>) -> Vec<u8> {
        let sum = checksum(&bytes);
        bytes[SUMMED..HEAD].copy_from_slice(&sum);
        bytes
    }

    #[test]
    fn foreign_newer_older_truncated_and_damaged_files_are_refused_by_name() {
        let bytes = small().encode().unwrap();
        let error = |bytes: &[u8]| ModelFile::decode(bytes).unwrap_err().to_string();
        assert!(error(b"").contains("not a Ballast model file"));
        assert!(error(b"\x7fELF and so on").contains("not a Ballast model file"));
        let version = |number: u8| {
            let mut other = bytes.clone();
            other[8] = number;
            error(&summed(other))
        };
        assert!(version(3).contains("version 3") && version(3).contains("update"));
        assert!(version(1).contains("version 1") && version(1).contains("train again"));
        assert!(error(&bytes[..bytes.len() - 1]).contains("truncated"));
        assert!(error(&bytes[..10]).contains("truncated"));
        assert!(error(&[&bytes[..], b"x"].concat()).contains("overlong"));
        let mut damaged = bytes.clone();
        damaged[HEAD + 100] ^= 1;
        assert_eq!(error(&damaged), FileError::Damaged.to_string());
    }

    #[test]
    fn what_the_checksum_does_not_see_is_checked_too() {
        let error = |change: fn(&mut ModelFile)| {
            let mut file = small();
            change(&mut file);
            ModelFile::decode(&file.encode().unwrap()).unwrap_err().to_string()
        };
        assert!(error(|f| f.trial.class.threshold = -0.5).contains("threshold of -0.5"));
        assert!(error(|f| f.model.class.threshold = f32::NAN).contains("threshold of NaN"));
        assert!(error(|f| f.about.features[0] = "x".into()).contains("other features: x"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        /// Whatever happens to the bytes: an error with a name, never a panic, never another model.
        #[test]
        fn mutated_bytes_are_refused(place in any::<prop::sample::Index>(), flip in 1..=255u8) {
            let mut bytes = small().encode().unwrap();
            let place = place.index(bytes.len());
            bytes[place] ^= flip;
            prop_assert!(ModelFile::decode(&bytes).is_err());
        }

        #[test]
        fn cut_bytes_are_refused(place in any::<prop::sample::Index>()) {
            let bytes = small().encode().unwrap();
            prop_assert!(ModelFile::decode(&bytes[..place.index(bytes.len())]).is_err());
        }

        /// The same with a checksum that fits: what comes out, if anything, answers without panic.
        #[test]
        fn mutated_content_does_not_panic(place in any::<prop::sample::Index>(), flip in 1..=255u8) {
            let mut bytes = small().encode().unwrap();
            let place = HEAD + place.index(bytes.len() - HEAD);
            bytes[place] ^= flip;
            if let Ok(file) = ModelFile::decode(&summed(bytes)) {
                let known = file.history.known(Some("sub-00001"), Some("general"), 2.0);
                let _ = file.model.predict(&known, 2.0, 8.0);
            }
        }
    }
}
