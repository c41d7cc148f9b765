//! Who is let in, and who the BMC is, with a BMC on loopback that knows nothing else.

use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::*;

/// The password that is let in, and how many requests for a log-in there were.
struct Bmc {
    url: String,
    log_ins: Arc<AtomicUsize>,
}

impl Bmc {
    /// One that has `certificate`, or speaks plain HTTP.
    fn start(password: &'static str, certificate: Option<&CertifiedKey<rcgen::KeyPair>>) -> Self {
        Self::refusing("401 Unauthorized", password, certificate)
    }

    /// The same, which says so of any other password.
    fn refusing(
        refusal: &'static str,
        password: &'static str,
        certificate: Option<&CertifiedKey<rcgen::KeyPair>>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let scheme = if certificate.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", listener.local_addr().unwrap());
        let log_ins = Arc::new(AtomicUsize::new(0));
        let tls = certificate.map(|it| {
            let key = PrivateKeyDer::Pkcs8(it.signing_key.serialize_der().into());
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let config = ServerConfig::builder_with_provider(provider);
            let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
            Arc::new(config.with_single_cert(vec![it.cert.der().clone()], key).unwrap())
        });
        let counted = Arc::clone(&log_ins);

        // Ends with the test's process.
        thread::spawn(move || {
            for stream in listener.incoming().map(Result::unwrap) {
                // A client that does not trust us hangs up.
                let _ = match &tls {
                    Some(tls) => {
                        let connection = ServerConnection::new(Arc::clone(tls)).unwrap();
                        answer(StreamOwned::new(connection, stream), password, refusal, &counted)
                    }
                    None => answer(stream, password, refusal, &counted),
                };
            }
        });

        Self { url, log_ins }
    }

    fn client(&self, file: &Path, pin: Option<Pin>, auth: Auth) -> Redfish {
        let credentials = Credentials::read(file).unwrap();
        let timeout = Duration::from_secs(20);
        let (url, credentials_file) = (self.url.clone(), Some(file.to_owned()));
        let settings =
            Settings { url, credentials, credentials_file, auth, ca_file: None, pin, timeout, chassis: None };
        Redfish::new(settings).unwrap()
    }

    fn log_ins(&self) -> usize {
        self.log_ins.load(Ordering::Relaxed)
    }
}

/// After so many log-ins, or requests with Basic authentication, the password is another.
const LET_IN_MAX: usize = 1000;

