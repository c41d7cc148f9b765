//! What this machine knows: its check, the configs without secrets, what lies in the daemons' folders, the journal.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{env, fs};

use nix::fcntl::OFlag;

use super::parts::Parts;
use super::redact::ConfigKeys;

const PROGRAMS: [&str; 3] = ["ballast-agent", "ballast-chassis", "ballast-place"];
const CONFIGS: &str = "etc/ballast";
/// No more files of a folder are listed.
const FILES_MAX: usize = 2_000;
/// So much of the journal is taken.
const LINES: &str = "--lines=4000";
const CONFIG_MAX: u64 = 1 << 20;
/// No more of what another program says is kept.
const SAID_MAX: u64 = 16 << 20;
/// Another program gets no longer.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Between two looks at another program.
const LOOK: Duration = Duration::from_millis(20);

/// Gathers all of it; `root` is the machine.
pub(super) fn collect(root: &Path, parts: &mut Parts) {
    parts.put("versions.txt", &versions(root));
    parts.add("check.json", check(root));
    let mut folders: BTreeSet<PathBuf> = ["var/lib", "run"]
        .iter()
        .flat_map(|above| PROGRAMS.map(|program| root.join(above).join(program)))
        .filter(|folder| fs::symlink_metadata(folder).is_ok())
        .collect();
    configs(root, parts, &mut folders);
    for folder in folders {
        let name = folder.strip_prefix(root).unwrap_or(&folder).to_string_lossy().replace('/', "-");
        parts.add(format!("files/{}.txt", name.trim_start_matches('-')), listing(&folder));
    }
    journal(root, parts);
}

/// Of this program, of the daemons' programs where they are installed, of the system.
fn versions(root: &Path) -> String {
    let mut text = format!("ballast {}\n", ballast_runtime::VERSION);
    for program in PROGRAMS {
        let path = Path::new("/usr/bin").join(program);
        if root == Path::new("/") && path.exists() {
            let said = output(Command::new(&path).arg("--version")).map_err(|error| error.to_string());
            let said = said.and_then(|output| of_success(&output));
            let _ = writeln!(text, "{}: {}", path.display(), said.unwrap_or_else(|why| why).trim());
        }
    }
    for file in ["proc/sys/kernel/osrelease", "etc/os-release"] {
        let said = fs::read_to_string(root.join(file)).unwrap_or_else(|error| error.to_string());
        let _ = writeln!(text, "\n{file}:\n{}", said.trim());
    }
    text
}

/// What `ballast check --json` says here. Its exit code is a part of what it says.
fn check(root: &Path) -> Result<String, String> {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let seconds = if root == Path::new("/") { "2" } else { "0" };
    let mut check = Command::new(program);
    check.args(["check", "--json", "--seconds", seconds, "--root"]).arg(root);
    let output = output(&mut check).map_err(|error| error.to_string())?;
    match output.stdout.is_empty() {
        true => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        false => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
    }
}

/// The daemons' config files, and of all else below /etc/ballast the names and sizes; adds the folders that the
/// configs name.
fn configs(root: &Path, parts: &mut Parts, folders: &mut BTreeSet<PathBuf>) {
    let folder = root.join(CONFIGS);
    if fs::symlink_metadata(&folder).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        return;
    }
    parts.add("files/etc-ballast.txt", listing(&folder));
    let known = ConfigKeys::new();
    let files = fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<_> = files.filter(|file| is_config(file)).collect();
    files.sort();
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = config(&file, root == Path::new("/")).map_err(|error| error.to_string());
        let text = text.and_then(|text| known.redacted(&text));
        if let Ok(table) = text.as_deref().unwrap_or_default().parse::<toml::Table>() {
            let named = ["state_dir", "run_dir"].into_iter().filter_map(|key| table.get(key)?.as_str());
            let is_below = |folder: &Path| folder.components().all(|part| part != Component::ParentDir);
            let named = named.map(|folder| root.join(folder.trim_start_matches('/')));
            let named = named.filter(|folder| is_below(folder));
            folders.extend(named.filter(|folder| fs::symlink_metadata(folder).is_ok()));
        }
        parts.add(format!("config/{name}"), text);
    }
}

