//! `[kubernetes]`: the VMs of this server are the pods of a Kubernetes node.

use std::path::PathBuf;
use std::time::Duration;

use ballast_agent_core::{Actuator, Policy};
use ballast_hw::kubelet::KUBELET_DIR;
use ballast_hw::{By, Root};
use ballast_runtime::config::allowed::{Allowed, flag, list, seconds};
use ballast_runtime::config::kubernetes::{object_name, read_api, read_label_prefix};
use ballast_runtime::config::reader::Section;
use ballast_types::VmClass;
use ballast_types::wire::LimitsMode;

use super::AgentConfig;
use super::vms::class;

/// `[kubernetes]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesConfig {
    /// This node's name in Kubernetes; as `server` unless set.
    pub node: Option<String>,
    /// `https://host[:port]` of the API server; plain HTTP on loopback only.
    pub api: String,
    pub token_file: PathBuf,
    pub ca_file: PathBuf,
    /// What the names of pods' labels begin with: `ballast.dev/` for `ballast.dev/class`.
    pub label_prefix: String,
    /// Pods of these priority classes are non-user-facing, where no label tells their class.
    pub batch_priority_classes: Vec<String>,
    /// What pods of the quality of service `BestEffort` are, where neither tells.
    pub best_effort: VmClass,
    /// Whether `cpu.max` of the pods' own cgroups is limited, with `throttle.actuator = "cpu-max"`.
    pub cpu_max: bool,
    /// The kubelet's folder, below `root`.
    pub kubelet_dir: String,
    /// Nothing heard of the API server for so long: every pod is user-facing.
    pub stale_after: Duration,
}

impl KubernetesConfig {
    /// Reads `[kubernetes]`; nothing without one.
    pub(super) fn read(root: &mut Section<'_, '_>) -> Option<Self> {
        let help = "The VMs of this server are its pods: a Kubernetes node. Nothing else may name VMs then.";
        let mut section = root.table("kubernetes", help)?;
        let node = section
            .key("node", "This node's name in Kubernetes; as `server` unless set.")
            .optional(Allowed::text("a node's name: at most 253 of a-z 0-9 . -", object_name));
        let (api, token_file, ca_file) =
            read_api(&mut section, "The API server, which tells the pods of this node and their classes.");
        let help = "Of pods' labels: `ballast.dev/class` is \"user-facing\" or \"non-user-facing\".";
        let label_prefix = read_label_prefix(&mut section, help);
        let batch_priority_classes = section
            .key(
                "batch_priority_classes",
                "Pods of these priority classes are non-user-facing, unless their label says otherwise.",
            )
            .or(vec![], list("names of priority classes, such as [\"batch-low\"]", object_name));
        let best_effort = section
            .key("best_effort", "What pods without requests (`BestEffort`) are, where nothing else tells.")
            .or(VmClass::UserFacing, class());
        let help = "With `throttle.actuator = \"cpu-max\"`, and a kubelet with `cpuCFSQuota: false`: \
                    `cpu.max` of non-user-facing pods' own cgroups is limited.";
        let cpu_max = section.key("cpu_max", help).or(false, flag());
        let folder = |text: &str| {
            let plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
            text.strip_prefix('/').is_some_and(|it| it.split('/').all(plain)).then(|| text.to_owned())
        };
        let kubelet_dir = section
            .key("kubelet_dir", "The kubelet's folder, with its socket and its state; below `root`.")
            .or(KUBELET_DIR.into(), Allowed::text("a folder's whole path, without \"..\"", folder));
        let help = "Nothing heard of the API server for so long: what it told of classes is forgotten, and \
                    every pod is user-facing.";
        let stale_after = section
            .key("stale_after_s", help)
            .or(Duration::from_secs(300), seconds::<1>("whole seconds", 1..=86_400));
        section.finish();

        Some(Self {
            node,
            api,
            token_file,
            ca_file,
            label_prefix,
            batch_priority_classes,
            best_effort,
            cpu_max,
            kubelet_dir,
            stale_after,
        })
    }

    /// Refuses what would name other VMs, or write where the kubelet does.
    pub(super) fn check(config: &AgentConfig, root: &Section<'_, '_>) {
        let actuator = config.throttle.actuator;
        let Some(kubernetes) = &config.kubernetes else { return };
        let pods = "not with [kubernetes]: the VMs of this server are its pods";
        for (key, given) in [("vm", !config.vms.is_empty()), ("discover", !config.groups.discover.is_empty())]
        {
            if given {
                root.refuse_key(key, pods);
            }
        }
        if matches!(config.groups.by, By::Libvirt(_)) {
            root.refuse_key("groups.by", "with [kubernetes] only \"cgroup\" or \"systemd\"");
        }
        if config.groups.pools.is_some() {
            root.refuse_key("pools.enabled", "not with [kubernetes]: the kubelet says which CPUs pods have");
        }
        if config.job_limits.mode == LimitsMode::Apply {
            root.refuse_key("limits.mode", "not \"apply\" with [kubernetes]: the kubelet limits pods");
        }
        if config.policy == Policy::FullServer {
            root.refuse_key("policy", "not \"full-server\" with [kubernetes]: it slows every pod");
        }
        let by_limit = kubernetes.cpu_max && actuator == Actuator::CpuMax;
        if actuator != Actuator::Pstate && !by_limit {
            let allowed = "with [kubernetes] only \"pstate\", or \"cpu-max\" with kubernetes.cpu_max = true: \
                           nothing else is written below kubepods";
            root.refuse_key("throttle.actuator", allowed);
        }
        if kubernetes.cpu_max && !by_limit {
            root.refuse_key("kubernetes.cpu_max", "only with throttle.actuator = \"cpu-max\"");
        }
    }

