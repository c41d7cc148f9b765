//! Where a daemon listens, and its certificates.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ballast_types::Role;
use toml::de::DeValue;

use super::allowed::{Allowed, list, path, seconds};
use super::reader::{ConfigError, Section};
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
}

/// Where a daemon listens, by which certificates, and under which names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenConfig {
    pub listen: Vec<Listen>,
    /// The daemon's certificates, if it has any.
    pub tls: Option<TlsConfig>,
    /// Names that clients call it by, beside those that its addresses and certificate give it.
    pub allowed_hosts: Vec<String>,
}

impl ListenConfig {
    /// Reads `listen`, `[tls]` and `allowed_hosts`; `default` is an address on loopback.
    pub fn read(root: &mut Section<'_, '_>, default: &str) -> Self {
        let shown = format!("{default:?}");
        let default = Listen::parse(default).into_iter().collect();
        let listen = root
            .key("listen", "Where the daemon serves HTTP; more than one address in [ ].")
            .or(default, Allowed::new(LISTEN, Listen::all, move |_| shown.clone()));
        let help = "Names that clients call this daemon by, beside localhost and those in its certificate.";
        let allowed_hosts = root.key("allowed_hosts", help).or(vec![], list(ALLOWED_HOSTS, host));

        let section = root.table("tls", "Mutual TLS with clients and peers; new files are taken live.");
        let tls = section.and_then(read_tls);
        if tls.is_none() && listen.iter().any(|it| it.tls) {
            root.refuse_key("listen", "beyond loopback only with [tls]: cert, key and ca");
        }

        Self { listen, tls, allowed_hosts }
    }
}

fn read_tls(mut section: Section<'_, '_>) -> Option<TlsConfig> {
    let cert = section
        .key("cert", "The daemon's certificate, which says who the daemon is.")
        .required(path("the PEM file of this daemon's certificate"));
    let key = section
        .key("key", "The certificate's private key, of mode 0600 or 0640.")
        .required(path("the PEM file of its private key"));
    let ca = section
        .key("ca", "The authorities whose certificates are trusted.")
        .required(path("the PEM file of the authorities to trust"));
    let warn_before = section
        .key("warn_days", "So long before its end the certificate is an alarm.")
        .or(Duration::from_secs(14 * 86_400), seconds::<86_400>("whole days", 1..=365));
    section.finish();

    Some(TlsConfig { cert: cert?, key: key?, ca: ca?, warn_before })
}

const ALLOWED_HOSTS: &str = "DNS names or IP addresses that clients call this daemon by, in [ ], without a \
                             port: \"ballast-place.kube-system.svc\"";

/// A name or an address as it is compared: in lower case, an address as it is written shortest.
fn host(text: &str) -> Option<String> {
    let name = text.to_ascii_lowercase();
    let address = name.parse::<IpAddr>().map(|address| address.to_string());
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    let is_name = name.len() <= 253 && name.split('.').all(is_label);
    address.ok().or_else(|| is_name.then_some(name))
}

/// Whether the certificates can be used, and say that this is `own`. The error names the key, the file, and
/// what is wrong.
pub(super) fn check(file: &str, tls: Option<&TlsConfig>, own: &Role) -> Result<(), ConfigError> {
    let Some(tls) = tls else { return Ok(()) };
    Tls::open(tls, Some(own)).map(drop).map_err(|why| ConfigError::whole(file, &why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::reader::parse;

    fn read(source: &str) -> Result<ListenConfig, String> {
        parse("x.toml", source, |root| Some(ListenConfig::read(root, "127.0.0.1:7100")))
            .map_err(|error| error.to_string())
    }

    const TLS: &str = "[tls]\ncert = \"/c\"\nkey = \"/k\"\nca = \"/a\"\n";

    #[test]
    fn plain_http_is_for_loopback_and_tls_for_the_rest() {
        let at = |at: &str, tls| Listen { at: at.parse().unwrap(), tls };
        let plain = vec![at("127.0.0.1:7100", false)];
        let default = ListenConfig { listen: plain.clone(), tls: None, allowed_hosts: vec![] };
        assert_eq!(read("").unwrap(), default);
        assert_eq!(read("listen = \"http://127.0.0.1:7100\"").unwrap().listen, plain);
        let ListenConfig { listen, tls, allowed_hosts } = read(&format!(
            "listen = [\"127.0.0.1:1\", \"10.0.0.5:2\", \"https://[::1]:3\", \"0.0.0.0:4\"]\n\
             allowed_hosts = [\"Place.Kube-System.svc\", \"FD00:0::1\"]\n{TLS}"
        ))
        .unwrap();
        let expected =
            [at("127.0.0.1:1", false), at("10.0.0.5:2", true), at("[::1]:3", true), at("0.0.0.0:4", true)];

        assert_eq!(listen, expected);
        assert_eq!(allowed_hosts, ["place.kube-system.svc", "fd00::1"]);
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
            (&format!("{TLS}warn_days = 0"), "whole days, 1 to 365"),
            (&format!("{TLS}crl = \"/x\""), "no such key"),
        ] {
            let problems = read(source).unwrap_err();
            assert!(problems.contains(says), "{source}: {problems}");
        }
    }
}
