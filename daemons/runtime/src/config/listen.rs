//! Where a daemon listens, and its certificates.

use std::fmt::{self, Display};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ballast_types::Role;
use toml::de::DeValue;

use super::allowed::{Allowed, list, path, seconds};
use super::reader::{ConfigError, Section};
use crate::confine::Needs;
use crate::tls::{Tls, TlsConfig};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Plain HTTP on loopback, where anybody on this machine may read, and nobody changes anything.
    Plain(SocketAddr),
    Tls(SocketAddr),
    /// Plain HTTP through a file: whom its mode lets in may read and order.
    Socket(PathBuf),
}

const LISTEN: &str = "address:port, or several in [ ]: plain HTTP on loopback, as in \
                      \"127.0.0.1:7100\", TLS elsewhere and where it begins with \"https://\", a socket of \
                      this machine as \"unix:/run/….sock\" of at most 100 bytes";
/// How a socket's path is told from an address.
pub const SOCKET: &str = "unix:";
/// The kernel takes 107 (unix(7)).
const SOCKET_BYTES_MAX: usize = 100;

impl Listen {
    /// `ADDRESS:PORT`, `http://…` on loopback, `https://…`, or `unix:/…`.
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(path) = text.strip_prefix(SOCKET) {
            let fits = path.starts_with('/') && path.len() <= SOCKET_BYTES_MAX;
            return fits.then(|| Self::Socket(path.into()));
        }
        let (tls, at) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(at), _) => (Some(true), at),
            (_, Some(at)) => (Some(false), at),
            _ => (None, text),
        };
        let at: SocketAddr = at.parse().ok()?;
        let loopback = at.ip().is_loopback();
        match tls.unwrap_or(!loopback) {
            true => Some(Self::Tls(at)),
            false => loopback.then_some(Self::Plain(at)),
        }
    }

    /// Addresses in one word, as a log line has them.
    pub fn addresses(all: &[Self]) -> String {
        let one = |it: &Self| match it {
            Self::Plain(at) => format!("http://{at}"),
            Self::Tls(at) => format!("https://{at}"),
            Self::Socket(path) => format!("{SOCKET}{}", path.display()),
        };
        all.iter().map(one).collect::<Vec<_>>().join(",")
    }

    fn all(value: &DeValue<'_>) -> Option<Vec<Self>> {
        let one = |value: &DeValue<'_>| Self::parse(value.as_str()?);
        let Some(several) = value.as_array() else { return one(value).map(|one| vec![one]) };
        let all: Vec<Self> = several.iter().map(|it| one(it.get_ref())).collect::<Option<_>>()?;
        (!all.is_empty()
            && all.iter().enumerate().all(|(n, it)| all[..n].iter().all(|other| !other.is_at(it))))
        .then_some(all)
    }

    fn is_at(&self, other: &Self) -> bool {
        self == other || self.address().is_some_and(|at| other.address() == Some(at))
    }

    fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Plain(at) | Self::Tls(at) => Some(*at),
            Self::Socket(_) => None,
        }
    }
}

impl Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(at) => write!(f, "http://{at}"),
            Self::Tls(at) => write!(f, "https://{at}"),
            Self::Socket(path) => write!(f, "{SOCKET}{}", path.display()),
        }
    }
}

/// Where a daemon listens, by which certificates, and under which names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenConfig {
    pub listen: Vec<Listen>,
    pub tls: Option<TlsConfig>,
    /// Names that clients call it by, beside those that its addresses and certificate give it.
    pub allowed_hosts: Vec<String>,
}

impl ListenConfig {
    /// Reads `listen`, `[tls]` and `allowed_hosts`; `default` is an address on loopback, and a socket.
    pub fn read(root: &mut Section<'_, '_>, default: [&str; 2]) -> Self {
        let shown = format!("{default:?}");
        let default = default.into_iter().filter_map(Listen::parse).collect();
        let help = "Where the daemon serves HTTP. Loopback only reads; orders come by a `unix:` socket, \
                    whose group is `ballast`, or by TLS.";
        let listen =
            root.key("listen", help).or(default, Allowed::new(LISTEN, Listen::all, move |_| shown.clone()));
        let help = "Names that clients call this daemon by, beside localhost and those in its certificate.";
        let allowed_hosts = root.key("allowed_hosts", help).or(vec![], list(ALLOWED_HOSTS, host));

        let section = root.table("tls", "Mutual TLS with clients and peers; new files are taken live.");
        let tls = section.and_then(read_tls);
        if tls.is_none() && listen.iter().any(|it| matches!(it, Listen::Tls(_))) {
            root.refuse_key("listen", "beyond loopback only with [tls]: cert, key and ca");
        }

        Self { listen, tls, allowed_hosts }
    }
}

/// What a daemon needs of its machine that writes in `folders` and listens here.
pub fn needs(folders: impl IntoIterator<Item = PathBuf>, listen: &[Listen]) -> Needs {
    let sockets = listen.iter().filter_map(|it| match it {
        Listen::Socket(path) => path.parent().map(Path::to_owned),
        _ => None,
    });
    Needs {
        folders: folders.into_iter().collect(),
        ports: listen.iter().filter_map(Listen::address).map(|at| at.port()).collect(),
        sockets: sockets.collect(),
        ..Needs::default()
    }
}

/// What is to be told of listeners by which nobody can order anything.
pub fn warning(listen: &[Listen]) -> Option<String> {
    let only_reads = listen.iter().all(|it| matches!(it, Listen::Plain(_)));
    only_reads.then(|| {
        "listen: nobody can order anything: loopback only reads; add \"unix:/run/….sock\", or https:// with \
         [tls]"
            .to_owned()
    })
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
        parse("x.toml", source, |root| Some(ListenConfig::read(root, ["127.0.0.1:7100", "unix:/run/b.sock"])))
            .map_err(|error| error.to_string())
    }

    const TLS: &str = "[tls]\ncert = \"/c\"\nkey = \"/k\"\nca = \"/a\"\n";

    #[test]
    fn plain_http_is_for_loopback_and_tls_for_the_rest() {
        let plain = |at: &str| Listen::Plain(at.parse().unwrap());
        let tls_at = |at: &str| Listen::Tls(at.parse().unwrap());
        let listen = vec![plain("127.0.0.1:7100"), Listen::Socket("/run/b.sock".into())];
        assert_eq!(read("").unwrap(), ListenConfig { listen, tls: None, allowed_hosts: vec![] });
        assert_eq!(read("listen = \"http://127.0.0.1:1\"").unwrap().listen, [plain("127.0.0.1:1")]);
        let ListenConfig { listen, tls, allowed_hosts } = read(&format!(
            "listen = [\"127.0.0.1:1\", \"10.0.0.5:2\", \"https://[::1]:3\", \"0.0.0.0:4\", \"unix:/s\"]\n\
             allowed_hosts = [\"Place.Kube-System.svc\", \"FD00:0::1\"]\n{TLS}"
        ))
        .unwrap();
        let expected = [
            plain("127.0.0.1:1"),
            tls_at("10.0.0.5:2"),
            tls_at("[::1]:3"),
            tls_at("0.0.0.0:4"),
            Listen::Socket("/s".into()),
        ];

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
            ("listen = \"unix:b.sock\"", "unix:/run"),
            ("listen = [\"unix:/s\", \"unix:/s\"]", "unix:/run"),
            (&format!("listen = \"unix:/{}\"", "s".repeat(100)), "at most 100 bytes"),
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
