//! `[groups]` and `[[discover]]`: who binds VMs to cores, and which VMs are found by themselves.

use std::time::Duration;

use ballast_agent_core::Actuator;
use ballast_hw::By;
use ballast_hw::binding::LIBVIRT_URI;
use ballast_hw::discovery::Pattern;
use ballast_types::{OnExtreme, VmClass};

use super::PoolsConfig;
use super::vms::{class, cores, read_on_extreme, read_pinned, read_tenant, read_throttle_order};
use ballast_runtime::config::allowed::{Allowed, choice, flag, millis};
use ballast_runtime::config::reader::Section;

/// Who binds VMs to cores, and which VMs are found.
#[derive(Clone, Debug, Default)]
pub struct GroupsConfig {
    /// Who binds them (and limits their bandwidth).
    pub by: By,
    /// Between two looks at where VMs are, and at which there are.
    pub rescan: Duration,
    /// Where VMs are found; the first that matches counts.
    pub discover: Vec<DiscoverConfig>,
    /// How VMs share cores; `None` where each has its own.
    pub pools: Option<PoolsConfig>,
}

/// VMs that are found by their cgroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoverConfig {
    pub pattern: Pattern,
    /// Who they work for; unknown if the pattern does not say.
    pub class: Option<VmClass>,
    /// How many CPUs each has; by what its group says otherwise.
    pub cores: Option<u16>,
    /// Lower is throttled first.
    pub throttle_order: u8,
    /// What may be done when throttling is not enough.
    pub on_extreme: OnExtreme,
    /// Whose they are, or from which template.
    pub tenant: Option<String>,
    /// Whether each has cores of its own where others share theirs.
    pub pinned: bool,
}

impl GroupsConfig {
    /// Reads `[groups]`, every `[[discover]]` and `[pools]` of the file.
    pub(super) fn read(root: &mut Section<'_, '_>, actuator: Actuator) -> Self {
        #[derive(Clone, Copy, PartialEq)]
        enum Kind {
            Cgroup,
            Systemd,
            Libvirt,
        }

        let mut section = root.section("groups", "Who binds VMs to cores, and limits their bandwidth.");
        let help = "The agent, in groups that are nobody's or were delegated to it; `AllowedCPUs` and \
                    `CPUQuota` of units; or libvirt, over D-Bus or by `virsh`.";
        let kind = section.key("by", help).or(
            Kind::Cgroup,
            choice([("cgroup", Kind::Cgroup), ("systemd", Kind::Systemd), ("libvirt", Kind::Libvirt)]),
        );
        let even_units = section
            .key("even_units", "With `\"cgroup\"`: the agent writes in systemd's groups too.")
            .or(false, flag());
        let uri = section
            .key("libvirt_uri", "With `\"libvirt\"`: where libvirt is; `\"qemu:///system\"` unless set.")
            .optional(Allowed::text("a URI of libvirt's, such as \"qemu:///system\"", |uri| {
                (uri.contains(":///") && !uri.contains(char::is_whitespace)).then(|| uri.to_owned())
            }));
        let rescan = section
            .key("rescan_ms", "Between two looks at which VMs there are, and where.")
            .or(Duration::from_secs(2), millis(100..=60_000));

        if even_units && kind != Kind::Cgroup {
            section.refuse_key("even_units", "only with by = \"cgroup\"");
        }
        if uri.is_some() && kind != Kind::Libvirt {
            section.refuse_key("libvirt_uri", "only with by = \"libvirt\"");
        }
        section.finish();

        let by = match kind {
            Kind::Cgroup if even_units => By::CgroupEvenUnits,
            Kind::Cgroup => By::Cgroup,
            Kind::Systemd => By::Systemd,
            Kind::Libvirt => By::Libvirt(uri.unwrap_or_else(|| LIBVIRT_URI.to_owned())),
        };

        let help = "VMs that are found by their cgroups; `[[vm]]` and the API come before them.";
        let discover = root.sections("discover", help).into_iter().filter_map(DiscoverConfig::read).collect();
        let pools = PoolsConfig::read(root, actuator, &by);
        Self { by, rescan, discover, pools }
    }
}

