//! `ballast certs`: a small authority on disk.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use ballast_runtime::tls::authority::Authority;
use ballast_types::{ChassisId, PeerName, Role, ServerId};
use clap::Args;

use crate::common::terminal::say;

#[derive(Args, Debug)]
pub(crate) struct CertsArgs {
    /// Where the files go; with ca.crt and ca.key of an earlier run there, that authority signs
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// A chassis manager, by its chassis's id
    #[arg(long, value_name = "ID[=ADDRESS]", value_parser = named::<ChassisId>)]
    chassis: Vec<Named<ChassisId>>,
    /// An agent, by its server's id; an address is for clients that look at it, as curl does
    #[arg(long, value_name = "ID[=ADDRESS]", value_parser = named::<ServerId>)]
    server: Vec<Named<ServerId>>,
    /// An operator, who may set budgets and VMs
    #[arg(long, value_name = "NAME", value_parser = PeerName::new)]
    operator: Vec<PeerName>,
    /// An outside power source, which may post readings
    #[arg(long, value_name = "SOURCE", value_parser = PeerName::new)]
    power: Vec<PeerName>,
    /// A placement daemon, by its name
    #[arg(long, value_name = "NAME[=ADDRESS]", value_parser = named::<PeerName>)]
    place: Vec<Named<PeerName>>,
    /// How long the certificates are valid
    #[arg(long, value_name = "N", default_value_t = 90,
        value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
}

/// An id, with the address that it has.
#[derive(Clone, Debug)]
struct Named<I>(I, Option<IpAddr>);

fn named<I: Id>(text: &str) -> Result<Named<I>, String> {
    let (id, address) = text.split_once('=').map_or((text, None), |(id, at)| (id, Some(at)));
    let address = address.map(str::parse).transpose().map_err(|_| "not an IP address after =")?;
    Ok(Named(I::of(id)?, address))
}

trait Id: Sized {
    fn of(text: &str) -> Result<Self, String>;
}
impl Id for ChassisId {
    fn of(text: &str) -> Result<Self, String> {
        Self::new(text).map_err(|error| error.to_string())
    }
}
impl Id for ServerId {
    fn of(text: &str) -> Result<Self, String> {
        Self::new(text).map_err(|error| error.to_string())
    }
}

impl Id for PeerName {
    fn of(text: &str) -> Result<Self, String> {
        Self::new(text).map_err(|error| error.to_string())
    }
}

impl CertsArgs {
    /// Who gets a certificate, and at which address he serves.
    fn all(&self) -> Vec<(Role, Option<IpAddr>)> {
        let chassis = self.chassis.iter().map(|it| (Role::Chassis(it.0.clone()), it.1));
        let servers = self.server.iter().map(|it| (Role::Agent(it.0.clone()), it.1));
        let operators = self.operator.iter().map(|name| (Role::Operator(name.clone()), None));
        let power = self.power.iter().map(|name| (Role::Power(name.clone()), None));
        let place = self.place.iter().map(|it| (Role::Place(it.0.clone()), it.1));
        chassis.chain(servers).chain(operators).chain(power).chain(place).collect()
    }
}

const DAY: Duration = Duration::from_secs(86_400);
/// The authority outlives what it signs.
const AUTHORITY_DAYS: u32 = 3650;

/// Writes the files and says where they go.
pub(crate) fn run(args: &CertsArgs) -> anyhow::Result<ExitCode> {
    let all = args.all();
    if all.is_empty() {
        bail!("nobody to make a certificate for: --chassis, --server, --operator, --power or --place");
    }

    // The folder holds the authority's key.
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&args.dir)
        .with_context(|| args.dir.display().to_string())?;
    let stems: Vec<_> = all.iter().map(|(role, _)| format!("{}-{}", role.kind(), role.id())).collect();
    for (n, stem) in stems.iter().enumerate() {
        if stems[..n].contains(stem) {
            bail!("{} is asked for twice", all[n].0);
        }
        for path in [certificate(&args.dir, stem), key(&args.dir, stem)] {
            if path.try_exists()? {
                bail!("{} is there already: move it away first", path.display());
            }
        }
    }

    let authority = authority(&args.dir)?;
    let mut text = format!(
        "authority: {0}/ca.crt, for everybody as tls.ca; {0}/ca.key signs: keep it off the servers\n",
        args.dir.display()
    );

    for ((role, address), stem) in all.iter().zip(&stems) {
        let addresses = address.as_slice();
        let pair = authority.issue(std::slice::from_ref(role), addresses, DAY * args.days)?;
        pair.create(&args.dir, stem)?;
        let place = match role {
            Role::Chassis(_) => "to the chassis manager: /etc/ballast/tls, [tls] of chassis.toml",
            Role::Agent(_) => "to that server: /etc/ballast/tls, [tls] of its agent.toml",
            Role::Operator(_) => "to the operator: ballast status --cert --key --ca",
            Role::Power(_) => "to the power source",
            Role::Place(_) => "to the placement daemon: /etc/ballast/tls, [tls] of place.toml",
        };

        text += &format!("{role}: {}/{stem}.crt and .key, {place}\n", args.dir.display());
    }

    text += &format!("valid for {} days; then run this again, and copy the new files", args.days);
    say(&text)?;

    Ok(ExitCode::SUCCESS)
}

