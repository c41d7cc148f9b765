//! The file of a placement daemon's hosts, TOML or JSON: `hosts`, each of a name or a range of names.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::repeat_n;
use std::num::NonZeroU32;
use std::path::PathBuf;

use ballast_placement::inventory::{HostSpec, NamedHost, Overcommit};
use ballast_placement::{HostState, MemoryKb, MilliCores, Resources};
use ballast_types::ServerId;
use serde::Deserialize;

/// More hosts are a slip in a range.
const HOSTS_MAX: usize = 100_000;
/// No inventory takes a longer name: a range of longer ones would fill the memory for nothing.
const NAME_MAX: usize = 320;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFile {
    pub path: PathBuf,
    /// Whether this daemon has certificates, without which it reaches no agent of another host.
    tls: bool,
    /// What it said when it was last read.
    pub hosts: Vec<HostEntry>,
}

/// A host as a file or a request tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostEntry {
    /// Its name, chassis and size; open where nothing is told.
    pub host: NamedHost,
    /// Whether VMs may come, where that is told.
    pub state: Option<HostState>,
    /// Where its agent serves; without, nobody tells it what is predicted of its VMs.
    pub agent: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    chassis: String,
    cores: f64,
    memory_gb: f64,
    state: Option<HostState>,
    agent: Option<String>,
    fault_domain: Option<String>,
    #[serde(default)]
    extras: BTreeMap<String, u32>,
    #[serde(default)]
    overcommit: Overcommit,
    /// The most VMs that the host may have; `None`: no limit.
    max_vms: Option<NonZeroU32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Whole {
    hosts: Vec<Entry>,
}

impl HostFile {
    /// The file at `path`, for a daemon with certificates (`tls`) or without; nothing is read yet.
    pub fn at(path: PathBuf, tls: bool) -> Self {
        Self { path, tls, hosts: Vec::new() }
    }

    /// Reads the file anew.
    ///
    /// # Errors
    /// With its name, the entry, the value and what is allowed; what it said before stays.
    pub fn load(&mut self) -> Result<(), String> {
        let named = |why: String| format!("{}: {why}", self.path.display());
        let text = std::fs::read_to_string(&self.path).map_err(|error| named(error.to_string()))?;
        let is_json = self.path.extension().is_some_and(|extension| extension == "json");
        let hosts = parse(&text, is_json).map_err(named)?;
        let by_tls = |entry: &&HostEntry| entry.agent.as_ref().is_some_and(|url| url.starts_with("https:"));
        if let Some(HostEntry { host, agent: Some(agent), .. }) =
            hosts.iter().find(by_tls).filter(|_| !self.tls)
        {
            return Err(named(format!(
                "host {:?}: agent = {agent:?}: only with [tls]: cert, key and ca",
                host.name
            )));
        }
        self.hosts = hosts;
        Ok(())
    }
}

pub(crate) fn parse(text: &str, is_json: bool) -> Result<Vec<HostEntry>, String> {
    let whole: Whole = if is_json {
        let mut json = serde_json::Deserializer::from_str(text);
        serde_path_to_error::deserialize(&mut json).map_err(|error| error.to_string())?
    } else {
        let toml = toml::Deserializer::parse(text).map_err(|error| error.to_string())?;
        serde_path_to_error::deserialize(toml).map_err(|error| error.to_string())?
    };

    let mut hosts = Vec::new();
    for (n, entry) in whole.hosts.into_iter().enumerate() {
        let name = entry.name.clone();
        hosts.extend(entry.hosts().map_err(|why| format!("hosts[{n}].{why}"))?);
        if hosts.len() > HOSTS_MAX {
            return Err(format!("hosts[{n}].name = {name:?}: at most {HOSTS_MAX} hosts in all"));
        }
    }

    let mut agents = BTreeSet::new();
    for HostEntry { host, agent, .. } in &hosts {
        if let Some(agent) = agent.as_ref().filter(|agent| !agents.insert(*agent)) {
            let own = "every host has an agent of its own: of a range, with {host} in its place";
            return Err(format!("host {:?}: agent = {agent:?}: {own}", host.name));
        }
    }

    let mut seen = BTreeSet::new();
    match hosts.iter().find(|told| !seen.insert(&told.host.name)) {
        Some(twice) => Err(format!("host {:?} is listed twice", twice.host.name)),
        None => Ok(hosts),
    }
}

