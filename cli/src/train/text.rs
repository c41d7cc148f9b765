//! Text from a file or stdin, plain or compressed with zstd.

use std::io::{self, Read};
use std::path::Path;

use anyhow::Context;
use ballast_sim::trace;

use crate::table;

/// Opens a file, or stdin for `-`; what is compressed with zstd is unpacked.
pub(crate) fn open(path: &Path) -> anyhow::Result<Box<dyn Read>> {
    let what = || path.display().to_string();
    let raw: Box<dyn Read> = match path.to_str() {
        Some("-") => Box::new(io::stdin()),
        _ => Box::new(table::plain(path).with_context(what)?),
    };
    trace::text(raw).with_context(what)
}
