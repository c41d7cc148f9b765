//! Files that must survive a crash whole.
//!
//! Root may write into a folder that belongs to a daemon's own user, as when an operator orders a release.
//! What it writes there becomes that user's, who must read it afterwards; and no link that this user has laid
//! leads it elsewhere.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown, lchown};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::unistd::geteuid;

/// Replaces a file, so that a reader, or a crash, sees the old or the new text, never half.
///
/// On return it is on disk: temporary file beside it, fsync, rename, fsync of the folder. Root's file
/// belongs to the owner of the folder.
pub fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let folder = folder_of(path);
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");

    // One that is there is a crash's, or a link that must not be followed.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }

    let mut file = File::create_new(&temporary)?;

    if let Some((user, group)) = owner_for(folder)? {
        fchown(&file, Some(user), Some(group))?;
    }
    if let Err(error) = file.write_all(text).and_then(|()| file.sync_all()) {
        // A part of it must not take the room that its next try needs.
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }

    fs::rename(&temporary, path)?;

    File::open(folder)?.sync_all()
}

/// Makes a folder if it is not there; root's belongs to the owner of the one that it is in.
pub fn folder(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => return Ok(()),
        made => made?,
    }
    match owner_for(folder_of(path))? {
        Some((user, group)) => lchown(path, Some(user), Some(group)),
        None => Ok(()),
    }
}

/// A folder that this process has for itself, until this is dropped.
#[derive(Debug)]
pub struct Lock {
    _held: Vec<Flock<File>>,
}

/// Locks a directory for this process. The file `lock` cannot be opened by other users; the directory itself needs no
/// disk space. One of the two locks is enough.
///
/// Whoever can open a file can lock it. So nobody else may open `lock`, and who holds a folder that all may list
/// counts only where there can be no `lock`.
///
/// # Errors
/// `EWOULDBLOCK` when another process has it; else what the file system says.
pub fn lock(folder: &Path) -> io::Result<Lock> {
    let take = |file| {
        Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| io::Error::from(error))
    };
    let mut options = File::options();
    // A link that the folder's owner has laid leads root nowhere.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(flags.bits());
    let file = options.open(folder.join("lock")).and_then(|file| {
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "lock is no regular file"));
        }
        if let Some((user, group)) = owner_for(folder)? {
            let _ = fchown(&file, Some(user), Some(group));
        }
        take(file)
    });
    let itself = File::open(folder).and_then(take);
    let is_private = fs::metadata(folder)?.mode() & 0o007 == 0;

    let is_taken = |error: &io::Error| error.kind() == ErrorKind::WouldBlock;
    let held = match (file, itself) {
        (Err(error), _) if is_taken(&error) || error.raw_os_error() == Some(Errno::ELOOP as i32) => {
            return Err(error);
        }
        (Ok(_), Err(error)) if is_taken(&error) && is_private => return Err(error),
        (Err(_), Err(error)) if is_taken(&error) => return Err(error),
        (Err(error), Err(_)) => return Err(error),
        (file, itself) => file.into_iter().chain(itself).collect(),
    };
    Ok(Lock { _held: held })
}

/// Whether so many bytes could be written into a folder now: writes them, and removes them.
pub fn probe(folder: &Path, bytes: usize) -> io::Result<()> {
    let path = folder.join("probe.tmp");
    let written = replace(&path, &vec![b' '; bytes]);
    let removed = fs::remove_file(&path);
    written.and(removed)
}

/// The folder that a path is in; of a name alone, the one we are in.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// To whom root must give what it makes in `folder`.
fn owner_for(folder: &Path) -> io::Result<Option<(u32, u32)>> {
    let found = fs::metadata(folder)?;
    Ok((geteuid().is_root() && found.uid() != 0).then(|| (found.uid(), found.gid())))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_text_is_replaced_whole_and_a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, victim) = (dir.path().join("a.json"), dir.path().join("victim"));
        fs::write(&victim, "untouched").unwrap();
        std::os::unix::fs::symlink(&victim, dir.path().join("a.json.tmp")).unwrap();
        replace(&path, b"one").unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
        folder(&dir.path().join("caps")).unwrap();
        folder(&dir.path().join("caps")).unwrap();
        assert!(folder(&victim).is_err(), "a file is no folder");
    }

    #[test]
    fn nobody_else_can_hold_a_folder_that_all_may_list() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let by_hand = Flock::lock(File::open(dir.path()).unwrap(), FlockArg::LockExclusiveNonblock);
        let ours = lock(dir.path()).unwrap();
        assert_eq!(fs::metadata(dir.path().join("lock")).unwrap().mode() & 0o777, 0o600);
        assert_eq!(lock(dir.path()).unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(ours);

        // There can be no `lock`, as on a disk that is read-only.
        fs::remove_file(dir.path().join("lock")).unwrap();
        fs::create_dir(dir.path().join("lock")).unwrap();
        assert_eq!(lock(dir.path()).unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(by_hand);
        drop(lock(dir.path()).unwrap());

        // One that would never answer.
        fs::remove_dir(dir.path().join("lock")).unwrap();
        nix::unistd::mkfifo(&dir.path().join("lock"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        drop(lock(dir.path()).unwrap());

        fs::remove_file(dir.path().join("lock")).unwrap();
        let (link, victim) = (dir.path().join("lock"), dir.path().join("victim"));
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        lock(dir.path()).unwrap_err();
        assert!(!victim.exists());
    }

    #[test]
    #[expect(clippy::print_stderr, reason = "a test that was skipped must say so")]
    fn what_root_writes_belongs_to_the_owner_of_the_folder() {
        if !geteuid().is_root() {
            eprintln!("SKIPPED: only root can give files away");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        lchown(dir.path(), Some(4321), Some(1234)).unwrap();
        let (file, caps) = (dir.path().join("ledger.json"), dir.path().join("caps"));
        folder(&caps).unwrap();
        let inside = caps.join("s01.json");
        for path in [&file, &inside] {
            replace(path, b"{}").unwrap();
        }
        for path in [&file, &caps, &inside] {
            let found = fs::metadata(path).unwrap();
            assert_eq!((found.uid(), found.gid()), (4321, 1234), "{}", path.display());
        }
    }
}