impl Entry {
    /// The hosts: one for each name of the range.
    fn hosts(mut self) -> Result<Vec<HostEntry>, String> {
        let capacity = size(self.cores, self.memory_gb)?;
        self.extras.retain(|_, amount| *amount > 0);
        let names = range("name", &self.name)?;
        let chassis = shared("chassis", &self.chassis, names.len())?;
        let domains = self.fault_domain.map(|domain| shared("fault_domain", &domain, names.len()));
        let domains = domains.transpose()?;

        let places = names.into_iter().enumerate();
        let hosts = places.map(|(place, name)| {
            let spec = HostSpec {
                fault_domain: domains.as_ref().map(|domains| domains[place].clone()),
                extras: self.extras.clone(),
                overcommit: self.overcommit,
                max_vms: self.max_vms.map(NonZeroU32::get),
                state: self.state.unwrap_or_default(),
                ..HostSpec::new(chassis[place].clone(), capacity)
            };
            let agent = self.agent.as_deref().map(|url| agent_of(&name, url)).transpose()?;
            let host = NamedHost { name, spec };
            host.check().map_err(|error| format!("name = {:?}: {error}", host.name))?;
            Ok(HostEntry { host, state: self.state, agent })
        });
        hosts.collect()
    }
}

/// Expands `text` to names, and assigns them evenly to the hosts. Returns one name for each host.
fn shared(key: &str, text: &str, hosts: usize) -> Result<Vec<String>, String> {
    let names = range(key, text)?;
    let count = names.len();
    if !hosts.is_multiple_of(count) {
        return Err(format!("{key} = {text:?}: {count} of them do not share {hosts} hosts evenly"));
    }
    Ok(names.into_iter().flat_map(|name| repeat_n(name, hosts / count)).collect())
}

/// The size of a host or of a VM.
///
/// # Errors
/// With the field, its value and what is allowed.
pub(crate) fn size(cores: f64, memory_gb: f64) -> Result<Resources, String> {
    let milli = (cores * 1e3).round();
    let good = (1.0..=65_536e3).contains(&milli);
    let cores = Some(milli as u64).filter(|_| good).and_then(MilliCores::from_milli);
    let cores = cores.ok_or_else(|| format!("cores = {}: 0.001 to 65536", milli / 1e3))?;
    let memory = MemoryKb::from_gb(memory_gb);
    let memory = memory.ok_or_else(|| format!("memory_gb = {memory_gb}: 0 to 100000"))?;
    Ok(Resources::new(cores, memory))
}

/// Where the agent of `host` serves: `{host}` stands for its name. Over TLS it shows the certificate of a server of
/// that name.
fn agent_of(host: &str, url: &str) -> Result<String, String> {
    let at = url.replace("{host}", host);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
    let is_https =
        |at: &str| at.strip_prefix("https://").is_some_and(|at| !at.is_empty() && at.chars().all(is_plain));
    if !(at.starts_with("unix:/") || is_https(&at)) {
        let allowed = "https://address:port, with {host} for the host's name; or unix:/path of the agent's \
                       socket on this machine: agents take no orders by plain HTTP";
        return Err(format!("agent = {url:?}: {allowed}"));
    }
    ServerId::new(host).map_err(|why| format!("name = {host:?}: with an agent it is the server's: {why}"))?;
    Ok(at)
}

