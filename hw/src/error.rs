use core::fmt;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

/// What was being done to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reading it, or finding it.
    Read,
    Write,
    /// Reading back what was written.
    Verify,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Verify => "read back",
        })
    }
}

/// A kernel file that is missing, refuses, or says what it must not say.
#[derive(Debug, thiserror::Error)]
pub struct HwError {
    pub path: PathBuf,
    pub operation: Operation,
    /// The value read or to be written, if there is one; cut to 80 characters.
    pub value: Option<String>,
    pub allowed: String,
    #[source]
    pub source: Option<io::Error>,
}

impl fmt::Display for HwError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (operation, path) = (self.operation, self.path.display());
        match (&self.value, operation) {
            (Some(value), Operation::Read) if self.source.is_none() => {
                write!(f, "found {value:?} in {path}")?;
            }
            (Some(value), Operation::Verify) => write!(f, "read back {value:?} from {path}")?,
            (Some(value), _) => write!(f, "cannot {operation} {value:?} to {path}")?,
            (None, _) => write!(f, "cannot {operation} {path}")?,
        }
        if let Some(source) = &self.source {
            write!(f, ": {source}")?;
        }
        write!(f, "; expected: {}", self.allowed)
    }
}

impl From<HwError> for ballast_types::CapError {
    fn from(error: HwError) -> Self {
        Self { reason: error.to_string(), transient: error.is_transient() }
    }
}

impl HwError {
    /// The kernel refused, or the file is not there.
    pub(crate) fn io(path: &Path, operation: Operation, allowed: &str, source: io::Error) -> Self {
        let (path, allowed) = (path.to_owned(), allowed.to_owned());
        Self { path, operation, value: None, allowed, source: Some(source) }
    }

    pub fn value(
        path: &Path,
        operation: Operation,
        value: impl fmt::Display,
        allowed: impl Into<String>,
    ) -> Self {
        let value: String = value.to_string().chars().take(80).collect();
        Self { path: path.to_owned(), operation, value: Some(value), allowed: allowed.into(), source: None }
    }

    /// Whether another process holds the lock that was asked for.
    pub fn is_locked(&self) -> bool {
        self.is(&[Errno::EWOULDBLOCK])
    }

    /// Whether trying again may help: EBUSY, EAGAIN, EINTR, too many open files, or a timeout.
    pub fn is_transient(&self) -> bool {
        let Some(source) = &self.source else {
            return false;
        };
        matches!(
            source.kind(),
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
        ) || self.is(&[
            Errno::EBUSY,
            Errno::EAGAIN,
            Errno::EINTR,
            Errno::ETIMEDOUT,
            Errno::EMFILE,
            Errno::ENFILE,
        ])
    }

    /// Whether somebody was asked who has not answered yet, and nobody waits for him.
    pub fn is_pending(&self) -> bool {
        self.source
            .as_ref()
            .is_some_and(|e| e.kind() == io::ErrorKind::WouldBlock && e.raw_os_error().is_none())
    }

    /// Whether the file is not there.
    pub fn is_missing(&self) -> bool {
        self.source.as_ref().is_some_and(|e| e.kind() == io::ErrorKind::NotFound)
    }

    /// Whether a cgroup is there, but the controller that was asked for is not enabled in it.
    pub(crate) fn has_no_controller(&self) -> bool {
        self.is(&[Errno::EOPNOTSUPP])
    }

    /// Whether the kernel gave one of these errors.
    pub(crate) fn is(&self, errors: &[Errno]) -> bool {
        let raw = self.source.as_ref().and_then(io::Error::raw_os_error);
        raw.is_some_and(|raw| errors.contains(&Errno::from_raw(raw)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_pass_is_transient() {
        for (errno, transient) in [
            (Errno::EBUSY, true),
            (Errno::EAGAIN, true),
            (Errno::EINTR, true),
            (Errno::ETIMEDOUT, true),
            (Errno::EMFILE, true),
            (Errno::ENFILE, true),
            (Errno::EACCES, false),
            (Errno::EROFS, false),
            (Errno::ENODATA, false),
            (Errno::ENOENT, false),
            (Errno::EINVAL, false),
        ] {
            let e = HwError::io(Path::new("/f"), Operation::Write, "x", errno.into());
            assert_eq!(e.is_transient(), transient, "{errno}");
        }
    }

    #[test]
    fn an_error_names_file_value_and_what_is_allowed() {
        let file = Path::new("/sys/f");
        for (operation, says) in [
            (Operation::Write, r#"cannot write "5" to /sys/f; expected: 10 to 20 kHz"#),
            (Operation::Read, r#"found "5" in /sys/f; expected: 10 to 20 kHz"#),
            (Operation::Verify, r#"read back "5" from /sys/f; expected: 10 to 20 kHz"#),
        ] {
            assert_eq!(HwError::value(file, operation, 5, "10 to 20 kHz").to_string(), says);
        }
        let gone = HwError::io(file, Operation::Read, "a number", Errno::ENOENT.into());
        assert!(gone.to_string().starts_with("cannot read /sys/f: No such file"), "{gone}");
        let long = HwError::value(Path::new("/f"), Operation::Read, "x".repeat(9999), "a number");
        assert!(long.to_string().len() < 150);
    }
}
