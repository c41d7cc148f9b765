//! A small authority for Ballast's certificates: for trials, for tests, and for chassis without one.
//!
//! Keys are ECDSA P-256. A certificate names its [`Role`] as URI, and its id as DNS name where that is one.

use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use ballast_types::Role;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use time::OffsetDateTime;

pub use rcgen::Error;

/// Certificates are valid from this long ago, for peers whose clocks are a day late.
const BACKDATED: Duration = Duration::from_secs(2 * 86_400);
/// What the authority calls itself. Its key tells it from others.
const NAME: &str = "Ballast test authority";

/// A certificate and its key, both PEM.
#[derive(Clone, Debug)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

impl Pair {
    /// Replaces what is in these files; the key last, as a careful copy would, and only for its owner.
    pub fn put(&self, certificate: &Path, key: &Path) -> io::Result<()> {
        fs::write(certificate, &self.certificate)?;
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(key)?;
        file.write_all(self.key.as_bytes())?;
        file.set_permissions(Permissions::from_mode(0o600))
    }

    /// Writes `STEM.crt` and `STEM.key` into `dir`; nothing is ever overwritten, and a key is never
    /// readable by others.
    pub fn create(&self, dir: &Path, stem: &str) -> io::Result<()> {
        let files = [("key", &self.key, 0o600), ("crt", &self.certificate, 0o644)];
        for (ending, text, mode) in files {
            let path = dir.join(format!("{stem}.{ending}"));
            let file = File::options().write(true).create_new(true).mode(mode).open(&path);
            file.and_then(|mut file| file.write_all(text.as_bytes()))
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        }
        Ok(())
    }
}

#[derive(Debug)]
pub struct Authority(Issuer<'static, KeyPair>);

impl Authority {
    /// A new one, valid for `valid`; its own pair goes to files or is forgotten.
    pub fn new(valid: Duration) -> Result<(Self, Pair), Error> {
        let key = KeyPair::generate()?;
        let mut params = params();
        params.not_before = OffsetDateTime::now_utc() - BACKDATED;
        params.not_after = OffsetDateTime::now_utc() + valid;
        let pair = Pair { certificate: params.self_signed(&key)?.pem(), key: key.serialize_pem() };
        Ok((Self(Issuer::new(params, key)), pair))
    }

    /// The one that had this key, to sign more; its certificate stays as it is.
    pub fn restore(key: &str) -> Result<Self, Error> {
        Ok(Self(Issuer::new(params(), KeyPair::from_pem(key)?)))
    }

    /// A certificate that names `roles`, and `addresses` for clients that look at these, until
    /// `valid` from now. With one role it is one of Ballast's.
    pub fn issue(&self, roles: &[Role], addresses: &[IpAddr], valid: Duration) -> Result<Pair, Error> {
        self.issue_until(roles, addresses, OffsetDateTime::now_utc() + valid)
    }

    /// A certificate that has expired already, as tests need it.
    pub fn issue_expired(&self, role: &Role) -> Result<Pair, Error> {
        let end = OffsetDateTime::now_utc() - BACKDATED / 2;
        self.issue_until(std::slice::from_ref(role), &[], end)
    }

    fn issue_until(&self, roles: &[Role], addresses: &[IpAddr], end: OffsetDateTime) -> Result<Pair, Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.not_before = OffsetDateTime::now_utc() - BACKDATED;
        params.not_after = end;
        let name = roles.first().map_or("no role", Role::id);
        params.distinguished_name.push(DnType::CommonName, name);

        for role in roles {
            params.subject_alt_names.push(SanType::URI(role.to_string().try_into()?));
            if is_dns_name(role.id()) {
                params.subject_alt_names.push(SanType::DnsName(role.id().try_into()?));
            }
        }

        params.subject_alt_names.extend(addresses.iter().copied().map(SanType::IpAddress));
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if roles.iter().any(|role| matches!(role, Role::Chassis(_) | Role::Agent(_) | Role::Place(_))) {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        let certificate = params.signed_by(&key, &self.0)?;

        Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

fn params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, NAME);
    // It signs Ballast's own certificates, and no authorities below itself.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// Letters, digits and hyphens between dots: an id may hold more.
fn is_dns_name(id: &str) -> bool {
    id.split('.').all(|label| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_are_no_host_names_get_none() {
        for good in ["s01", "rack3-c1", "s01.rack3.example"] {
            assert!(is_dns_name(good), "{good}");
        }
        for bad in ["", "a:b", "ann@site", "a_b", "-a", "a-", "a..b"] {
            assert!(!is_dns_name(bad), "{bad}");
        }
    }
}