/// `s[001-720]` is 720 names, of as many digits as the first; anything else is one.
fn range(key: &str, text: &str) -> Result<Vec<String>, String> {
    let Some((before, rest)) = text.split_once('[') else { return Ok(vec![text.to_owned()]) };
    let allowed = || {
        let shown: String = text.chars().take(80).collect();
        format!("{key} = {shown:?}: a name, or a range of names as s[001-720], of at most {NAME_MAX} bytes")
    };
    let (inside, after) = rest.split_once(']').ok_or_else(allowed)?;
    let (first, last) = inside.split_once('-').ok_or_else(allowed)?;
    let number = |text: &str| {
        let digits = (1..=9).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        text.parse::<usize>().ok().filter(|_| digits)
    };
    let (from, to) = number(first).zip(number(last)).ok_or_else(allowed)?;
    let is_long = before.len() + first.len() + after.len() > NAME_MAX;
    if from > to || to - from >= HOSTS_MAX || is_long || after.contains(['[', ']']) {
        return Err(allowed());
    }
    let digits = first.len();
    Ok((from..=to).map(|n| format!("{before}{n:0digits$}{after}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        [[hosts]]
        name = "s[08-11].rack1"
        chassis = "c[1-2]"
        cores = 40
        memory_gb = 160.5

        [[hosts]]
        name = "odd"
        chassis = "c2"
        cores = 0.5
        memory_gb = 0
        state = "cordoned"
    "#;

    #[test]
    fn ranges_of_hosts_share_their_chassis_evenly() {
        let hosts = parse(FILE, false).unwrap();
        let told: Vec<_> = hosts
            .iter()
            .map(|told| (told.host.name.as_str(), told.host.spec.chassis.as_str(), told.state))
            .collect();
        assert_eq!(
            told,
            [
                ("s08.rack1", "c1", None),
                ("s09.rack1", "c1", None),
                ("s10.rack1", "c2", None),
                ("s11.rack1", "c2", None),
                ("odd", "c2", Some(HostState::Cordoned)),
            ]
        );

        assert_eq!(hosts[4].host.spec.capacity.cores.milli(), 500);
        let json = r#"{"hosts": [{"name": "s[08-11].rack1", "chassis": "c[1-2]", "cores": 40,
            "memory_gb": 160.5},
            {"name": "odd", "chassis": "c2", "cores": 0.5, "memory_gb": 0, "state": "cordoned"}]}"#;
        assert_eq!(parse(json, true).unwrap(), hosts);
    }

    #[test]
    fn every_host_of_a_range_has_an_agent_of_its_own() {
        let with = |agent: &str| {
            let file = FILE.replacen("chassis", &format!("agent = {agent:?}\nchassis"), 1);
            Ok::<_, String>(parse(&file, false)?.into_iter().map(|host| host.agent).collect::<Vec<_>>())
        };
        let agents = with("https://{host}.example:7101").unwrap();
        assert_eq!(agents[0].as_deref(), Some("https://s08.rack1.example:7101"));
        assert_eq!((agents[3].is_some(), &agents[4]), (true, &None), "who has none is told nothing");
        for (agent, says) in [
            ("https://10.0.0.1:7101", "host \"s09.rack1\": agent = \"https://10.0.0.1:7101\": every host"),
            ("http://{host}:7101", "hosts[0].agent = \"http://{host}:7101\": https://address:port"),
            ("https://{host}/x", "hosts[0].agent = "),
            ("https://", "hosts[0].agent = "),
        ] {
            let why = with(agent).unwrap_err();
            assert!(why.starts_with(says), "{says}: {why}");
        }
        let spaced = FILE.replacen("\"odd\"", "\"od d\"\nagent = \"unix:/run/a.sock\"", 1);
        assert!(parse(&spaced, false).unwrap_err().contains("with an agent it is the server's"));

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hosts.toml");
        let load = |agent: &str, tls| {
            std::fs::write(&path, FILE.replacen("\"odd\"", &format!("\"odd\"\nagent = {agent:?}"), 1))
                .unwrap();
            HostFile::at(path.clone(), tls).load()
        };
        assert!(load("https://{host}:1", false).unwrap_err().ends_with("only with [tls]: cert, key and ca"));
        assert_eq!((load("https://{host}:1", true), load("unix:/run/a.sock", false)), (Ok(()), Ok(())));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let with = |from: &str, to: &str| parse(&FILE.replacen(from, to, 1), false).unwrap_err();
        for (from, to, says) in [
            ("cores = 40", "cores = -1", "hosts[0].cores = -1: 0.001 to 65536"),
            ("cores = 40", "cores = nan", "hosts[0].cores = NaN: 0.001 to 65536"),
            ("cores = 0.5", "cores = 1e9", "hosts[1].cores = 1000000000: 0.001 to 65536"),
            ("memory_gb = 0\n", "memory_gb = -1\n", "hosts[1].memory_gb = -1: 0 to 100000"),
            ("c[1-2]", "c[1-3]", "hosts[0].chassis = \"c[1-3]\": 3 of them do not share 4 hosts evenly"),
            ("s[08-11]", "s[11-08]", "hosts[0].name = \"s[11-08].rack1\": a name, or a range"),
            ("s[08-11]", "s[0-999999999]", "hosts[0].name = \"s[0-999999999].rack1\": a name, or a range"),
            (
                "cores = 40",
                "cores = 40\nfault_domain = \"r[1-3]\"",
                "hosts[0].fault_domain = \"r[1-3]\": 3 of them",
            ),
            ("\"odd\"", "\"s09.rack1\"", "host \"s09.rack1\" is listed twice"),
            (
                "\"odd\"",
                "\"o\\td\"",
                "hosts[1].name = \"o\\td\": \"o\\td\" is not a valid name of a host: 1 to 320 bytes",
            ),
            (
                "\"c2\"",
                "\"\"",
                "hosts[1].name = \"odd\": \"\" is not a valid name of a chassis: 1 to 320 bytes",
            ),
            (
                "cores = 0.5",
                "cores = 0.5\nextras = { \"a\\n\" = 1 }",
                "hosts[1].name = \"odd\": \"a\\n\" is not a valid name of a resource: 1 to 320 bytes",
            ),
        ] {
            let why = with(from, to);
            assert!(why.starts_with(says), "{says}: {why}");
        }

        let long = format!("{}[0-99999]", "s".repeat(4_000));
        assert!(with("s[08-11]", &long).contains("s[001-720], of at most 320 bytes"), "a name of 4 kB");
        assert!(with("cores = 40", "coers = 40").contains("line 5"), "a slip is told by its line");
        assert!(with("\"cordoned\"", "\"closed\"").contains("`open`, `cordoned`, `draining`"));
        for (key, at, allowed) in [
            ("overcommit.cores = 17", "hosts[1].overcommit.cores: ", "17: 0.1 to 16"),
            ("max_vms = 0", "hosts[1].max_vms: ", "integer `0`, expected a nonzero u32"),
        ] {
            let why = with("cores = 0.5", &format!("cores = 0.5\n{key}"));
            assert!(why.starts_with(at) && why.contains(allowed), "{key}: {why}");
        }
        assert!(parse("{", true).unwrap_err().contains("line 1"));
    }
}
