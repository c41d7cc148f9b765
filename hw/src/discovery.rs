//! Finding VMs by their cgroups: libvirt's scopes, units in slices, groups that match a pattern.
//!
//! A group without processes is no VM, unless it is a slice: what is put into that later is bound already.
//!
//! Source: libvirt's cgroups.rst ("Systemd cgroups integration"), systemd.slice(5).

use core::fmt;
use core::str::FromStr;
use std::path::Path;

use ballast_types::VmId;

use crate::cgroup::CpuMax;
use crate::error::HwError;
use crate::root::{numbered, optional, read_value};
use crate::systemd::unit;
use crate::{Cgroup, CpuList, Root};

/// A pattern of cgroup paths, such as `batch.slice/*.service`: `*` is any number of characters and `?` is
/// one, neither of them a `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// The patterns that are allowed, in words.
    pub const PATTERNS: &str = "a cgroup path such as \"batch.slice/*.service\", with * and ? for what \
                                varies: below sys/fs/cgroup, without \"..\", not in kubepods";

    /// Every group that matches and may be a VM's, in order of path.
    pub fn find(&self, root: &Root) -> Result<Vec<Group>, HwError> {
        let mut found = vec![];
        self.walk(&root.path("sys/fs/cgroup"), "", &self.0, &mut found);
        found.sort();
        let groups = found.into_iter().map(|path| optional(Group::read(root, path)));
        groups.filter_map(|group| group.map(Option::flatten).transpose()).collect()
    }

    fn walk(&self, dir: &Path, above: &str, pattern: &str, found: &mut Vec<String>) {
        let (part, rest) = pattern.split_once('/').unwrap_or((pattern, ""));

        // A folder that is not there, or goes as it is read, has nothing in it.
        let Ok(entries) = dir.read_dir() else { return };

        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| matches(part.as_bytes(), name.as_bytes())) else {
                continue;
            };
            let path = if above.is_empty() { name.to_owned() } else { format!("{above}/{name}") };

            if !Cgroup::is_vm_path(&path) || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if rest.is_empty() {
                found.push(path);
            } else {
                self.walk(&entry.path(), &path, rest, found);
            }
        }
    }
}

impl FromStr for Pattern {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        // A pattern is a path but for its wildcards. At its top it must name somebody.
        let named = !text.split('/').next().unwrap_or_default().starts_with(['*', '?']);
        (Cgroup::is_vm_path(text) && named).then(|| Self(text.to_owned())).ok_or(())
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a name is of the pattern. Only the last `*` is ever tried again, so that no pattern takes long.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // What follows the last `*`, and where in the name that is tried.
    let mut star = None;

    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                p += 1;
                star = Some((p, n));
            }
            Some(byte) if *byte == b'?' || *byte == name[n] => (p, n) = (p + 1, n + 1),
            _ => {
                let Some((after, tried)) = star else { return false };
                star = Some((after, tried + 1));
                (p, n) = (after, tried + 1);
            }
        }
    }

    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// A group that may be a VM's, with what it says about the VM's size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its path, relative to the root of the hierarchy.
    pub path: String,
    /// The inode of its folder: another one is another group, though by the same name.
    pub inode: u64,
    /// What the VM is called: libvirt's name, or that of the group.
    pub name: VmId,
    /// How many vCPUs libvirt gave it.
    pub vcpus: Option<u16>,
    /// Its bandwidth limit, where it has the file.
    pub cpu_max: Option<CpuMax>,
    /// The CPUs that it was given itself; empty when none were.
    pub cpus: CpuList,
}

impl Group {
    fn read(root: &Root, path: String) -> Result<Option<Self>, HwError> {
        let group = Cgroup::at(root, &path)?;
        let inode = group.inode()?;
        if !path.ends_with(".slice") && !group.populated()? {
            return Ok(None);
        }
        let Some(name) = name_of(&path) else { return Ok(None) };
        let threads = numbered(&group.dir().join("libvirt"), "vcpu").unwrap_or_default();
        let cpu_max = read_value(&group.dir().join("cpu.max"), "").ok();
        let cpus = group.own_cpus().unwrap_or_default();
        let vcpus = u16::try_from(threads.len()).ok().filter(|n| *n > 0);
        Ok(Some(Self { path, inode, name, vcpus, cpu_max, cpus }))
    }

    /// How many CPUs the VM has: its vCPUs, or what its bandwidth `limit` comes to, or the CPUs it was given;
    /// `None` if it says nothing.
    pub fn size(&self, limit: Option<CpuMax>) -> Option<u16> {
        let quota = limit.and_then(CpuMax::millicores).map(|milli| milli.div_ceil(1000));
        let quota = quota.and_then(|cpus| u16::try_from(cpus).ok());
        let given = u16::try_from(self.cpus.len()).ok().filter(|n| *n > 0);
        self.vcpus.or(quota).or(given)
    }
}

