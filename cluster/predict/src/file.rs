//! The model file: what was learnt, from what, how good it is, and the history to ask it with.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `BALLAST` and a zero |
//! | 4 | version, little-endian as all numbers here |
//! | 8 | length of the content |
//! | 32 | SHA-256 of all of the above and the content |
//! | rest | the content: sections, one after the other, in any order |
//!
//! | bytes of a section | what |
//! |---|---|
//! | 1, then so many | length of the name, and the name |
//! | 4 | the section's own version |
//! | 1 | 1 if a program that does not know the section must not use the model, else 0 |
//! | 8 | length of what it holds |
//! | 32 | SHA-256 of all of the above and what it holds |
//! | rest | what it holds, in postcard's encoding |
//!
//! `about`, `class`, `p95`, `trial` and `history` must be there, or `lifetime`, or all of them. A section that is not known
//! is left out when 0 stands in it, and is not written again.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::data::SplitBy;
use crate::features::COLUMN_NAMES;
use crate::history::History;
use crate::lifetime::LifetimeFile;
use crate::model::{Algorithm, Model};
use crate::score::Scores;

/// How a model file begins.
const MAGIC: [u8; 8] = *b"BALLAST\0";
/// The version that is written.
pub const VERSION: u32 = 3;
/// The version of the sections of class and P95.
const SECTION_VERSION: u32 = 1;
/// The section of lifetimes, and its version.
const LIFETIME: &str = "lifetime";
const LIFETIME_VERSION: u32 = 1;
/// Bytes before the checksum, and before the content.
const SUMMED: usize = 8 + 4 + 8;
const HEAD: usize = SUMMED + 32;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelFile {
    pub about: About,
    /// What answers: it has learnt from all that was known.
    pub model: Model,
    /// What was scored: it has not seen the hold-out. A later training is compared with it.
    pub trial: Model,
    /// What was known of every subscription when it was trained.
    pub history: History,
    /// How long VMs live, if that was learnt too.
    #[serde(skip)]
    pub lifetime: Option<LifetimeFile>,
}

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
        found: u64,
        /// How many there should be.
        expected: u64,
    },
    /// The checksum is another one.
    #[error("damaged model file: the SHA-256 checksum does not fit")]
    Damaged,
    /// The checksum of a section is another one, or the section ends after the file does.
    #[error("damaged model file: the SHA-256 checksum of section {0:?} does not fit")]
    DamagedSection(String),
    /// A later program wrote this section, and the model is of no use without it.
    #[error("section {section:?} of version {found} in the model file is not known: update this program")]
    Newer { section: String, found: u32 },
    #[error("the model file has no section {0:?}: train again")]
    Missing(&'static str),
    /// The checksum fits, but the content is no model of this program.
    #[error("model file with impossible content: {0}")]
    Content(String),
}

impl ModelFile {
    /// The bytes of the file. The same model gives the same bytes.
    /// This fails only if there is no memory for them.
    pub fn encode(&self) -> Result<Vec<u8>, FileError> {
        let mut content = vec![];
        write_section(&mut content, "about", &self.about)?;
        write_section(&mut content, "class", &self.model.class)?;
        write_section(&mut content, "p95", &self.model.p95)?;
        write_section(&mut content, "trial", &self.trial)?;
        write_section(&mut content, "history", &self.history)?;
        if let Some(lifetime) = &self.lifetime {
            lifetime.write(&mut content)?;
        }

        Ok(framed(VERSION, &content))
    }

    /// The model in these bytes. This fails when they are no whole and sound model file of a version that is read.
    pub fn decode(bytes: &[u8]) -> Result<Self, FileError> {
        let file = Self::of(&mut opened(bytes)?)?;
        file.model.check().and_then(|()| file.trial.check()).map_err(FileError::Content)?;

        if file.about.features != COLUMN_NAMES {
            let features = file.about.features.join(", ");
            return Err(FileError::Content(format!("other features: {features}")));
        }

        Ok(file)
    }

    fn of(sections: &mut Sections<'_>) -> Result<Self, FileError> {
        let about = sections.take("about", SECTION_VERSION)?;
        let class = sections.take("class", SECTION_VERSION)?;
        let model = Model { class, p95: sections.take("p95", SECTION_VERSION)? };
        let trial = sections.take("trial", SECTION_VERSION)?;
        let history = sections.take("history", SECTION_VERSION)?;
        let lifetime = match LifetimeFile::of(sections) {
            // Class and P95 are of use without it.
            Err(FileError::Missing(_) | FileError::Newer { .. }) => None,
            lifetime => Some(lifetime?),
        };
        sections.refuse_needed()?;

        Ok(Self { about, model, trial, history, lifetime })
    }
}

impl LifetimeFile {
    /// The bytes of a file that knows lifetimes alone.
    /// This fails only if there is no memory for them.
    pub fn encode(&self) -> Result<Vec<u8>, FileError> {
        let mut content = vec![];
        self.write(&mut content)?;
        Ok(framed(VERSION, &content))
    }

