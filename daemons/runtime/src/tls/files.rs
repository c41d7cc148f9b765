//! The certificate files: read as a whole, or refused by name.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::unistd::geteuid;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::TlsConfig;
use crate::fingerprint;

/// No chain and no set of authorities comes near this.
const BYTES_MAX: u64 = 1 << 20;

pub(super) struct Read {
    /// This daemon's certificate first.
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
    pub(super) roots: RootCertStore,
}

pub(super) fn read(config: &TlsConfig) -> Result<Read, String> {
    let certificates = |key: &str, path: &Path| {
        let wrong = |what: String| format!("tls.{key} = {path:?}: {what}");
        let text = contents(path, |_| Ok(())).map_err(wrong)?;
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();

        match read {
            Ok(all) if !all.is_empty() => Ok(all),
            Ok(_) => Err(wrong("no certificate in PEM".into())),
            Err(error) => Err(wrong(error.to_string())),
        }
    };

    let chain = certificates("cert", &config.cert)?;
    let mut roots = RootCertStore::empty();

    for root in certificates("ca", &config.ca)? {
        roots.add(root).map_err(|error| format!("tls.ca = {:?}: {error}", config.ca))?;
    }
    let wrong = |what: String| format!("tls.key = {:?}: {what}", config.key);
    let text = contents(&config.key, kept_secret).map_err(wrong)?;
    let key = PrivateKeyDer::from_pem_slice(&text)
        .map_err(|error| wrong(format!("no private key in PEM: {error}")))?;
    Ok(Read { chain, key, roots })
}

/// A key may be read by its owner, root or this user, and by one group; nobody else writes it.
fn kept_secret(metadata: &fs::Metadata) -> Result<(), String> {
    let mode = metadata.mode() & 0o777;
    if mode & 0o137 != 0 {
        return Err(format!("its mode is {mode:04o}: at most 0640, better 0600"));
    }
    if metadata.uid() != 0 && metadata.uid() != geteuid().as_raw() {
        return Err(format!("its owner is user {}: root or this daemon's user", metadata.uid()));
    }
    Ok(())
}

/// The text of a file that passes `check`; looked at after it was opened, so that it is the same file.
fn contents(path: &Path, check: impl FnOnce(&fs::Metadata) -> Result<(), String>) -> Result<Vec<u8>, String> {
    let said = |error: std::io::Error| error.to_string();
    let file = File::open(path).map_err(said)?;
    let metadata = file.metadata().map_err(said)?;
    if !metadata.is_file() {
        return Err("not a file".into());
    }
    check(&metadata)?;
    let mut text = vec![];
    file.take(BYTES_MAX).read_to_end(&mut text).map_err(said)?;
    Ok(text)
}

/// What the files look like from outside: differs when one was written or replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint([fingerprint::Fingerprint; 3]);

impl Fingerprint {
    pub(super) fn of(config: &TlsConfig) -> Self {
        Self([&config.cert, &config.key, &config.ca].map(|path| fingerprint::Fingerprint::of(path)))
    }
}