/// Answers one request: any account with that password is let in, and there is nothing to be seen.
fn answer(
    mut stream: impl Read + Write,
    password: &str,
    refusal: &str,
    log_ins: &AtomicUsize,
) -> io::Result<()> {
    let (mut bytes, mut chunk) = (vec![], [0; 4096]);
    let text = loop {
        let n = stream.read(&mut chunk)?;
        if n == 0 {
            return Ok(());
        }
        bytes.extend(&chunk[..n]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.to_lowercase().lines().find_map(|line| {
            line.strip_prefix("content-length:").map(|length| length.trim().parse::<usize>().unwrap())
        });
        if body.len() >= length.unwrap_or(0) {
            break text;
        }
    };

    // `Basic` of "ballast:right".
    let is_let_in = text.contains(&format!("{password:?}")) || text.contains("YmFsbGFzdDpyaWdodA==");
    let status = if text.starts_with("POST") || text.to_lowercase().contains("authorization: basic") {
        let before = log_ins.fetch_add(1, Ordering::Relaxed);
        if is_let_in && before < LET_IN_MAX { "201 Created" } else { refusal }
    } else {
        "404 Not Found"
    };
    let head = "X-Auth-Token: token\r\nContent-Length: 2\r\nConnection: close";
    write!(stream, "HTTP/1.1 {status}\r\n{head}\r\n\r\n{{}}")?;
    stream.flush()
}

fn credentials(folder: &tempfile::TempDir, password: &str) -> PathBuf {
    let path = folder.path().join("bmc.toml");
    fs::write(&path, format!("username = \"ballast\"\npassword = {password:?}\n")).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    path
}

#[test]
fn a_refused_log_in_is_not_tried_again_until_later_or_with_other_credentials() {
    let folder = tempfile::tempdir().unwrap();
    let (unauthorized, forbidden) = ("401 Unauthorized", "403 Forbidden");
    for (auth, refusal) in [
        (Auth::Session, unauthorized),
        (Auth::Session, forbidden),
        (Auth::Basic, unauthorized),
        (Auth::Basic, forbidden),
    ] {
        let bmc = Bmc::refusing(refusal, "right", None);
        let file = credentials(&folder, "wrong");
        let mut redfish = bmc.client(&file, None, auth);
        let first = redfish.power().unwrap_err().to_string();
        assert!(first.contains(refusal), "{first}");
        for _ in 0..20 {
            let later = redfish.power().unwrap_err().to_string();
            assert!(later.contains("tried again in") && later.contains("credentials_file"), "{later}");
        }
        assert_eq!(bmc.log_ins(), 1, "{auth:?}: the BMC would lock the account");

        // Changed, but still wrong: one more. One that cannot be read changes nothing.
        credentials(&folder, "wrong again");
        for _ in 0..5 {
            redfish.power().unwrap_err();
        }
        fs::write(&file, "").unwrap();
        redfish.power().unwrap_err();
        assert_eq!(bmc.log_ins(), 2, "{auth:?}");

        credentials(&folder, "right");
        let error = redfish.power().unwrap_err().to_string();
        assert!(!error.contains("log-in") && !error.contains("401"), "{auth:?}: let in: {error}");
        assert!(bmc.log_ins() >= 3, "{auth:?}");
    }
}

#[test]
fn a_pinned_certificate_is_taken_whoever_signed_it_and_no_other_is() {
    let folder = tempfile::tempdir().unwrap();
    let file = credentials(&folder, "right");
    // For no name that it is reached by.
    let own = generate_simple_self_signed(["bmc.invalid".to_owned()]).unwrap();
    let other = generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let bmc = Bmc::start("right", Some(&own));
    let (pin, wrong) = (Pin::of(own.cert.der()), Pin::of(other.cert.der()));

    let error = bmc.client(&file, Some(pin), Auth::Session).power().unwrap_err().to_string();
    assert!(error.contains("404"), "it is talked to: {error}");
    assert_eq!(bmc.log_ins(), 1);

    let error = bmc.client(&file, Some(wrong), Auth::Session).power().unwrap_err().to_string();
    assert!(error.contains(&pin.to_string()) && error.contains(&wrong.to_string()), "{error}");
    let error = bmc.client(&file, None, Auth::Session).power().unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
    assert_eq!(bmc.log_ins(), 1, "no password goes to whoever is not the BMC");
}

#[test]
fn a_supplys_state_is_told_by_its_status() {
    let status = |state: &str, health: &str| {
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Status { state: text(state), health: text(health) }
    };

    for (s, h, expected) in [
        ("Enabled", "OK", SupplyState::Active),
        ("Enabled", "Warning", SupplyState::Active),
        ("Enabled", "", SupplyState::Active),
        ("Enabled", "Critical", SupplyState::Failed),
        ("UnavailableOffline", "", SupplyState::Failed),
        ("StandbySpare", "OK", SupplyState::Standby),
        ("StandbyOffline", "", SupplyState::Standby),
        ("Absent", "", SupplyState::Absent),
        ("Starting", "", SupplyState::Unknown),
        ("", "", SupplyState::Unknown),
    ] {
        assert_eq!(state(Some(&status(s, h))), expected, "{s} {h}");
    }

    assert_eq!(state(None), SupplyState::Unknown);
}

#[test]
fn an_older_supply_keeps_its_id_when_another_one_is_pulled() {
    let ids = |text: &str| -> Vec<String> {
        let power = serde_json::from_str(text).unwrap();
        older(power).into_iter().map(|supply| supply.id).collect()
    };
    assert_eq!(ids(r#"{"PowerSupplies":[{"MemberId":"a"},{"MemberId":"b"}]}"#), ["a", "b"]);
    assert_eq!(ids(r#"{"PowerSupplies":[{"MemberId":"b"}]}"#), ["b"]);
    assert_eq!(ids(r#"{"PowerSupplies":[{},{"MemberId":null}]}"#), ["0", "1"]);
}

#[test]
fn a_supplys_input_may_be_zero_but_not_absurd() {
    assert_eq!(input(Some(0.0)), Some(Watts::ZERO));
    assert_eq!(input(Some(412.5)), Some(Watts::from_milli(412_500)));
    for bad in [None, Some(-1.0), Some(1e9), Some(f64::NAN)] {
        assert_eq!(input(bad), None);
    }
}

#[test]
fn who_was_let_in_and_is_not_any_more_waits_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let bmc = Bmc::refusing("403 Forbidden", "right", None);
    let mut redfish = bmc.client(&credentials(&folder, "right"), None, Auth::Basic);
    redfish.power().unwrap_err();
    let each = bmc.log_ins();
    bmc.log_ins.store(LET_IN_MAX, Ordering::Relaxed);
    for _ in 0..20 {
        redfish.power().unwrap_err();
    }
    assert!(bmc.log_ins() <= LET_IN_MAX + each, "{} after {each}", bmc.log_ins());
    let error = redfish.power().unwrap_err().to_string();
    assert!(error.contains("tried again in"), "{error}");
}