/// The VM that runs in a group, by its name; characters that an id cannot have become `_`.
fn name_of(path: &str) -> Option<VmId> {
    let last = path.rsplit('/').next()?;
    let name = match (unit::domain_of(path), unit::unit_of(path)) {
        (Some((_, name)), _) => name,
        (_, Some(name)) => unit::unescape(name.rsplit_once('.')?.0),
        _ => last.to_owned(),
    };
    let fits = |c: char| if c.is_ascii_alphanumeric() || "._-:@".contains(c) { c } else { '_' };
    let name: String = name.chars().take(64).map(fits).collect();
    VmId::new(&name).or_else(|_| VmId::new(&name.replacen('.', "_", 1))).ok()
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;
    use crate::Operation;
    use crate::testing::Tree;

    fn pattern(text: &str) -> Pattern {
        text.parse().unwrap()
    }
    fn group(tree: &Tree, path: &str, populated: u8) {
        let events = format!("populated {populated}");
        tree.folder(
            &format!("sys/fs/cgroup/{path}"),
            &[("cgroup.events", &*events), ("cpuset.cpus", ""), ("cpu.max", "max 100000")],
        );
    }

    #[test]
    fn patterns_that_lead_elsewhere_are_refused() {
        for bad in ["", "/a", "a/../b", "kubepods.slice/*", "a/kubepods*/b", "*", "*/b", "?x/b", "a//b"] {
            assert!(bad.parse::<Pattern>().is_err(), "{bad:?}");
        }
        assert_eq!(pattern("machine.slice/*.scope").to_string(), "machine.slice/*.scope");
    }

    #[test]
    fn wildcards_stay_within_a_name() {
        for (pattern, name, fits) in [
            ("*", "", true),
            ("*.service", "a.service", true),
            ("*.service", "a.service.d", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("a*b*c", "a1b2b3c", true),
            ("a*b*c", "a1b2", false),
            ("abc", "abc", true),
            ("abc", "abcd", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn no_pattern_takes_long() {
        let (pattern, name) = ("a*".repeat(100) + "b", "a".repeat(255));
        let start = std::time::Instant::now();
        assert!(!matches(pattern.as_bytes(), name.as_bytes()));
        // By trying every length of every `*` it takes longer than the machine lives.
        let took = start.elapsed();
        assert!(took.as_secs() < 60, "{took:?}");
    }

    #[test]
    fn what_runs_and_matches_is_found_with_its_size() {
        let tree = Tree::new();
        let scope = r"machine.slice/machine-qemu\x2d3\x2dweb\x2d1.scope";
        for (path, populated) in [
            (scope, 1),
            ("machine.slice/other.scope", 1),
            ("batch.slice/a.service", 1),
            ("batch.slice/stopped.service", 0),
            ("batch.slice/limited.service", 1),
            ("batch.slice/given.service", 1),
            ("elastic.slice", 0),
            ("x/kubepods.slice", 1),
        ] {
            group(&tree, path, populated);
        }

        for thread in ["vcpu0", "vcpu1", "vcpu2", "emulator"] {
            group(&tree, &format!("{scope}/libvirt/{thread}"), 1);
        }
        tree.write("sys/fs/cgroup/batch.slice/limited.service/cpu.max", "250000 100000\n");
        tree.write("sys/fs/cgroup/batch.slice/given.service/cpuset.cpus", "4-7\n");
        let found = |text: &str| -> Vec<(String, Option<u16>)> {
            let groups = pattern(text).find(tree.root()).unwrap();
            groups.iter().map(|it| (it.name.to_string(), it.size(it.cpu_max))).collect()
        };

        assert_eq!(found("machine.slice/machine-qemu*.scope"), [("web-1".into(), Some(3))]);
        assert_eq!(
            found("batch.slice/*.service"),
            [("a".into(), None), ("given".into(), Some(4)), ("limited".into(), Some(3))]
        );

        assert_eq!(found("elastic.slice"), [("elastic".into(), None)]);
        assert_eq!(found("x/*"), [], "the kubelet's");
        assert_eq!(found("nothing.slice/*"), []);
    }

    #[test]
    fn a_group_that_goes_while_it_is_looked_at_is_not_there() {
        let tree = Tree::new();
        group(&tree, "batch.slice/a.service", 1);
        let events = "sys/fs/cgroup/batch.slice/a.service/cgroup.events";
        tree.fail(events, Operation::Read, Errno::ENOENT);
        assert_eq!(pattern("batch.slice/*").find(tree.root()).unwrap(), []);
        tree.fail(events, Operation::Read, Errno::EIO);
        assert!(pattern("batch.slice/*").find(tree.root()).is_err());
        tree.heal(events);
        assert_eq!(pattern("batch.slice/*").find(tree.root()).unwrap().len(), 1);

        // Files that say nothing are no reason not to see it.
        for file in ["cpuset.cpus", "cpu.max"] {
            tree.fail(&format!("sys/fs/cgroup/batch.slice/a.service/{file}"), Operation::Read, Errno::ENODEV);
        }

        assert_eq!(pattern("batch.slice/*").find(tree.root()).unwrap()[0].size(None), None);
    }

    #[test]
    fn every_name_becomes_an_id() {
        for (path, name) in [
            ("a/web.scope", "web"),
            ("a/batch@1.service", "batch@1"),
            (r"a/my\x2djob\x20x.service", "my-job_x"),
            ("vms/vm1", "vm1"),
            ("vms/.hidden", "_hidden"),
            ("a/machine-critical.slice", "machine-critical"),
        ] {
            assert_eq!(name_of(path).unwrap().as_str(), name, "{path}");
        }
        assert_eq!(name_of(&format!("a/{}", "x".repeat(90))).unwrap().as_str().len(), 64);
    }
}