/// The text of a config file. A link of another machine's disk would lead to a file of this one.
fn config(file: &Path, follow: bool) -> io::Result<String> {
    let link = if follow { OFlag::empty() } else { OFlag::O_NOFOLLOW };
    let flags = link | OFlag::O_NONBLOCK;
    let file = File::options().read(true).custom_flags(flags.bits()).open(file)?;
    let meta = file.metadata()?;
    if !meta.is_file() || meta.len() > CONFIG_MAX {
        return Err(io::Error::other(format!("no regular file of at most {} MiB", CONFIG_MAX >> 20)));
    }
    let mut text = String::new();
    file.take(CONFIG_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// Whether one of the units reads this file.
fn is_config(file: &Path) -> bool {
    let name = file.file_stem().and_then(OsStr::to_str).unwrap_or_default();
    let is_ours = ["agent", "chassis", "place"].contains(&name) || name.starts_with("chassis-");
    is_ours && file.extension() == Some(OsStr::new("toml"))
}

/// Names and sizes of all files below a folder; what is in them stays there.
fn listing(folder: &Path) -> Result<String, String> {
    let mut text = format!("{}\n", folder.display());
    let (mut left, mut count) = (vec![folder.to_owned()], 0);
    while let Some(here) = left.pop() {
        let entries = fs::read_dir(&here).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let mut entries = entries.map_err(|error| format!("{}: {error}", here.display()))?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            count += 1;
            if count > FILES_MAX {
                text += "and more\n";
                return Ok(text);
            }
            // A link is listed, and not followed.
            let (path, meta) = (entry.path(), entry.metadata().map_err(|error| error.to_string())?);
            let _ = writeln!(text, "{:>12}  {}", meta.len(), path.display());
            if meta.is_dir() {
                left.push(path);
            }
        }
    }
    Ok(text)
}

/// The newest lines of the daemons' units.
fn journal(root: &Path, parts: &mut Parts) {
    let mut command = Command::new("journalctl");
    command.args(["--no-pager", "--no-hostname", "--output=short-iso-precise", LINES, "--unit=ballast-*"]);
    if root != Path::new("/") {
        command.arg("--root").arg(root);
    }
    match output(&mut command) {
        // Units that never ran here are no failure, and journalctl calls them one.
        Ok(output) if is_empty(&output) => parts.put("journal.txt", "no lines of the units ballast-*\n"),
        Ok(output) => parts.add("journal.txt", of_success(&output)),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            parts.put("journal.txt", "there is no journalctl here\n");
        }
        Err(error) => parts.fail("journal.txt", error),
    }
}

struct Output {
    status: ExitStatus,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// Runs another program to its end, unless that takes too long: then it is ended.
fn output(command: &mut Command) -> io::Result<Output> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (stdout, stderr) = (child.stdout.take().map(read), child.stderr.take().map(read));
    let deadline = Instant::now() + WAIT_MAX;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::other(format!("no end after {} s", WAIT_MAX.as_secs())));
        }
        thread::sleep(LOOK);
    };
    let said =
        |reading: Option<JoinHandle<Vec<u8>>>| reading.and_then(|it| it.join().ok()).unwrap_or_default();
    Ok(Output { status, stdout: said(stdout), stderr: said(stderr) })
}

/// Reads a pipe beside the program that fills it. What is beyond the limit is read, and dropped.
fn read(mut pipe: impl io::Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut said = vec![];
        let _ = pipe.by_ref().take(SAID_MAX).read_to_end(&mut said);
        let _ = io::copy(&mut pipe, &mut io::sink());
        said
    })
}

fn is_empty(output: &Output) -> bool {
    let why = String::from_utf8_lossy(&output.stderr);
    !output.status.success() && ["No data available", "No journal files"].iter().any(|it| why.contains(it))
}

fn of_success(output: &Output) -> Result<String, String> {
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())),
    }
}
