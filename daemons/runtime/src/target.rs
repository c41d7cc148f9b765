//! Where a client reaches a daemon: at an address, or by its socket on this machine.

use std::path::{Path, PathBuf};

use reqwest::ClientBuilder;

use crate::config::listen::SOCKET;

/// A daemon as its clients reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    base: String,
    socket: Option<PathBuf>,
}

impl Target {
    /// `http://ADDRESS:PORT`, `https://ADDRESS:PORT`, or `unix:/PATH`.
    pub fn new(url: &str) -> Self {
        match url.strip_prefix(SOCKET) {
            Some(path) => Self::at_socket(path.into()),
            None => Self { base: url.trim_end_matches('/').to_owned(), socket: None },
        }
    }

    /// The daemon whose socket this is.
    pub fn at_socket(path: PathBuf) -> Self {
        Self { base: "http://localhost".to_owned(), socket: Some(path) }
    }

    /// The URL of one of its paths, for a client made with [`Target::reached_by`].
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// The same client, so that it reaches this daemon.
    pub fn reached_by(&self, client: ClientBuilder) -> ClientBuilder {
        match &self.socket {
            Some(path) => client.unix_socket(Path::new(path)),
            None => client,
        }
    }
}
