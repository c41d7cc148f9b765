//! One certificate that is taken as it is: BMCs sign their own.

use std::fmt::Write as _;
use std::str::FromStr;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use sha2::{Digest as _, Sha256};

/// The SHA-256 of a BMC's certificate. Whoever has its key is the BMC: who signed it, for which name and
/// until when does not matter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Pin([u8; 32]);

impl Pin {
    /// The pin of this certificate, in DER.
    pub fn of(certificate: &[u8]) -> Self {
        Self(Sha256::digest(certificate).into())
    }

    pub(super) fn client_config(self) -> Result<ClientConfig, Error> {
        let provider = Arc::new(ring::default_provider());
        let verifier = Arc::new(Pinned { pin: self, provider: Arc::clone(&provider) });
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        Ok(config.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
    }
}

impl FromStr for Pin {
    type Err = ();

    /// 64 hexadecimal digits, with colons between the bytes or without.
    fn from_str(text: &str) -> Result<Self, ()> {
        let digits: String = match text.contains(':') {
            true if text.split(':').all(|byte| byte.len() == 2) => text.split(':').collect(),
            true => return Err(()),
            false => text.to_owned(),
        };
        if digits.len() != 64 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(());
        }
        let mut pin = [0; 32];
        for (n, byte) in pin.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * n..2 * n + 2], 16).map_err(drop)?;
        }
        Ok(Self(pin))
    }
}

impl std::fmt::Display for Pin {
    /// As `openssl x509 -fingerprint -sha256` shows it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (n, byte) in self.0.iter().enumerate() {
            if n > 0 {
                f.write_char(':')?;
            }
            write!(f, "{byte:02X}")?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

#[derive(Debug)]
struct Pinned {
    pin: Pin,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let shown = Pin::of(certificate);
        if shown == self.pin {
            return Ok(ServerCertVerified::assertion());
        }
        let pin = self.pin;
        Err(Error::General(format!("the SHA-256 of its certificate is {shown}; the configured one is {pin}")))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_read_as_openssl_prints_it_and_without_colons() {
        let pin = Pin::of(b"a certificate");
        let text = pin.to_string();
        assert_eq!(text.len(), 95);
        for same in [text.clone(), text.to_lowercase(), text.replace(':', "")] {
            assert_eq!(same.parse(), Ok(pin), "{same}");
        }
        let short = &text[3..];
        let odd = format!("{}:", &text[..94]);
        for bad in ["", "0", short, &odd, &text.replace('A', "G"), &"é".repeat(32), &"1:".repeat(32)] {
            assert_eq!(bad.parse::<Pin>(), Err(()), "{bad}");
        }
    }
}
