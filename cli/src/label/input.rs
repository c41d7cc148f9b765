//! Files of VMs: opened, and their layout recognised.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, bail};
use clap::ValueEnum;
use indicatif::ProgressBar;

/// How a zstd stream begins (RFC 8878, section 3.1.1).
const ZSTD: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
/// How a Parquet file begins.
const PARQUET: [u8; 4] = *b"PAR1";

/// How VMs stand in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Layout {
    /// One row per VM: id, further columns, u0 to u239
    Row,
    /// One column per VM, one row per time (`t`, `t_s`, or no time and 300 s between rows)
    Wide,
    /// One row per sample: vm, time (seconds since 1970), value
    Long,
}

/// The text of a file, unpacked.
pub(super) fn open(path: &Path, bar: &ProgressBar) -> anyhow::Result<Box<dyn Read>> {
    let open = || -> io::Result<Box<dyn Read>> {
        let mut file = BufReader::with_capacity(1 << 16, bar.wrap_read(File::open(path)?));
        let packed = file.fill_buf()?.starts_with(&ZSTD);
        Ok(if packed { Box::new(zstd::Decoder::with_buffer(file)?) } else { Box::new(file) })
    };
    open().with_context(|| format!("{}", path.display()))
}

/// The layout, as told or by the header.
pub(super) fn layout(path: &Path, told: Option<Layout>) -> anyhow::Result<Layout> {
    if let Some(layout) = told {
        return Ok(layout);
    }
    let mut header = String::new();
    let mut text = BufReader::new(open(path, &ProgressBar::hidden())?.take(1 << 20));
    if text.fill_buf().is_ok_and(|b| b.starts_with(&PARQUET)) {
        bail!("{}: a Parquet file; allowed is CSV, plain or compressed with zstd", path.display());
    }
    text.read_line(&mut header).with_context(|| format!("{}:1", path.display()))?;
    let names: Vec<&str> =
        header.trim_start_matches('\u{feff}').trim().split(',').map(str::trim).collect();
    let all = |wanted: &[&str]| wanted.iter().all(|name| names.contains(name));
    let number = |name: &&str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit());
    if all(&["id", "u0", "u239"]) {
        Ok(Layout::Row)
    } else if all(&["vm", "time", "value"]) {
        Ok(Layout::Long)
    } else if ["t", "t_s", "timestamp", "time"].contains(&names[0]) || names.iter().all(number) {
        Ok(Layout::Wide)
    } else {
        let seen: String = header.trim().chars().take(80).collect();
        bail!(
            "{}:1: header {seen:?}: allowed are `id`, further columns and `u0` to `u239`; `vm`, `time` and \
             `value`; or `t` and one column per VM (name another header's layout with --layout)",
            path.display()
        )
    }
}
