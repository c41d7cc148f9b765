//! A socket in a file: whom its mode lets in may order.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, chown};
use std::os::unix::net::UnixStream;
use std::path::Path;

use nix::unistd::Group;
use tokio::net::UnixListener;

/// Whose members may order, where there is such a group.
const GROUP: &str = "ballast";
/// Its owner and its group may connect.
const MODE: u32 = 0o660;

/// Binds `path`, in the place of what an ended daemon has left there. Fails when another daemon answers
/// there, or something else is in the way.
pub(super) fn bind(path: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    make_way(path)?;

    let listener = UnixListener::bind(path)?;
    // Until here only the owner could connect, or his group: the kernel has taken the umask from the mode.
    let group = Group::from_name(GROUP).ok().flatten();
    if let Some(group) = group
        && let Err(error) = chown(path, None, Some(group.gid.as_raw()))
    {
        tracing::warn!(path = %path.display(), group = GROUP, %error, "only the socket's owner may order");
    }
    fs::set_permissions(path, Permissions::from_mode(MODE))?;

    Ok(listener)
}

/// Removes the socket of a daemon that has ended.
fn make_way(path: &Path) -> io::Result<()> {
    let there = match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        there => there?,
    };
    if !there.file_type().is_socket() {
        return Err(io::Error::new(ErrorKind::AlreadyExists, "a file is there that is no socket"));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(io::Error::new(ErrorKind::AddrInUse, "another daemon answers there")),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
    }
}