/// The authority whose key is there, or a new one. One half of it alone is nobody's.
fn authority(dir: &Path) -> anyhow::Result<Authority> {
    let path = key(dir, "ca");
    match fs::read_to_string(&path) {
        Ok(text) if certificate(dir, "ca").try_exists()? => {
            Authority::restore(&text).with_context(|| path.display().to_string())
        }
        Ok(_) => bail!("{} is there, and ca.crt is not", path.display()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let (authority, pair) = Authority::new(DAY * AUTHORITY_DAYS)?;
            pair.create(dir, "ca")?;
            Ok(authority)
        }
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

fn certificate(dir: &Path, stem: &str) -> PathBuf {
    dir.join(format!("{stem}.crt"))
}

fn key(dir: &Path, stem: &str) -> PathBuf {
    dir.join(format!("{stem}.key"))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use ballast_runtime::tls::{Tls, TlsConfig};
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: CertsArgs,
    }

    fn certs(dir: &Path, more: &[&str]) -> anyhow::Result<ExitCode> {
        let words = ["certs", "--dir", dir.to_str().unwrap()];
        run(&Command::try_parse_from(words.iter().chain(more))?.args)
    }

    fn opens(dir: &Path, stem: &str, role: &str) -> Result<(), String> {
        let config = TlsConfig {
            cert: certificate(dir, stem),
            key: key(dir, stem),
            ca: certificate(dir, "ca"),
            warn_before: DAY,
        };
        Tls::open(&config, Some(&role.parse().unwrap())).map(drop)
    }

    #[test]
    fn the_files_are_what_daemons_take() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("certs");
        certs(&dir, &["--chassis", "c1=10.0.0.1", "--server", "s01", "--operator", "ann@site"]).unwrap();
        opens(&dir, "chassis-c1", "ballast://chassis/c1").unwrap();
        opens(&dir, "agent-s01", "ballast://agent/s01").unwrap();
        opens(&dir, "operator-ann@site", "ballast://operator/ann@site").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&dir), 0o700);
        assert_eq!(mode(&key(&dir, "ca")), 0o600);
        assert_eq!(mode(&key(&dir, "agent-s01")), 0o600);
    }

    #[test]
    fn nothing_is_overwritten_and_the_authority_signs_again() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        fs::set_permissions(dir, Permissions::from_mode(0o750)).unwrap();
        certs(dir, &["--server", "s01"]).unwrap();
        let mode = fs::metadata(dir).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o750, "a folder that was there is somebody's");
        let before = fs::read(certificate(dir, "agent-s01")).unwrap();
        let error = certs(dir, &["--server", "s02", "--server", "s01"]).unwrap_err();
        assert!(error.to_string().contains("agent-s01.crt is there already"), "{error}");
        assert!(!certificate(dir, "agent-s02").exists(), "all or nothing");
        let authority = fs::read(certificate(dir, "ca")).unwrap();
        certs(dir, &["--server", "s02", "--power", "pdu"]).unwrap();
        opens(dir, "agent-s02", "ballast://agent/s02").unwrap();
        assert_eq!(fs::read(certificate(dir, "agent-s01")).unwrap(), before);
        assert_eq!(fs::read(certificate(dir, "ca")).unwrap(), authority);
    }

    #[test]
    fn who_is_asked_for_twice_is_named_and_nothing_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let words = ["--server", "s02", "--server", "s01", "--operator", "s01", "--server", "s01=::1"];
        let error = certs(folder.path(), &words).unwrap_err();
        assert_eq!(error.to_string(), "ballast://agent/s01 is asked for twice");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for words in [
            &[][..],
            &["--server", "a/b"],
            &["--server", "s01=host"],
            &["--operator", "a b"],
            &["--server", "s01", "--days", "0"],
        ] {
            assert!(certs(folder.path(), words).is_err(), "{words:?}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