    /// Refuses to limit `cpu.max` where the kubelet writes it. Fails unless the kubelet's own file plainly says
    /// that it does not.
    pub(crate) fn check_kubelet(&self, root: &Root) -> anyhow::Result<()> {
        let told = ballast_hw::kubelet::KubeletConfig::read(root, &self.kubelet_dir);
        if !self.cpu_max || told.is_some_and(|it| it.leaves_cpu_max()) {
            return Ok(());
        }
        let file = root.path(&format!("{}/config.yaml", self.kubelet_dir));
        anyhow::bail!(
            "kubernetes.cpu_max = true: only where {} says cpuCFSQuota: false; without it the kubelet writes \
             cpu.max of its pods itself",
            file.display()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigFile as _;

    const LEAST: &str = "server = \"s01\"\nchassis = \"c1\"\nmeter.offset_w = 60\n";

    fn read(more: &str) -> Result<AgentConfig, String> {
        AgentConfig::parse("agent.toml", &format!("{LEAST}{more}")).map_err(|error| error.to_string())
    }

    #[test]
    fn pods_are_the_only_vms_and_nothing_is_written_where_the_kubelet_writes() {
        assert_eq!(read("").unwrap().kubernetes, None);
        let bare = read("[kubernetes]\n").unwrap().kubernetes.unwrap();
        assert_eq!((bare.cpu_max, bare.best_effort), (false, VmClass::UserFacing));
        let float = "[throttle]\nactuator = \"cpu-max\"\n";
        let kubernetes = "[kubernetes]\ncpu_max = true\n";
        assert!(read(&format!("{float}{kubernetes}")).unwrap().kubernetes.unwrap().cpu_max);
        for (more, says) in [
            ("[[vm]]\nid = \"v\"\ncores = 1\n", "vm = [[vm]]: not with [kubernetes]"),
            ("[[discover]]\npattern = \"a/*\"\n", "discover = [[discover]]: not with"),
            ("[groups]\nby = \"libvirt\"\n", "groups.by"),
            ("[limits]\nmode = \"apply\"\n", "limits.mode"),
            (float, "throttle.actuator = \"cpu-max\": with [kubernetes] only \"pstate\", or"),
            ("[throttle]\nactuator = \"uclamp\"\n", "throttle.actuator = \"uclamp\": with [kubernetes] only"),
            ("[pools]\nenabled = true\n", "pools.enabled = true: not with [kubernetes]"),
        ] {
            let said = read(&format!("{more}[kubernetes]\n")).unwrap_err();
            assert!(said.contains(says), "{more}: {said}");
        }
        assert!(read("policy = \"full-server\"\n[kubernetes]\n").unwrap_err().contains("policy"));
        assert!(read(kubernetes).unwrap_err().contains("kubernetes.cpu_max = true: only with throttle"));
        for (more, says) in [
            ("node = \"A b\"", "kubernetes.node = \"A b\": a node's name"),
            ("api = \"http://10.0.0.1\"", "kubernetes.api"),
            ("batch_priority_classes = [\"a b\"]", "kubernetes.batch_priority_classes"),
            ("best_effort = \"batch\"", "kubernetes.best_effort = \"batch\": \"user-facing\" or"),
            ("kubelet_dir = \"/a/../b\"", "kubernetes.kubelet_dir"),
            ("kubelet_dir = \"a\"", "kubernetes.kubelet_dir"),
            ("stale_after_s = 0", "kubernetes.stale_after_s = 0: whole seconds, 1 to 86400"),
        ] {
            let said = read(&format!("[kubernetes]\n{more}\n")).unwrap_err();
            assert!(said.contains(says), "{more}: {said}");
        }
    }

    #[test]
    fn cpu_max_is_limited_only_where_the_kubelet_says_that_it_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        let config = read("[throttle]\nactuator = \"cpu-max\"\n[kubernetes]\ncpu_max = true\n");
        let config = config.unwrap().kubernetes.unwrap();
        let said = config.check_kubelet(&root).unwrap_err().to_string();
        assert!(said.contains("var/lib/kubelet/config.yaml says cpuCFSQuota: false"), "{said}");
        std::fs::create_dir_all(root.path(KUBELET_DIR)).unwrap();
        for (text, allowed) in [("cpuCFSQuota: true\n", false), ("cpuCFSQuota: false\n", true)] {
            std::fs::write(root.path("var/lib/kubelet/config.yaml"), text).unwrap();
            assert_eq!(config.check_kubelet(&root).is_ok(), allowed, "{text}");
        }
        assert!(KubernetesConfig { cpu_max: false, ..config }.check_kubelet(&root).is_ok());
    }
}