    /// The lifetimes in these bytes, beside whatever else is there. This fails when they are no whole and sound model
    /// file, or none with lifetimes of a version that is read.
    pub fn decode(bytes: &[u8]) -> Result<Self, FileError> {
        Self::of(&mut opened(bytes)?)
    }

    fn of(sections: &mut Sections<'_>) -> Result<Self, FileError> {
        let file: Self = sections.take(LIFETIME, LIFETIME_VERSION)?;
        file.model.check().and_then(|()| file.trial.check()).map_err(FileError::Content)?;
        Ok(file)
    }

    /// A program that knows no lifetimes leaves the section out.
    fn write(&self, content: &mut Vec<u8>) -> Result<(), FileError> {
        push_section(content, LIFETIME, LIFETIME_VERSION, false, &held(self)?);
        Ok(())
    }
}

/// The sections of a file whose checksum fits.
fn opened(bytes: &[u8]) -> Result<Sections<'_>, FileError> {
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
    // A damaged section is reported by its name.
    let sections = Sections::of(&bytes[HEAD..])?;

    match bytes[SUMMED..HEAD] == checksum(bytes) {
        true => Ok(sections),
        false => Err(FileError::Damaged),
    }
}

/// The head of a file, and its content.
fn framed(version: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend((content.len() as u64).to_le_bytes());
    // The checksum comes when all that it sums is there.
    bytes.resize(HEAD, 0);
    bytes.extend(content);
    let sum = checksum(&bytes);
    bytes[SUMMED..HEAD].copy_from_slice(&sum);
    bytes
}

fn write_section<T: Serialize>(content: &mut Vec<u8>, name: &str, value: &T) -> Result<(), FileError> {
    push_section(content, name, SECTION_VERSION, true, &held(value)?);
    Ok(())
}

fn held<T: Serialize>(value: &T) -> Result<Vec<u8>, FileError> {
    postcard::to_allocvec(value).map_err(|error| FileError::Content(error.to_string()))
}

fn push_section(content: &mut Vec<u8>, name: &str, version: u32, needed: bool, held: &[u8]) {
    let start = content.len();
    content.push(name.len() as u8);
    content.extend(name.as_bytes());
    content.extend(version.to_le_bytes());
    content.push(needed.into());
    content.extend((held.len() as u64).to_le_bytes());
    let sum = Sha256::new().chain_update(&content[start..]).chain_update(held).finalize();
    content.extend(sum);
    content.extend(held);
}

/// What `held` holds, with nothing behind it.
fn whole<T: DeserializeOwned>(held: &[u8], name: &str) -> Result<T, FileError> {
    match postcard::take_from_bytes(held) {
        Ok((value, [])) => Ok(value),
        Ok(_) => Err(FileError::Content(format!("{name}: more than is known"))),
        Err(error) => Err(FileError::Content(format!("{name}: {error}"))),
    }
}

struct Section<'a> {
    version: u32,
    needed: bool,
    held: &'a [u8],
}

/// The sections of a file that nobody has taken yet.
struct Sections<'a>(BTreeMap<&'a str, Section<'a>>);

impl<'a> Sections<'a> {
    /// All of them, each with a checksum that fits.
    fn of(content: &'a [u8]) -> Result<Self, FileError> {
        let (mut found, mut rest) = (BTreeMap::new(), content);
        while let Some((length, after)) = rest.split_first() {
            let cut = || FileError::DamagedSection(format!("number {}", found.len() + 1));
            let (name, after) = after.split_at_checked(usize::from(*length)).ok_or_else(cut)?;
            let name = std::str::from_utf8(name).map_err(|_| cut())?;
            let damaged = || FileError::DamagedSection(name.to_owned());
            let (version, needed) = (number(after, 0..4), after.get(4).copied());
            let (Some(version), Some(needed @ 0..=1), Some(size), Some(sum)) =
                (version, needed, number(after, 5..13), after.get(13..45))
            else {
                return Err(damaged());
            };

            let size = usize::try_from(size).map_err(|_| damaged())?;
            let (held, behind) = after[45..].split_at_checked(size).ok_or_else(damaged)?;
            let head = &rest[..rest.len() - after.len() + 13];
            if Sha256::new().chain_update(head).chain_update(held).finalize()[..] != *sum {
                return Err(damaged());
            }

            let section = Section { version: version as u32, needed: needed == 1, held };
            if found.insert(name, section).is_some() {
                return Err(FileError::Content(format!("two sections {name:?}")));
            }
            rest = behind;
        }

        Ok(Self(found))
    }

    fn take<T: DeserializeOwned>(&mut self, name: &'static str, version: u32) -> Result<T, FileError> {
        let Section { version: found, held, .. } = self.0.remove(name).ok_or(FileError::Missing(name))?;
        match found == version {
            true => whole(held, name),
            false => Err(FileError::Newer { section: name.to_owned(), found }),
        }
    }

