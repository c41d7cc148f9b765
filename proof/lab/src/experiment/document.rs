//! The pages of `proof/results`, on disk: one for each experiment, with its plots beside it.

use std::fs;
use std::path::Path;

use anyhow::Context;

/// Makes the folder where there is none, and fails where no file can be written into it.
pub(super) fn check(folder: &Path) -> anyhow::Result<()> {
    let written = fs::create_dir_all(folder).and_then(|()| tempfile::tempfile_in(folder));
    written.map(drop).with_context(|| format!("--output {}", folder.display()))
}

pub(super) fn write(folder: &Path, name: &str, text: &str, plots: &[(String, String)]) -> anyhow::Result<()> {
    let page = (format!("{name}.md"), format!("{}\n", text.trim()));
    for (file, text) in plots.iter().chain([&page]) {
        let path = folder.join(file);
        fs::write(&path, text).with_context(|| format!("{}", path.display()))?;
    }
    Ok(())
}
