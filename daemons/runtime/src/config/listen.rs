//! Where a daemon listens, and its certificates.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ballast_types::Role;
use toml::de::DeValue;

use super::reader::{ConfigError, Section, text, whole};
use crate::tls::{Tls, TlsConfig};

/// One address to serve at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    pub at: SocketAddr,
    /// Whether by mutual TLS; plain HTTP is for loopback alone.
    pub tls: bool,
}

const LISTEN: &str = "address:port, or several in [ ]: plain HTTP on loopback, as in \
                      \"127.0.0.1:7100\", TLS elsewhere and where it begins with \"https://\"";

impl Listen {
    /// `ADDRESS:PORT`, `http://…` on loopback, or `https://…`.
    pub fn parse(text: &str) -> Option<Self> {
        let (tls, at) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(at), _) => (Some(true), at),
            (_, Some(at)) => (Some(false), at),
            _ => (None, text),
        };
        let at: SocketAddr = at.parse().ok()?;
        let loopback = at.ip().is_loopback();
        let tls = tls.unwrap_or(!loopback);
        (tls || loopback).then_some(Self { at, tls })
    }

    fn all(value: &DeValue<'_>) -> Option<Vec<Self>> {
        let one = |value: &DeValue<'_>| Self::parse(value.as_str()?);
        let Some(several) = value.as_array() else { return one(value).map(|one| vec![one]) };
        let all: Vec<Self> = several.iter().map(|it| one(it.get_ref())).collect::<Option<_>>()?;
        let once = |(n, it): (usize, &Self)| all[..n].iter().all(|other| other.at != it.at);
        (!all.is_empty() && all.iter().enumerate().all(once)).then_some(all)
    }

    /// Reads `listen`, `[tls]` and `allowed_hosts`.
    pub fn read(
        root: &mut Section<'_, '_>,
        default: SocketAddr,
    ) -> (Vec<Self>, Option<TlsConfig>, Vec<String>) {
        let default = vec![Self { at: default, tls: false }];
        let listen = root.or("listen", default, LISTEN, Self::all);
        let tls = root.table("tls").and_then(|mut section| {
            let path = |value: &DeValue<'_>| text(value).map(PathBuf::from);
            let cert = section.required("cert", "the PEM file of this daemon's certificate", path);
            let key = section.required("key", "the PEM file of its private key", path);
            let ca = section.required("ca", "the PEM file of the authorities to trust", path);
            let days = section.or("warn_days", 14, "1 to 365 days", whole(1..=365));
            section.finish();
            let warn_before = Duration::from_secs(days * 86_400);

            Some(TlsConfig { cert: cert?, key: key?, ca: ca?, warn_before })
        });

        if tls.is_none() && listen.iter().any(|it| it.tls) {
            root.refuse_key("listen", "beyond loopback only with [tls]: cert, key and ca");
        }
        let allowed_hosts = root.or("allowed_hosts", vec![], ALLOWED_HOSTS, hosts);

        (listen, tls, allowed_hosts)
    }
}

const ALLOWED_HOSTS: &str = "DNS names or IP addresses that clients call this daemon by, in [ ], without a \
                             port: \"ballast-place.kube-system.svc\"";

/// Names and addresses as they are compared: in lower case, an address as it is written shortest.
fn hosts(value: &DeValue<'_>) -> Option<Vec<String>> {
    let one = |value: &DeValue<'_>| {
        let name = value.as_str()?.to_ascii_lowercase();
        let address = name.parse::<IpAddr>().map(|address| address.to_string());
        let is_label = |label: &str| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        };
        let is_name = name.len() <= 253 && name.split('.').all(is_label);
        address.ok().or_else(|| is_name.then_some(name))
    };
    value.as_array()?.iter().map(|it| one(it.get_ref())).collect()
}

/// Whether the certificates can be used, and say that this is `own`.
///
/// # Errors
/// Names the key, the file, and what is wrong.
pub(super) fn check(file: &str, tls: Option<&TlsConfig>, own: &Role) -> Result<(), ConfigError> {
    let Some(tls) = tls else { return Ok(()) };
    Tls::open(tls, Some(own)).map(drop).map_err(|why| ConfigError::whole(file, &why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::reader::Problems;

    type Read = (Vec<Listen>, Option<TlsConfig>, Vec<String>);

    fn read(source: &str) -> Result<Read, String> {
        let problems = Problems::new("x.toml", source);
        let table = problems.parse();
        let mut root = Section::root(&problems, &table);
        let read = Listen::read(&mut root, SocketAddr::from(([127, 0, 0, 1], 7100)));
        root.finish();
        problems.finish(read).map_err(|error| error.to_string())
    }

    const TLS: &str = "[tls]\ncert = \"/c\"\nkey = \"/k\"\nca = \"/a\"\n";

    #[test]
    fn plain_http_is_for_loopback_and_tls_for_the_rest() {
        let at = |at: &str, tls| Listen { at: at.parse().unwrap(), tls };
        let plain = vec![at("127.0.0.1:7100", false)];
        assert_eq!(read("").unwrap(), (plain.clone(), None, vec![]));
        assert_eq!(read("listen = \"http://127.0.0.1:7100\"").unwrap().0, plain);
        let (listen, tls, allowed) = read(&format!(
            "listen = [\"127.0.0.1:1\", \"10.0.0.5:2\", \"https://[::1]:3\", \"0.0.0.0:4\"]\n\
             allowed_hosts = [\"Place.Kube-System.svc\", \"FD00:0::1\"]\n{TLS}"
        ))
        .unwrap();
        let expected =
            [at("127.0.0.1:1", false), at("10.0.0.5:2", true), at("[::1]:3", true), at("0.0.0.0:4", true)];

        assert_eq!(listen, expected);
        assert_eq!(allowed, ["place.kube-system.svc", "fd00::1"]);
        assert_eq!(tls.unwrap().warn_before, Duration::from_secs(14 * 86_400));
    }

    #[test]
    fn what_would_go_in_the_clear_or_nowhere_is_refused() {
        for (source, says) in [
            ("listen = \"10.0.0.5:7100\"", "only with [tls]"),
            ("listen = \"https://127.0.0.1:7100\"", "only with [tls]"),
            (&format!("listen = \"http://10.0.0.5:7100\"\n{TLS}"), "plain HTTP on loopback"),
            (&format!("listen = \"localhost:7100\"\n{TLS}"), "address:port"),
            ("listen = []", "address:port"),
            ("listen = [\"127.0.0.1:1\", \"https://127.0.0.1:1\"]", "address:port"),
            ("listen = [\"127.0.0.1:1\", 7100]", "address:port"),
            ("[tls]\ncert = \"/c\"\nkey = \"/k\"", "tls.ca is missing"),
            ("tls = 1", "must be a table"),
            ("allowed_hosts = \"a\"", "allowed_hosts = \"a\": DNS names or IP addresses"),
            ("allowed_hosts = [\"a:7100\"]", "without a port"),
            ("allowed_hosts = [\"https://a\"]", "DNS names"),
            ("allowed_hosts = [\"*.a\"]", "DNS names"),
            ("allowed_hosts = [\"\"]", "DNS names"),
            (&format!("{TLS}warn_days = 0"), "1 to 365"),
            (&format!("{TLS}crl = \"/x\""), "no such key"),
        ] {
            let problems = read(source).unwrap_err();
            assert!(problems.contains(says), "{source}: {problems}");
        }
    }
}
