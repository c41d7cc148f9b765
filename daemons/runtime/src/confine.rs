//! What a daemon may still do to this machine once it runs: what its work needs, and nothing else.
//!
//! Landlock bounds which files are written and which TCP ports are bound; seccomp bounds what the kernel
//! does at all. Both bind the thread that asks and the threads it starts, so this comes before every other thread, and
//! nothing takes it back. A kernel that cannot do one of the two is no reason not to run: it is logged, and in the
//! metrics.
//!
//! Landlock knows folders by inode: one that is replaced while a daemon runs is out of its reach until the next start.
//! Reading is not bounded here: names, time zones, certificates, `/proc` and `/sys` are read all over the machine,
//! and what is nobody's business (`/home`) is for the units.
//!
//! Source: Documentation/userspace-api/landlock.rst.

mod system_calls;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ballast_hw::durable;
use landlock::{
    ABI, AccessFs, AccessNet, BitFlags, NetPort, PathBeneath, PathFd, Ruleset, RulesetAttr as _,
    RulesetCreated, RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope, make_bitflags,
};

/// The newest of Landlock's versions whose bounds are asked for; an older kernel bounds what it can.
const ASKED: ABI = ABI::V6;

#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// Folders of its own: below them files are made, replaced and removed.
    pub folders: Vec<PathBuf>,
    /// Folders of the kernel's: below them files that are there are written.
    pub kernel: Vec<PathBuf>,
    /// Folders with the devices that it talks to.
    pub devices: Vec<PathBuf>,
    /// Whether it runs commands.
    pub commands: bool,
    /// The TCP ports that it binds, and the folders of its sockets.
    pub ports: Vec<u16>,
    pub sockets: Vec<PathBuf>,
}

/// How far this process is held to its needs.
#[derive(Debug)]
struct Confinement {
    landlock: Result<RulesetStatus, String>,
    system_calls: Result<(), String>,
    /// What is not there and could not be made, with the folder that may be written instead.
    elsewhere: Vec<(PathBuf, Option<PathBuf>)>,
}

static CONFINEMENT: OnceLock<Confinement> = OnceLock::new();

/// Holds this thread, and those that it starts, to what is needed. What came of it is told by [`log`].
pub fn enter(needs: &Needs) {
    let mut elsewhere = vec![];
    let landlock = bound_files(needs, &mut elsewhere).map_err(|error| error.to_string());
    let system_calls = system_calls::bound(needs.commands);
    // A second call is a daemon inside a test.
    let _ = CONFINEMENT.set(Confinement { landlock, system_calls, elsewhere });
}

/// Tells what came of [`enter`].
pub fn log() {
    let Some(Confinement { landlock, system_calls, elsewhere }) = CONFINEMENT.get() else { return };

    match landlock {
        Ok(RulesetStatus::FullyEnforced) => tracing::info!("Landlock bounds what this daemon writes"),
        Ok(RulesetStatus::PartiallyEnforced) => {
            tracing::info!("Landlock bounds what this daemon writes, as far as this older kernel can");
        }
        Ok(RulesetStatus::NotEnforced) => {
            tracing::warn!("this kernel has no Landlock: only the unit bounds what this daemon writes");
        }
        Err(error) => tracing::warn!(error, "Landlock does not bound what this daemon writes"),
    }
    if let Err(error) = system_calls {
        tracing::warn!(error, "this daemon's system calls are bounded by its unit alone");
    }

    for (path, instead) in elsewhere {
        let (path, instead) = (path.display(), instead.as_deref().unwrap_or(Path::new("nothing")).display());
        tracing::warn!(%path, %instead, "cannot be made now; this may be written until the next start");
    }
}

/// What bounds this process, by name, and whether it does; empty before [`enter`].
pub(crate) fn bounds() -> Vec<(&'static str, bool)> {
    let of = |it: &Confinement| {
        let landlock = it.landlock.as_ref().is_ok_and(|status| *status != RulesetStatus::NotEnforced);
        vec![("landlock", landlock), ("seccomp", it.system_calls.is_ok())]
    };
    CONFINEMENT.get().map(of).unwrap_or_default()
}

fn bound_files(
    needs: &Needs,
    elsewhere: &mut Vec<(PathBuf, Option<PathBuf>)>,
) -> Result<RulesetStatus, RulesetError> {
    let own = make_bitflags!(AccessFs::{
        WriteFile | Truncate | MakeReg | MakeDir | RemoveFile | RemoveDir
    });
    let socket = make_bitflags!(AccessFs::{ MakeSock | MakeDir | RemoveFile });
    let kernel = make_bitflags!(AccessFs::{ WriteFile | Truncate });
    let device = make_bitflags!(AccessFs::{ WriteFile | Truncate | IoctlDev });

    let mut files = AccessFs::from_write(ASKED);
    if !needs.commands {
        files |= AccessFs::Execute;
    }
    let rules = Ruleset::default()
        .handle_access(files)?
        .handle_access(AccessNet::BindTcp)?
        // No process of another's is signalled.
        .scope(Scope::Signal)?;

    let mut rules = rules.create()?;
    for path in &needs.folders {
        // Fails where the disk is full or read-only: then what is there above it must do.
        let _ = durable::folder(path).or_else(|_| fs::create_dir_all(path));
        rules = beneath(rules, path, own, elsewhere)?;
    }
    for path in &needs.sockets {
        let _ = fs::create_dir_all(path);
        rules = beneath(rules, path, socket, elsewhere)?;
    }
    for path in &needs.kernel {
        rules = beneath(rules, path, kernel, elsewhere)?;
    }
    for path in &needs.devices {
        rules = beneath(rules, path, device, elsewhere)?;
    }

    // Commands have it as their input and output.
    if let Ok(null) = PathFd::new("/dev/null") {
        rules = rules.add_rule(PathBeneath::new(null, kernel))?;
    }
    for port in &needs.ports {
        rules = rules.add_rule(NetPort::new(*port, AccessNet::BindTcp))?;
    }

    Ok(rules.restrict_self()?.ruleset)
}

/// Allows `access` below `path`; below the nearest folder above it that is there, where `path` is not. The root is
/// no such folder: that would be everything.
fn beneath(
    rules: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
    elsewhere: &mut Vec<(PathBuf, Option<PathBuf>)>,
) -> Result<RulesetCreated, RulesetError> {
    let found = path.ancestors().find(|it| it.is_dir() && (*it == path || it.parent().is_some()));
    let opened = found.and_then(|it| PathFd::new(it).ok());
    if found != Some(path) || opened.is_none() {
        elsewhere.push((path.to_owned(), opened.as_ref().and(found).map(Path::to_owned)));
    }

    match opened {
        Some(opened) => rules.add_rule(PathBeneath::new(opened, access)),
        None => Ok(rules),
    }
}
