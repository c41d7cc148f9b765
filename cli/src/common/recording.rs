//! The files of a daemon's recording.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use ballast_sim::trace;
use serde::Deserialize;

/// The files of a recording, oldest first: their names hold the start and a number.
pub(crate) fn files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let about = fs::metadata(path).with_context(|| format!("{}: cannot be read", path.display()))?;
    if !about.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    let mut folders = vec![path.to_owned()];

    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("{}", folder.display()))? {
            let file = entry?.path();
            if file.is_dir() && folder == path {
                // One folder for each daemon, as a demo keeps them.
                folders.push(file);
            } else if is_one(&file) {
                files.push(file);
            }
        }
    }

    if files.is_empty() {
        bail!("{}: holds no recording, that is no file *.jsonl.zst or *.jsonl", path.display());
    }
    files.sort();

    Ok(files)
}

/// Whether a file is one of a recording, by its name.
pub(crate) fn is_one(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".jsonl") || name.ends_with(".jsonl.zst")
}

/// The lines of a file, plain or compressed.
pub(crate) fn lines<'f>(file: impl Read + 'f) -> io::Result<impl BufRead + 'f> {
    Ok(BufReader::new(trace::text(file)?))
}

/// The machine that a file's header names; `None` if the header cannot be read.
pub(crate) fn machine(path: &Path) -> anyhow::Result<Option<String>> {
    #[derive(Deserialize)]
    struct Named {
        machine: String,
    }
    let mut line = Vec::new();
    match lines(File::open(path)?)?.read_until(b'\n', &mut line) {
        Err(error) if error.kind() != ErrorKind::UnexpectedEof => return Err(error.into()),
        _ => {}
    }
    Ok(serde_json::from_slice::<Named>(&line).ok().map(|named| named.machine))
}
