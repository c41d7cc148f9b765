use std::fmt;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde::Deserialize;

use crate::BmcError;
use crate::error::cut;

/// More than any file with a name and a password holds.
const FILE_MAX: u64 = 4096;

/// How a BMC is told who we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// By a session: one login, then a token.
    Session,
    /// By name and password with every request.
    Basic,
}

/// Who we are to a BMC. The password is never printed.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credentials {
    pub username: String,
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Reads a TOML file with `username` and `password`. Fails if it is not a regular file of ours or root's,
    /// if anybody else may read it, or if it holds anything else. What it holds is never part of the error.
    pub fn read(path: &Path) -> Result<Self, BmcError> {
        let of = path.display().to_string();
        let failed = |source| BmcError::Io { of: of.clone(), source };
        let mut file = std::fs::File::open(path).map_err(failed)?;

        // What was opened is checked, not what is at the path by now.
        let found = file.metadata().map_err(failed)?;
        let owner = nix::unistd::geteuid().as_raw();

        if !found.is_file() || found.mode() & 0o077 != 0 || ![0, owner].contains(&found.uid()) {
            let value = format!("mode {:o}, owner {}", found.mode() & 0o7777, found.uid());
            let allowed = "a regular file of the daemon's user or root that only its owner may read \
                           (chmod 600)";
            return Err(BmcError::malformed(of, value, allowed));
        }

        let mut text = String::new();
        std::io::Read::by_ref(&mut file).take(FILE_MAX).read_to_string(&mut text).map_err(failed)?;
        let allowed = "username = \"…\" and password = \"…\", nothing else";
        let read: Self =
            toml::from_str(&text).map_err(|e| BmcError::malformed(of.clone(), cut(e.message()), allowed))?;
        if read.username.is_empty() || read.username.contains(':') || read.password.is_empty() {
            return Err(BmcError::malformed(of, "an empty one, or a name with a colon", allowed));
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    fn read(text: &str, mode: u32) -> Result<Credentials, BmcError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bmc.toml");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        Credentials::read(&path)
    }

    const GOOD: &str = "username = \"ballast\"\npassword = \"hush\"\n";

    #[test]
    fn only_a_private_file_is_read_and_the_password_is_never_shown() {
        let good = read(GOOD, 0o600).unwrap();
        assert_eq!((good.username.as_str(), good.password.as_str()), ("ballast", "hush"));
        assert!(!format!("{good:?}").contains("hush"));
        assert!(read(GOOD, 0o400).is_ok());

        for mode in [0o644, 0o640, 0o604, 0o660] {
            assert!(read(GOOD, mode).unwrap_err().to_string().contains("chmod 600"), "{mode:o}");
        }
        assert!(Credentials::read(Path::new("/nonexistent/bmc.toml")).is_err());
        assert!(Credentials::read(Path::new("/dev/null")).is_err());

        for bad in [
            "",
            "username = \"a\"\n",
            "username = \"a\"\npassword = \"\"\n",
            "username = \"a:b\"\npassword = \"hush\"\n",
            "username = \"a\"\npassword = \"hush\"\nmore = 1\n",
            "password = \"hush\" username",
        ] {
            let error = read(bad, 0o600).unwrap_err().to_string();
            assert!(!error.contains("hush"), "{error}");
        }
    }
}
