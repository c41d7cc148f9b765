//! `docs/experiments.md` and its plots, on disk.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;

use anyhow::Context;
use ballast_lab::report::document::{FILE, HEAD, PLOTS, with_section};

/// The document as it is, made where there is none. Fails where it could not be written either.
pub(super) fn open(folder: &Path) -> anyhow::Result<String> {
    let file = folder.join(FILE);
    let plot_folder = folder.join(PLOTS);
    fs::create_dir_all(&plot_folder).with_context(|| format!("{}", plot_folder.display()))?;
    let open = || {
        let mut document = fs::OpenOptions::new().create(true).append(true).read(true).open(&file)?;
        let mut old = String::new();
        document.read_to_string(&mut old)?;
        if old.is_empty() {
            document.write_all(HEAD.as_bytes())?;
            HEAD.clone_into(&mut old);
        }
        Ok::<_, std::io::Error>(old)
    };
    open().with_context(|| format!("{}", file.display()))
}

/// Writes the section and its plots. The other sections, and what stands between them, stay.
pub(super) fn write(
    folder: &Path,
    name: &str,
    section: &str,
    plots: &[(String, String)],
) -> anyhow::Result<()> {
    let file = folder.join(FILE);
    let plot_folder = folder.join(PLOTS);
    let old = open(folder)?;
    let new = with_section(&old, name, section).with_context(|| format!("{}", file.display()))?;
    for (plot, svg) in plots {
        let path = plot_folder.join(plot);
        fs::write(&path, svg).with_context(|| format!("{}", path.display()))?;
    }
    fs::write(&file, new).with_context(|| format!("{}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_with_their_plots() {
        let folder = tempfile::tempdir().unwrap();
        let plots = [("server.svg".to_owned(), "<svg/>".to_owned())];
        let docs = folder.path().join("docs");
        write(&docs, "server", "text", &plots).unwrap();
        assert!(fs::read_to_string(docs.join(FILE)).unwrap().contains("\ntext\n"));
        assert_eq!(fs::read_to_string(docs.join(PLOTS).join("server.svg")).unwrap(), "<svg/>");
    }
}
