//! Mutual TLS: this daemon's certificate, live, and whom it trusts.
//!
//! TLS 1.3 with ring. Both sides show a certificate of one authority; who they are is the
//! [`Role`] in it, not their address. Nothing is resumed: every connection proves itself anew.

pub mod authority;
mod files;
mod validity;
mod verify;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ballast_types::Role;
use ballast_types::wire::{Alarm, AlarmId, Event, EventKind, TlsStatus};
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::clock;
use crate::events::Events;
use crate::lock;
use crate::threads;
use files::{Fingerprint, Read};
pub use validity::not_after;
pub use verify::role_of;
use verify::{Expected, ServerVerifier, is_for};

pub use verify::Peer;

/// The header in which a daemon gives out its reservation, and the beginning of the ALPN name that shows it.
pub const RESERVATION: &str = "ballast-pass";
/// Hexadecimal digits of a reservation.
const PASS_DIGITS: usize = 32;

/// Between two looks at the files.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// This daemon's certificate, and what lies between it and the authority's: PEM.
    pub cert: PathBuf,
    /// Its private key: PEM, not open to others.
    pub key: PathBuf,
    /// The authorities that peers' certificates must come from: PEM.
    pub ca: PathBuf,
    /// The certificate's end is an alarm this long before.
    pub warn_before: Duration,
}

