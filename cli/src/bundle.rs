//! `ballast bundle`: what somebody needs who shall help, in one archive without secrets.

mod daemons;
mod machine;
mod parts;
mod redact;

use std::fs;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use jiff::Timestamp;
use tempfile::NamedTempFile;

use crate::common::daemons::UrlArgs;
use crate::common::terminal::{say, tell};
use parts::Parts;

/// The archive is there, and something is missing in it.
const EXIT_MISSING: u8 = 3;

#[derive(Args, Debug)]
pub(crate) struct BundleArgs {
    #[command(flatten)]
    daemons: UrlArgs,
    /// The archive [default: ballast-bundle-TIME.tar.gz in this folder]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the archive if it is there
    #[arg(long)]
    force: bool,
    /// The machine: a folder that looks like one, such as another machine's disk
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

/// Gathers everything, writes the archive, and says what is in it.
pub(crate) fn run(args: &BundleArgs) -> anyhow::Result<ExitCode> {
    if !args.root.is_dir() {
        bail!("--root {}: a folder that is there", args.root.display());
    }
    let stamp = Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
    let name = format!("ballast-bundle-{stamp}");
    let output = args.output.clone().unwrap_or_else(|| format!("{name}.tar.gz").into());
    match fs::symlink_metadata(&output) {
        Ok(_) if !args.force => bail!("{}: is there already; --force replaces it", output.display()),
        Ok(there) if !there.is_file() => {
            bail!("--output {}: --force replaces regular files alone", output.display())
        }
        _ => {}
    }

    // Nobody else may read it, whatever it replaces.
    let folder = output.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let new = || NamedTempFile::new_in(folder).with_context(|| format!("--output {}", output.display()));
    // Where the archive cannot be nothing has to be gathered; and whoever is stopped meanwhile leaves nothing.
    drop(new()?);

    let mut parts = Parts::default();
    daemons::collect(&args.daemons, &mut parts)?;
    machine::collect(&args.root, &mut parts);
    let file = new()?;
    parts.write(&name, BufWriter::new(file.as_file())).with_context(|| output.display().to_string())?;
    let kept = if args.force { file.persist(&output) } else { file.persist_noclobber(&output) };
    let kept = kept.map_err(|error| error.error).with_context(|| output.display().to_string())?;
    let bytes = kept.metadata()?.len();

    say(&parts.listing())?;
    parts.errors().iter().for_each(|error| tell(&format!("missing: {error}")));
    let kib = bytes.div_ceil(1024);
    say(&format!("{}: {kib} KiB. Look into it before you pass it on.", output.display()))?;
    Ok(if parts.errors().is_empty() { ExitCode::SUCCESS } else { EXIT_MISSING.into() })
}
