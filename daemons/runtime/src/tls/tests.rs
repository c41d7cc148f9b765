use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::tls::authority::{Authority, Pair};
use rustls::client::danger::ServerCertVerifier as _;
use rustls::pki_types::UnixTime;
use tempfile::TempDir;

use super::*;

const DAY: Duration = Duration::from_secs(86_400);

fn role(uri: &str) -> Role {
    uri.parse().unwrap()
}

/// A folder with an authority's certificate and a pair of it.
fn folder(pair: &Pair, ca: &str) -> (TempDir, TlsConfig) {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let config =
        TlsConfig { cert: at("own.crt"), key: at("own.key"), ca: at("ca.crt"), warn_before: 14 * DAY };
    put(&config, pair, ca);
    (dir, config)
}

fn put(config: &TlsConfig, pair: &Pair, ca: &str) {
    fs::write(&config.ca, ca).unwrap();
    pair.put(&config.cert, &config.key).unwrap();
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// An agent's pair in a folder, and the authority behind it.
fn agent(valid: Duration) -> (Authority, Pair, TempDir, TlsConfig) {
    let (authority, ca) = Authority::new(1000 * DAY).unwrap();
    let pair = authority.issue(&[role("ballast://agent/s01")], &[], valid).unwrap();
    let (dir, config) = folder(&pair, &ca.certificate);
    (authority, ca, dir, config)
}

#[test]
fn a_good_pair_is_taken_and_its_end_is_known() {
    let (_, _, _dir, config) = agent(30 * DAY);
    let tls = Tls::open(&config, Some(&role("ballast://agent/s01"))).unwrap();
    let status = tls.status();
    assert_eq!(status.role, role("ballast://agent/s01"));
    let left = Duration::from_secs(status.expires_in_s.unsigned_abs());
    assert!(left > 29 * DAY && left <= 30 * DAY, "{left:?}");
    assert_eq!(tls.alarms(), []);
}

#[test]
fn what_cannot_be_used_is_refused_by_name() {
    type Spoil = fn(&TlsConfig, &Authority);
    let cases: [(&str, Spoil); 12] = [
        ("tls.cert = ", |c, _| fs::remove_file(&c.cert).unwrap()),
        ("tls.key = ", |c, _| fs::remove_file(&c.key).unwrap()),
        ("tls.ca = ", |c, _| fs::remove_file(&c.ca).unwrap()),
        ("no certificate in PEM", |c, _| fs::write(&c.cert, "hello").unwrap()),
        ("no certificate in PEM", |c, _| fs::write(&c.ca, "").unwrap()),
        ("no private key in PEM", |c, _| fs::write(&c.key, "hello").unwrap()),
        ("mode is 0644", |c, _| chmod(&c.key, 0o644)),
        ("mode is 0660", |c, _| chmod(&c.key, 0o660)),
        ("not a file", |c, _| {
            fs::remove_file(&c.key).unwrap();
            fs::create_dir(&c.key).unwrap();
        }),
        ("of another certificate", |c, a| {
            fs::write(&c.key, a.issue(&[], &[], DAY).unwrap().key).unwrap();
        }),
        ("it says ballast://agent/s02, and this is ballast://agent/s01", |c, a| {
            let other = a.issue(&[role("ballast://agent/s02")], &[], DAY).unwrap();
            fs::write(&c.cert, other.certificate).unwrap();
        }),
        ("not exactly one ballast:// URI", |c, a| {
            let roles = [role("ballast://agent/s01"), role("ballast://chassis/c1")];
            fs::write(&c.cert, a.issue(&roles, &[], DAY).unwrap().certificate).unwrap();
        }),
    ];

    for (says, spoil) in cases {
        let (authority, _, _dir, config) = agent(DAY);
        spoil(&config, &authority);
        let error = Tls::open(&config, Some(&role("ballast://agent/s01"))).err().unwrap();
        assert!(error.contains(says), "{says}: {error}");
    }
}

#[test]
fn a_key_may_be_open_to_a_group_for_reading() {
    let (_, _, _dir, config) = agent(DAY);
    chmod(&config.key, 0o640);
    assert!(Tls::open(&config, None).is_ok());
}

#[test]
fn an_end_that_is_near_or_past_is_an_alarm() {
    let (_, _, _dir, config) = agent(3 * DAY);
    let alarms = Tls::open(&config, None).unwrap().alarms();
    assert!(alarms[0].message.contains("ends in 3.0 days"), "{alarms:?}");
    let (authority, ca, ..) = agent(DAY);
    let expired = authority.issue_expired(&role("ballast://agent/s01")).unwrap();
    let (_dir, config) = folder(&expired, &ca.certificate);
    let alarms = Tls::open(&config, None).unwrap().alarms();
    assert!(alarms[0].message.contains("has expired"), "{alarms:?}");
}

#[test]
fn new_files_come_into_force_and_broken_ones_leave_the_old_in_force() {
    let (authority, ca, _dir, config) = agent(30 * DAY);
    let own = role("ballast://agent/s01");
    let tls = Tls::open(&config, Some(&own)).unwrap();
    assert_eq!((tls.look(), tls.generation()), (None, 0), "nothing has changed");

    let next = authority.issue(std::slice::from_ref(&own), &[], 60 * DAY).unwrap();
    fs::write(&config.cert, &next.certificate).unwrap();
    assert_eq!(tls.look(), None, "the key may be on its way");
    assert_eq!(tls.generation(), 0);
    fs::write(&config.key, &next.key).unwrap();
    assert_eq!((tls.look(), tls.generation()), (None, 1));
    assert!(tls.status().expires_in_s > 59 * 86_400);
    assert_eq!(tls.status().problem, None);

    fs::write(&config.cert, "hello").unwrap();
    assert_eq!(tls.look(), None);
    let told = tls.look().expect("it is still broken");
    assert!(told.contains("no certificate in PEM"), "{told}");
    assert_eq!(tls.look(), None, "once is enough");
    assert!(tls.alarms()[0].message.contains("the old ones stay"), "{:?}", tls.alarms());
    assert_eq!(tls.generation(), 1);
    put(&config, &next, &ca.certificate);
    assert_eq!((tls.look(), tls.generation()), (None, 2));
    assert_eq!(tls.alarms(), []);
}

#[test]
fn a_step_of_the_clock_by_a_day_refuses_no_new_certificate_and_says_that_none_has_ended() {
    let (_, _, _dir, config) = agent(30 * DAY);
    let tls = Tls::open(&config, None).unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let chain = files::read(&config).map_err(|why| panic!("{why}")).map(|read| read.chain).unwrap();
    let expected = Expected { roots: Arc::clone(&tls.loaded().roots), peer: Peer::Daemon };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = ServerVerifier { expected: Some(expected), provider };

    for then in [now - DAY, now, now + DAY] {
        let (name, at) = ("localhost".try_into().unwrap(), UnixTime::since_unix_epoch(then));
        let taken = verifier.verify_server_cert(&chain[0], &[], &name, &[], at);
        assert!(taken.is_ok(), "{taken:?}");
        assert_eq!(tls.alarms_at(then.as_secs()), []);
    }
    let over = UnixTime::since_unix_epoch(now + 31 * DAY);
    let name = "localhost".try_into().unwrap();
    assert!(verifier.verify_server_cert(&chain[0], &[], &name, &[], over).is_err());
}
