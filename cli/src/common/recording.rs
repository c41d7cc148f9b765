//! The files of a daemon's recording.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
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
            } else if file.extension().is_some_and(|e| e == "jsonl") {
                files.push(file);
            }
        }
    }

    if files.is_empty() {
        bail!("{}: holds no recording, that is no file *.jsonl", path.display());
    }
    files.sort();

    Ok(files)
}

/// The machine that a file's header names; `None` if the header cannot be read.
pub(crate) fn machine(path: &Path) -> anyhow::Result<Option<String>> {
    #[derive(Deserialize)]
    struct Named {
        machine: String,
    }
    let mut line = Vec::new();
    BufReader::new(File::open(path)?).read_until(b'\n', &mut line)?;
    Ok(serde_json::from_slice::<Named>(&line).ok().map(|named| named.machine))
}
