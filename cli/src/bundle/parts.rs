//! What goes into the archive, and what could not be had.

use std::fmt::Display;
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, Header};

use super::redact::scrub;

/// The archive's files. Every one is text, and goes through [`scrub`].
#[derive(Debug, Default)]
pub(super) struct Parts {
    files: Vec<(String, String)>,
    errors: Vec<String>,
}

impl Parts {
    pub(super) fn put(&mut self, path: impl Into<String>, text: &str) {
        self.files.push((path.into(), scrub(text)));
    }

    /// Notes what is missing, and why: in the archive too.
    pub(super) fn fail(&mut self, what: impl Display, why: impl Display) {
        self.errors.push(scrub(&format!("{what}: {why}")));
    }

    /// A part that could be had, or why not.
    pub(super) fn add(&mut self, path: impl Into<String>, text: Result<String, String>) {
        let path = path.into();
        match text {
            Ok(text) => self.put(path, &text),
            Err(why) => self.fail(path, why),
        }
    }

    pub(super) fn append(&mut self, other: Self) {
        self.files.extend(other.files);
        self.errors.extend(other.errors);
    }

    pub(super) fn errors(&self) -> &[String] {
        &self.errors
    }

    /// One line for each part.
    pub(super) fn listing(&self) -> String {
        let lines = self.files.iter().map(|(path, text)| format!("{:>9} bytes  {path}", text.len()));
        lines.collect::<Vec<_>>().join("\n")
    }

    pub(super) fn write(&self, folder: &str, to: impl Write) -> io::Result<()> {
        let mut archive = Builder::new(GzEncoder::new(to, Compression::default()));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let errors: String = self.errors.iter().map(|line| format!("{line}\n")).collect();
        let errors = ("errors.txt".to_owned(), errors);
        for (path, text) in self.files.iter().chain([&errors]) {
            let mut header = Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o600);
            header.set_mtime(now);
            archive.append_data(&mut header, format!("{folder}/{path}"), text.as_bytes())?;
        }
        archive.into_inner()?.finish()?.flush()
    }
}