/// Makes ring the process's provider of cryptography. First thing in `main`, and in tests.
pub fn install_provider() {
    // Fails only when there is one already, which then is ring too: no other is built in.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// What the files said when they were last good.
struct Loaded {
    generation: u64,
    server: Arc<ServerConfig>,
    clients: Arc<dyn ClientCertVerifier>,
    roots: Arc<RootCertStore>,
    key: Arc<CertifiedKey>,
    role: Role,
    not_after: u64,
    /// What shows that a client has been here before.
    reservation: String,
}

/// This daemon's certificate and trust; follows the files.
pub struct Tls {
    config: TlsConfig,
    /// Who the certificate must say we are, if that is known.
    own: Option<Role>,
    loaded: RwLock<Arc<Loaded>>,
    watched: Mutex<Watched>,
}

struct Watched {
    /// What they last looked like, good or bad.
    fingerprint: Fingerprint,
    /// Why they cannot be used, if they cannot.
    problem: Option<String>,
    /// Whether that was still so at a second look: a pair is written file by file.
    lasting: bool,
}

impl Tls {
    /// Reads the files. `own` is who the certificate must say this is.
    pub fn open(config: &TlsConfig, own: Option<&Role>) -> Result<Arc<Self>, String> {
        let fingerprint = Fingerprint::of(config);
        let loaded = load(config, own, 0)?;
        Ok(Arc::new(Self {
            config: config.clone(),
            own: own.cloned(),
            loaded: RwLock::new(Arc::new(loaded)),
            watched: Mutex::new(Watched { fingerprint, problem: None, lasting: false }),
        }))
    }

    fn loaded(&self) -> Arc<Loaded> {
        Arc::clone(&self.loaded.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts the reloads: what was made or checked under an earlier one is to be renewed.
    pub fn generation(&self) -> u64 {
        self.loaded().generation
    }

    /// Follows the files on a thread of its own, until the daemon ends.
    pub fn watch(self: &Arc<Self>, events: Events) -> std::io::Result<()> {
        let tls = Arc::downgrade(self);
        threads::every("certificates", LOOK, move || {
            let Some(tls) = tls.upgrade() else { return false };
            if let Some(message) = tls.look() {
                events.push(Event { at_ns: clock::now(), kind: EventKind::Alarm { message } });
            }
            true
        })
    }

    /// Loads the files if they changed or were broken; a pair that cannot be used leaves the old one in
    /// force.
    ///
    /// Gives what is wrong, once, if it still is at the second look.
    pub fn look(&self) -> Option<String> {
        let fingerprint = Fingerprint::of(&self.config);
        let (moved, was_lasting) = {
            let watched = self.watched();
            let moved = fingerprint != watched.fingerprint;

            // What is broken is read again even so: a repair may look the same from outside.
            if !moved && watched.problem.is_none() {
                return None;
            }
            (moved, !moved && watched.lasting)
        };

        // Without a lock: a slow file system must not hold up who asks for the status.
        let problem = match load(&self.config, self.own.as_ref(), self.generation() + 1) {
            Ok(loaded) => {
                tracing::info!(role = %loaded.role, not_after_s = loaded.not_after, "new certificates");
                *self.loaded.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(loaded);
                None
            }
            Err(why) => Some(format!("the new certificates cannot be used, the old ones stay: {why}")),
        };

        let lasting = problem.is_some() && !moved;
        let newly_lasting = problem.clone().filter(|_| lasting && !was_lasting);
        *self.watched() = Watched { fingerprint, problem, lasting };

        newly_lasting
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        lock(&self.watched)
    }

    /// Whether the certificate is for this DNS name.
    pub fn is_named(&self, name: &str) -> bool {
        self.loaded().key.end_entity_cert().is_ok_and(|leaf| is_for(leaf, name))
    }

    /// How this daemon speaks with clients.
    pub fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.loaded().server)
    }

    /// Whether a client that was let in with this chain would be let in now.
    pub fn still_trusts(&self, chain: &[rustls::pki_types::CertificateDer<'_>]) -> bool {
        let Some((own, between)) = chain.split_first() else { return false };
        let now = rustls::pki_types::UnixTime::now();
        self.loaded().clients.verify_client_cert(own, between, now).is_ok()
    }

    /// What a client that was let in may show at its next handshake, in the clear: it proves nothing but
    /// that it, or somebody on the wire between, has been here before. It outlives this process, for it is
    /// worked out from the private key.
    pub fn reservation(&self) -> String {
        self.loaded().reservation.clone()
    }

    /// Whether a name in a client's ALPN is that reservation.
    pub fn shows_reservation(&self, name: &[u8]) -> bool {
        reservation_name(&self.loaded().reservation) == name
    }

    /// How to speak with `peer`, and with nobody else, showing its `reservation`.
    fn client(&self, peer: Peer, reservation: Option<&str>) -> ClientConfig {
        let Loaded { roots, key, .. } = &*self.loaded();
        let mut config = client_config(Some(Expected { roots: Arc::clone(roots), peer }), Some(key));
        if let Some(reservation) = reservation {
            config.alpn_protocols = vec![b"http/1.1".to_vec(), reservation_name(reservation)];
        }
        config
    }

    pub fn status(&self) -> TlsStatus {
        self.status_at(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
    }

    fn status_at(&self, now: u64) -> TlsStatus {
        let Loaded { role, not_after, .. } = &*self.loaded();
        let watched = self.watched();
        let problem = watched.problem.clone().filter(|_| watched.lasting);
        TlsStatus {
            role: role.clone(),
            not_after_s: *not_after,
            expires_in_s: not_after.cast_signed() - now.cast_signed(),
            problem,
        }
    }

    /// What an operator should know of the certificates.
    pub fn alarms(&self) -> Vec<Alarm> {
        self.alarms_at(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
    }

    fn alarms_at(&self, now: u64) -> Vec<Alarm> {
        let status = self.status_at(now);
        let end = match status.expires_in_s {
            ..=0 => {
                let message = "this daemon's certificate has expired: its peers refuse it";
                Some(Alarm::new(AlarmId::CertificateExpired, message))
            }
            left if left.unsigned_abs() < self.config.warn_before.as_secs() => {
                let days = left as f64 / 86_400.0;
                let message = format!("this daemon's certificate ends in {days:.1} days");
                Some(Alarm::new(AlarmId::CertificateExpires, message))
            }
            _ => None,
        };
        let refused = status.problem.map(|why| Alarm::new(AlarmId::CertificateRefused, why));
        end.into_iter().chain(refused).collect()
    }
}

/// The builder of every HTTP client of ours: no proxy, no redirects, and no authority but the configured.
///
/// With `tls` its https goes to that peer alone; without, there is none.
pub fn http_client(tls: Option<(&Tls, Peer)>) -> reqwest::ClientBuilder {
    client_with_reservation(tls, None)
}

/// The same, showing the reservation that the peer has given out before.
pub fn client_with_reservation(
    tls: Option<(&Tls, Peer)>,
    reservation: Option<&str>,
) -> reqwest::ClientBuilder {
    let config = tls.map_or_else(|| client_config(None, None), |(tls, peer)| tls.client(peer, reservation));
    reqwest::Client::builder()
        .tls_backend_preconfigured(config)
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
}

/// Who the owner of this certificate (DER) is.
pub fn role_in(certificate: &[u8]) -> Option<Role> {
    role_of(&certificate.into())
}

/// The innermost reason of an error: "Connection refused", not "error sending request".
pub fn cause(error: &reqwest::Error) -> String {
    let mut inner: &dyn std::error::Error = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

fn client_config(expected: Option<Expected>, key: Option<&Arc<CertifiedKey>>) -> ClientConfig {
    let verifier = ServerVerifier { expected, provider: provider() };
    #[expect(clippy::expect_used, reason = "ring has cipher suites for TLS 1.3")]
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match key {
        Some(key) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(key)))),
        None => builder.with_no_client_auth(),
    };
    config.resumption = Resumption::disabled();
    config
}

/// The reservation of whoever has this private key: nobody else can work it out, nor the key from it.
fn reservation_of(key: &PrivateKeyDer<'_>) -> String {
    #[expect(clippy::expect_used, reason = "its name says so")]
    let suite = TLS13_AES_128_GCM_SHA256.tls13().expect("a suite of TLS 1.3");
    let hkdf = suite.hkdf_provider.extract_from_secret(Some(RESERVATION.as_bytes()), key.secret_der());
    let block = hkdf.expand_block(&[RESERVATION.as_bytes()]);
    block.as_ref().iter().take(PASS_DIGITS / 2).map(|byte| format!("{byte:02x}")).collect()
}

/// Whether a peer's header is a reservation, and no more than that.
pub fn is_reservation(text: &str) -> bool {
    text.len() == PASS_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// How a reservation is shown: as the name of a protocol that nobody speaks.
fn reservation_name(reservation: &str) -> Vec<u8> {
    format!("{RESERVATION}/{reservation}").into_bytes()
}

/// Reads and checks the files: they must go together, and say that this is `own`.
fn load(config: &TlsConfig, own: Option<&Role>, generation: u64) -> Result<Loaded, String> {
    let Read { chain, key, roots } = files::read(config)?;
    let cert = |what: String| format!("tls.cert = {:?}: {what}", config.cert);
    let leaf = chain.first().ok_or_else(|| cert("no certificate in it".into()))?;
    let role = role_of(leaf)
        .ok_or_else(|| cert("not exactly one ballast:// URI among its subject alternative names".into()))?;

    if let Some(own) = own.filter(|own| **own != role) {
        return Err(cert(format!("it says {role}, and this is {own}")));
    }
    let not_after = not_after(leaf).ok_or_else(|| cert("its end of validity cannot be read".into()))?;
    let (provider, reservation) = (provider(), reservation_of(&key));
    let key = CertifiedKey::from_der(chain, key, &provider)
        .map_err(|error| format!("tls.key = {:?}: of another certificate: {error}", config.key))?;
    let (key, roots) = (Arc::new(key), Arc::new(roots));
    let ca = |error: &dyn std::fmt::Display| format!("tls.ca = {:?}: {error}", config.ca);
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
        .build()
        .map_err(|error| ca(&error))?;
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| ca(&error))?
        .with_client_cert_verifier(Arc::clone(&clients))
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&key))));
    // A resumed session would outlive the certificate that it was begun with.
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    server.alpn_protocols = vec![b"http/1.1".to_vec()];
    let server = Arc::new(server);

    Ok(Loaded { generation, server, clients, roots, key, role, not_after, reservation })
}

#[cfg(test)]
mod tests;
