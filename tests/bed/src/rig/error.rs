use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum RigError {
    /// A file of the tree cannot be made, read or replaced.
    #[error("{operation} {}: {source}", path.display())]
    File { operation: &'static str, path: PathBuf, source: io::Error },
    /// The folder holds something already.
    #[error("{} is not empty: allowed: an empty folder, or one that is not there yet", path.display())]
    InUse { path: PathBuf },
    #[error("truth.json: {0}")]
    Truth(#[from] serde_json::Error),
}

impl RigError {
    pub(crate) fn file<E: Into<io::Error>>(operation: &'static str, path: &Path) -> impl FnOnce(E) -> Self {
        move |source| Self::File { operation, path: path.to_owned(), source: source.into() }
    }
}
