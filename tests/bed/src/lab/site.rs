//! Mutual TLS for a laboratory: an authority, everybody's certificates, and clients of every kind.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ballast_runtime::tls::authority::{Authority, Pair};
use ballast_runtime::tls::{self, Peer, Tls, TlsConfig};
use ballast_sim::plant::PlantSpec;
use ballast_types::Role;
use reqwest::Client;

use super::Lab;
use super::caller::json_client;

const DAY: Duration = Duration::from_secs(86_400);
/// Where the daemons of a secure laboratory serve TLS, on the port of their plain listener.
pub const SECRET: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// An authority and the folder of its files.
pub struct Site {
    authority: Authority,
    pub ca: String,
    dir: PathBuf,
}

impl Site {
    /// One whose files go to `name` in the laboratory's folder.
    pub fn new(lab: &Lab, name: &str) -> Self {
        let (authority, ca) = Authority::new(365 * DAY).expect("an authority");
        let dir = lab.home(name);
        fs::create_dir_all(&dir).expect("a folder");
        Self { authority, ca: ca.certificate, dir }
    }

    pub fn issue(&self, roles: &[&str], days: u32) -> Pair {
        let roles: Vec<_> = roles.iter().map(|uri| role(uri)).collect();
        self.authority.issue(&roles, &[SECRET.into()], DAY * days).expect("a pair")
    }

    pub fn issue_expired(&self, uri: &str) -> Pair {
        self.authority.issue_expired(&role(uri)).expect("a pair")
    }

    /// The files `name.crt`, `name.key` and `name.ca`; the key last, as a careful copy would.
    pub fn files(&self, name: &str) -> TlsConfig {
        let at = |end: &str| self.dir.join(format!("{name}.{end}"));
        TlsConfig { cert: at("crt"), key: at("key"), ca: at("ca"), warn_before: 14 * DAY }
    }

    /// Writes a pair, and whom its owner shall trust.
    pub fn put(&self, name: &str, pair: &Pair, ca: &str) -> TlsConfig {
        let files = self.files(name);
        fs::write(&files.ca, ca).expect("a file");
        pair.put(&files.cert, &files.key).expect("files");
        files
    }

    /// A client that shows this pair, trusts this site, and speaks with any daemon.
    pub fn client(&self, pair: &Pair) -> Client {
        let tls = self.open("client", pair);
        json_client(tls::http_client(Some((&tls, Peer::Daemon))))
    }

    /// The same, from an address of its own, as another machine's.
    pub fn client_from(&self, address: [u8; 4], pair: &Pair) -> Client {
        let tls = self.open("client", pair);
        let client = tls::http_client(Some((&tls, Peer::Daemon)));
        json_client(client.local_address(IpAddr::from(address)))
    }

    fn open(&self, name: &str, pair: &Pair) -> Arc<Tls> {
        Tls::open(&self.put(name, pair, &self.ca), None).expect("a good pair")
    }

    /// A client that shows nothing.
    pub fn nobody(&self) -> Client {
        let ca = reqwest::Certificate::from_pem(self.ca.as_bytes()).expect("a certificate");
        Client::builder().no_proxy().tls_certs_only([ca]).build().expect("a client")
    }
}

fn role(uri: &str) -> Role {
    uri.parse().expect("a role")
}

pub fn role_of(name: &str) -> String {
    match name {
        "chassis" => "ballast://chassis/lab".to_owned(),
        server => format!("ballast://agent/{server}"),
    }
}

impl Lab {
    /// One whose chassis manager speaks with its agents by mutual TLS; plain HTTP stays for reading.
    pub fn secure(spec: PlantSpec, chassis: &str) -> (Self, Site) {
        let lab = Self::new(spec, chassis);
        let site = Site::new(&lab, "certs");
        for name in lab.daemons() {
            let files = site.put(&name, &site.issue(&[&role_of(&name)], 90), &site.ca);
            let plain = lab.url(&name, "").replace("http://", "");
            let (_, port) = plain.split_once(':').expect("a port");
            let socket = format!("unix:{}", lab.socket(&name).display());
            let TlsConfig { cert, key, ca, .. } = files;
            let mut text = fs::read_to_string(lab.config(&name)).expect("a config");
            text = text.replace(
                &format!("listen = [{plain:?}, {socket:?}]"),
                &format!(
                    "listen = [{plain:?}, \"https://{SECRET}:{port}\"]\n\
                     tls = {{ cert = {cert:?}, key = {key:?}, ca = {ca:?} }}"
                ),
            );
            for agent in lab.servers() {
                let socket = format!("\"unix:{}\"", lab.socket(&agent).display());
                text = text.replace(&socket, &format!("{:?}", lab.secret_url(&agent, "")));
            }

            fs::write(lab.config(&name), text).expect("a config");
        }

        (lab, site)
    }

    pub fn daemons(&self) -> Vec<String> {
        self.servers().into_iter().chain(["chassis".into()]).collect()
    }

    /// The URL of a daemon's path by TLS.
    pub fn secret_url(&self, name: &str, path: &str) -> String {
        self.url(name, path).replace("http://127.0.0.1", &format!("https://{SECRET}"))
    }
}