    /// Of those that are left none may be needed.
    fn refuse_needed(&self) -> Result<(), FileError> {
        match self.0.iter().find(|(_, section)| section.needed) {
            Some((name, section)) => {
                Err(FileError::Newer { section: (*name).to_owned(), found: section.version })
            }
            None => Ok(()),
        }
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
        assert!(version(4).contains("version 4") && version(4).contains("update"));
        assert!(version(2).contains("version 2") && version(2).contains("train again"));
        assert!(error(&bytes[..bytes.len() - 1]).contains("truncated"));
        assert!(error(&bytes[..10]).contains("truncated"));
        assert!(error(&[&bytes[..], b"x"].concat()).contains("overlong"));
        let mut damaged = bytes.clone();
        damaged[HEAD + 100] ^= 1;
        assert!(error(&damaged).contains("section \"about\""), "{}", error(&damaged));
        let mut damaged = bytes.clone();
        damaged[SUMMED] ^= 1;
        assert_eq!(error(&damaged), FileError::Damaged.to_string());
    }

    #[test]
    fn sections_are_told_apart_by_name_version_and_need() {
        let bytes = small().encode().unwrap();
        let content = &bytes[HEAD..];
        let with = |name: &str, version: u32, needed: bool| {
            let mut more = content.to_vec();
            push_section(&mut more, name, version, needed, b"of a later program");
            ModelFile::decode(&framed(VERSION, &more))
        };
        assert_eq!(with("lifetimes", 7, false).unwrap().encode().unwrap(), bytes);
        let newer = |section: &str, found| FileError::Newer { section: section.into(), found };
        assert_eq!(with("lifetimes", 7, true), Err(newer("lifetimes", 7)));
        assert_eq!(with("p95", 1, false), Err(FileError::Content("two sections \"p95\"".into())));

        let all = Sections::of(content).unwrap().0;
        assert_eq!(all.keys().copied().collect::<Vec<_>>(), ["about", "class", "history", "p95", "trial"]);
        for name in ["about", "class", "history", "p95", "trial"] {
            let rewritten = |version: Option<u32>, more: &[u8]| {
                let mut content = vec![];
                for (other, section) in &all {
                    match version {
                        _ if *other != name => push_section(&mut content, other, 1, true, section.held),
                        Some(version) => {
                            let held = [section.held, more].concat();
                            push_section(&mut content, other, version, true, &held);
                        }
                        None => {}
                    }
                }
                ModelFile::decode(&framed(VERSION, &content))
            };
            assert!(rewritten(Some(1), b"").is_ok());
            assert!(matches!(rewritten(Some(1), b"x"), Err(FileError::Content(why)) if why.contains(name)));
            assert_eq!(rewritten(Some(2), b""), Err(newer(name, 2)));
            assert!(matches!(rewritten(None, b""), Err(FileError::Missing(missing)) if missing == name));
        }
    }

    #[test]
    fn lifetimes_stand_alone_or_beside_the_rest() {
        let lifetime = crate::lifetime::train::tests::small();
        let alone = lifetime.encode().unwrap();
        assert_eq!(LifetimeFile::decode(&alone).unwrap().encode().unwrap(), alone);
        assert_eq!(ModelFile::decode(&alone), Err(FileError::Missing("about")));

        let both = ModelFile { lifetime: Some(lifetime), ..small() };
        let bytes = both.encode().unwrap();
        assert_eq!(ModelFile::decode(&bytes).unwrap().encode().unwrap(), bytes);
        assert_eq!(LifetimeFile::decode(&bytes).unwrap().encode().unwrap(), alone);
        assert_eq!(LifetimeFile::decode(&small().encode().unwrap()), Err(FileError::Missing("lifetime")));

        // Those of a later program are left out, and asked for they are refused.
        let mut content = small().encode().unwrap()[HEAD..].to_vec();
        push_section(&mut content, LIFETIME, 2, false, b"of a later program");
        let later = framed(VERSION, &content);
        assert_eq!(ModelFile::decode(&later).unwrap().lifetime, None);
        assert_eq!(
            LifetimeFile::decode(&later),
            Err(FileError::Newer { section: LIFETIME.into(), found: 2 })
        );
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
            let bytes = small().encode().unwrap();
            let mut content = vec![];
            let all = Sections::of(&bytes[HEAD..]).unwrap().0;
            let mut place = place.index(all.values().map(|section| section.held.len()).sum());
            for (name, section) in &all {
                let mut held = section.held.to_vec();
                if let Some(byte) = held.get_mut(place) {
                    *byte ^= flip;
                }
                place = place.wrapping_sub(held.len());
                push_section(&mut content, name, 1, true, &held);
            }
            if let Ok(file) = ModelFile::decode(&framed(VERSION, &content)) {
                let known = file.history.known(Some("sub-00001"), Some("general"), 2.0);
                let _ = file.model.predict(&known, 2.0, 8.0);
            }
        }
    }
}