impl DiscoverConfig {
    fn read(mut section: Section<'_, '_>) -> Option<Self> {
        let pattern = section
            .key("pattern", "The cgroups whose VMs these are; the first pattern that matches counts.")
            .required(Allowed::new(
                Pattern::PATTERNS,
                |value| value.as_str()?.parse().ok(),
                |_| String::new(),
            ));
        let class = section
            .key("class", "Whom they work for; unknown otherwise, which counts as user-facing.")
            .optional(class());
        let cores = section
            .key("cores", "How many CPUs each has; its vCPUs, CPUQuota or AllowedCPUs otherwise.")
            .optional(cores());
        let throttle_order = read_throttle_order(&mut section);
        let on_extreme = read_on_extreme(&mut section);
        if on_extreme != OnExtreme::None && class != Some(VmClass::NonUserFacing) {
            section.refuse_key("on_extreme", "only with class = \"non-user-facing\"");
        }
        let tenant = read_tenant(&mut section);
        let pinned = read_pinned(&mut section);
        section.finish();
        Some(Self { pattern: pattern?, class, cores, throttle_order, on_extreme, tenant, pinned })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{AgentConfig, ConfigFile as _};

    const LEAST: &str = "server = \"s01\"\nchassis = \"c1\"\nmeter.offset_w = 60\n";

    fn read(more: &str) -> Result<GroupsConfig, String> {
        let config = AgentConfig::parse("agent.toml", &format!("{LEAST}{more}"));
        config.map(|config| config.groups).map_err(|error| error.to_string())
    }

    #[test]
    fn who_binds_is_chosen_by_name() {
        for (more, by) in [
            ("", By::Cgroup),
            ("[groups]\neven_units = true\n", By::CgroupEvenUnits),
            ("[groups]\nby = \"systemd\"\n", By::Systemd),
            ("[groups]\nby = \"libvirt\"\n", By::Libvirt(LIBVIRT_URI.into())),
            (
                "[groups]\nby = \"libvirt\"\nlibvirt_uri = \"qemu:///session\"\n",
                By::Libvirt("qemu:///session".into()),
            ),
        ] {
            assert_eq!(read(more).unwrap().by, by, "{more}");
        }
    }

    #[test]
    fn patterns_are_read_with_what_they_say_of_their_vms() {
        let text = "[[discover]]\npattern = \"batch.slice/*.service\"\nclass = \"non-user-facing\"\n\
                    cores = 2\nthrottle_order = 7\non_extreme = \"kill\"\n\
                    [[discover]]\npattern = \"machine.slice/machine-qemu*.scope\"\n";
        let found = read(text).unwrap().discover;
        assert_eq!((found[0].class, found[0].cores), (Some(VmClass::NonUserFacing), Some(2)));
        assert_eq!((found[0].throttle_order, found[0].on_extreme), (7, OnExtreme::Kill));
        assert_eq!((found[1].class, found[1].cores, found[1].throttle_order), (None, None, 0));
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        for (more, says) in [
            ("[groups]\nby = \"docker\"\n", "groups.by = \"docker\": \"cgroup\", \"systemd\" or"),
            ("[groups]\nby = \"systemd\"\neven_units = true\n", "groups.even_units = true: only with"),
            ("[groups]\nlibvirt_uri = \"qemu:///system\"\n", "groups.libvirt_uri"),
            ("[groups]\nby = \"libvirt\"\nlibvirt_uri = \"; rm\"\n", "a URI of libvirt's"),
            ("[groups]\nrescan_ms = 5\n", "groups.rescan_ms = 5: whole milliseconds, 100"),
            ("[[discover]]\nclass = \"user-facing\"\n", "discover[0].pattern is missing"),
            ("[[discover]]\npattern = \"*\"\n", "discover[0].pattern = \"*\": a cgroup path"),
            ("[[discover]]\npattern = \"kubepods.slice/*\"\n", "not in kubepods"),
            ("[[discover]]\npattern = \"a/*\"\ncores = 0\n", "discover[0].cores = 0"),
            ("[[discover]]\npattern = \"a/*\"\non_extreme = \"kill\"\n", "only with class"),
            ("[[discover]]\npattern = \"a/*\"\nid = \"x\"\n", "discover[0].id: no such key"),
        ] {
            let said = read(more).unwrap_err();
            assert!(said.contains(says), "{more}: {said}");
        }
    }
}
