//! Who the other side is.

use std::sync::Arc;

use ballast_types::Role;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, DigitallySignedStruct, Error, PeerIncompatible, RootCertStore, SignatureScheme,
};

/// The one `ballast://` URI among a certificate's subject alternative names.
///
/// None, several, or one that cannot be understood: no role.
pub fn role_of(certificate: &CertificateDer<'_>) -> Option<Role> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    let mut ours = certificate.valid_uri_names().filter(|uri| uri.starts_with("ballast:"));
    let role = ours.next()?.parse().ok()?;
    ours.next().is_none().then_some(role)
}

/// Whether a certificate is for this DNS name, as itself or by a wildcard.
pub(super) fn is_for(certificate: &CertificateDer<'_>, name: &str) -> bool {
    let (certificate, name) = (ParsedCertificate::try_from(certificate), ServerName::try_from(name));
    let (Ok(certificate), Ok(name)) = (certificate, name) else { return false };
    verify_server_name(&certificate, &name).is_ok()
}

/// Whom a client means to reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    Only(Role),
    /// Any chassis manager, agent or placement daemon.
    Daemon,
}

impl Peer {
    fn is(&self, role: Option<&Role>) -> bool {
        match self {
            Self::Only(expected) => role == Some(expected),
            Self::Daemon => {
                matches!(role, Some(Role::Chassis(_) | Role::Agent(_) | Role::Place(_)))
            }
        }
    }
}

/// Whom a client means to reach, and which authorities may vouch for that.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    pub(super) roots: Arc<RootCertStore>,
    pub(super) peer: Peer,
}

/// Takes a server whose chain is good and whose role is the expected one.
///
/// Its address and host name do not matter: a name server, or a swapped cable, cannot give a server
/// another identity.
#[derive(Debug)]
pub(super) struct ServerVerifier {
    pub(super) expected: Option<Expected>,
    pub(super) provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(Expected { roots, peer }) = &self.expected else {
            return Err(Error::InvalidCertificate(CertificateError::UnknownIssuer));
        };
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let known = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, roots, intermediates, now, known)?;
        let role = role_of(end_entity);

        if peer.is(role.as_ref()) {
            return Ok(ServerCertVerified::assertion());
        }
        let role = role.map_or_else(|| "nobody of Ballast's".to_owned(), |role| role.to_string());

        Err(Error::General(match peer {
            Peer::Only(expected) => format!("the peer is {role}, not {expected}"),
            Peer::Daemon => format!("the peer is {role}, none of the daemons"),
        }))
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOfferedOrEnabled.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
