//! What a kubelet keeps on its node: which CPUs it gave to whom, what it was configured to do, and the cgroups
//! of its pods. All of it is read, and nothing is written.
//!
//! Sources: kubernetes/pkg/kubelet/cm/cpumanager/state/checkpoint.go (`cpu_manager_state`),
//! `kubernetes/pkg/kubelet/cm/{cgroup_manager_linux,pod_container_manager_linux}.go` (cgroups),
//! kubelet.config.k8s.io/v1beta1 (`config.yaml`).

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::error::{HwError, Operation};
use crate::root::{optional, read_text};
use crate::{CpuList, Root};

/// Where a kubelet keeps its files, unless it was told otherwise.
pub const KUBELET_DIR: &str = "/var/lib/kubelet";
/// Its socket for [`CpuState`]'s newer sister, below its folder.
pub const POD_RESOURCES: &str = "pod-resources/kubelet.sock";
const STATE: &str = "cpu_manager_state";
const CONFIG: &str = "config.yaml";

/// Which CPUs the kubelet's CPU manager gave to whom, as `cpu_manager_state` says it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuState {
    /// `none`, or `static`: only then has any pod CPUs of its own.
    pub policy: String,
    /// The CPUs that all other pods share.
    pub shared: CpuList,
    /// The exclusive CPUs of every pod that has some, by its UID.
    pub exclusive: BTreeMap<String, CpuList>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Checkpoint {
    policy_name: String,
    #[serde(default)]
    default_cpu_set: String,
    #[serde(default)]
    entries: Option<BTreeMap<String, BTreeMap<String, String>>>,
}

impl CpuState {
    /// Reads the state in the kubelet's folder `dir`; `None` if there is none. Fails if it is no state.
    pub fn read(root: &Root, dir: &str) -> Result<Option<Self>, HwError> {
        let path = root.path(&format!("{dir}/{STATE}"));
        let Some(text) = optional(read_file(&path))? else { return Ok(None) };
        Self::parse(&text).map(Some).map_err(|why| {
            let allowed = format!("a cpu_manager_state of a kubelet: {why}");
            HwError::value(&path, Operation::Read, text.chars().take(80).collect::<String>(), allowed)
        })
    }

    /// The same state with numbers in the place of pods and containers; `None` if it is no state.
    pub(crate) fn nameless(text: &str) -> Option<String> {
        let Self { policy, shared, exclusive } = Self::parse(text).ok()?;
        let pod = |(n, cpus): (usize, &CpuList)| (n.to_string(), serde_json::json!({"0": cpus.to_string()}));
        let entries: serde_json::Map<_, _> = exclusive.values().enumerate().map(pod).collect();
        let shared = shared.to_string();
        let state = serde_json::json!({"policyName": policy, "defaultCpuSet": shared, "entries": entries});
        Some(format!("{state}\n"))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let state: Checkpoint = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let list = |text: &str| text.parse::<CpuList>().map_err(|error| error.to_string());
        let mut exclusive = BTreeMap::<String, CpuList>::new();
        for (uid, containers) in state.entries.unwrap_or_default() {
            // The containers of one pod may hand CPUs on: init containers do.
            for cpus in containers.values() {
                exclusive.entry(uid.clone()).or_default().extend(list(cpus)?.iter());
            }
        }
        exclusive.retain(|_, cpus| !cpus.is_empty());
        Ok(Self { policy: state.policy_name, shared: list(&state.default_cpu_set)?, exclusive })
    }
}

/// What a kubelet's `config.yaml` says, as far as it matters here. What the file does not say plainly is not told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeletConfig {
    pub cpu_manager_policy: Option<String>,
    /// Whether it writes `cpu.max` of pods and containers; it does unless this is `false`.
    pub cfs_quota: Option<bool>,
}

impl KubeletConfig {
    /// Reads the file in the kubelet's folder `dir`; `None` if there is none, or it cannot be read.
    pub fn read(root: &Root, dir: &str) -> Option<Self> {
        read_file(&root.path(&format!("{dir}/{CONFIG}"))).ok().map(|text| Self::parse(&text))
    }

    /// Whether the kubelet is plainly told not to write `cpu.max`.
    pub fn leaves_cpu_max(&self) -> bool {
        self.cfs_quota == Some(false)
    }

    /// The same configuration, and nothing else that the file says.
    pub(crate) fn nameless(text: &str) -> String {
        let Self { cpu_manager_policy, cfs_quota } = Self::parse(text);
        let policy = cpu_manager_policy.map(|it| format!("cpuManagerPolicy: {it}\n"));
        let quota = cfs_quota.map(|it| format!("cpuCFSQuota: {it}\n"));
        policy.into_iter().chain(quota).collect()
    }

    fn parse(text: &str) -> Self {
        let json: Option<serde_json::Value> = serde_json::from_str(text).ok();
        let value = |key: &str| match &json {
            Some(json) => json.get(key).map(|value| value.as_str().map_or(value.to_string(), str::to_owned)),
            None => top_level(text, key),
        };
        Self {
            cpu_manager_policy: value("cpuManagerPolicy"),
            cfs_quota: value("cpuCFSQuota").and_then(|value| value.parse().ok()),
        }
    }
}

/// A plain value at the top of a YAML text; none where the key is there more than once.
fn top_level(text: &str, key: &str) -> Option<String> {
    let mut values = text.lines().filter_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix(':'));
    let value = values.next().filter(|_| values.next().is_none())?;
    let value = value.split(" #").next().unwrap_or(value).trim().trim_matches(['"', '\'']);
    (!value.is_empty()).then(|| value.to_owned())
}

/// The paths that a pod's cgroup may have below `sys/fs/cgroup`: as the driver `cgroupfs` and as `systemd` name it,
/// for each class of service. None for what is no UID.
pub(crate) fn pod_paths(uid: &str) -> Vec<String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if uid.is_empty() || uid.len() > 64 || !uid.bytes().all(plain) {
        return vec![];
    }
    let unit = uid.replace('-', "_");
    let of = |quality: &str| {
        let (folder, slice) = match quality {
            "" => (String::new(), String::new()),
            _ => (format!("{quality}/"), format!("-{quality}")),
        };
        let above = if quality.is_empty() { String::new() } else { format!("kubepods{slice}.slice/") };
        [
            format!("kubepods.slice/{above}kubepods{slice}-pod{unit}.slice"),
            format!("kubepods/{folder}pod{uid}"),
        ]
    };
    ["", "burstable", "besteffort"].into_iter().flat_map(of).collect()
}

/// Whether `path` is a pod's own cgroup: neither that of a class of pods, nor that of a container.
pub(crate) fn is_pod_path(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let uid = match name.strip_suffix(".slice") {
        Some(unit) => unit.split_once("-pod").map(|(_, uid)| uid.replace('_', "-")),
        None => name.strip_prefix("pod").map(str::to_owned),
    };
    uid.is_some_and(|uid| pod_paths(&uid).iter().any(|it| it == path))
}

/// A file's text. Fails for what is no file: nobody may write into a pipe for ever.
fn read_file(path: &Path) -> Result<String, HwError> {
    match path.metadata() {
        Ok(it) if !it.is_file() => Err(HwError::value(path, Operation::Read, "", "a regular file")),
        _ => read_text(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;
    use proptest::prelude::*;

    #[test]
    fn the_state_of_the_cpu_manager_is_read_or_refused() {
        let tree = Tree::new();
        let read = || CpuState::read(tree.root(), KUBELET_DIR);
        assert!(read().unwrap().is_none());
        let file = "var/lib/kubelet/cpu_manager_state";
        // As kubelets write it: none, static without exclusive pods, static with some.
        tree.write(file, r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#);
        assert_eq!(read().unwrap().unwrap().policy, "none");
        tree.write(file, r#"{"policyName":"static","defaultCpuSet":"0-7","checksum":2087170026}"#);
        assert_eq!(read().unwrap().unwrap().shared.len(), 8);
        tree.write(
            file,
            r#"{"policyName":"static","defaultCpuSet":"0,4-7",
                "entries":{"36bc":{"a":"1","b":"2-3"},"77":{"c":""}},"checksum":1}"#,
        );
        let state = read().unwrap().unwrap();
        let exclusive: Vec<_> = state.exclusive.iter().map(|(uid, cpus)| format!("{uid} {cpus}")).collect();
        assert_eq!((exclusive, state.shared.to_string()), (vec!["36bc 1-3".into()], "0,4-7".into()));

        for bad in [
            "",
            "{",
            "[]",
            r#"{"policyName":7}"#,
            r#"{"defaultCpuSet":"0"}"#,
            r#"{"policyName":"static","defaultCpuSet":"3-1"}"#,
            r#"{"policyName":"static","defaultCpuSet":"0","entries":{"u":{"c":"x"}}}"#,
            r#"{"policyName":"static","defaultCpuSet":"0","entries":{"u":"1"}}"#,
        ] {
            tree.write(file, bad);
            let error = read().unwrap_err().to_string();
            assert!(error.contains("cpu_manager_state of a kubelet"), "{bad}: {error}");
        }
    }

    #[test]
    fn only_a_kubelet_that_is_plainly_told_leaves_cpu_max() {
        let config = |text: &str| KubeletConfig::parse(text);
        let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
                    cpuManagerPolicy: static # reserved below\ncpuCFSQuota: false\n";
        assert_eq!(config(text).cpu_manager_policy.as_deref(), Some("static"));
        assert!(config(text).leaves_cpu_max());
        assert!(config(r#"{"cpuCFSQuota":false,"cpuManagerPolicy":"none"}"#).leaves_cpu_max());
        for owned in [
            "",
            "cpuCFSQuota: true\n",
            "cpuCFSQuota:\n  false\n",
            "cpuCFSQuota: 0\n",
            "other:\n  cpuCFSQuota: false\n",
            "# cpuCFSQuota: false\n",
            "cpuCFSQuota: false\ncpuCFSQuota: true\n",
            "cpuCFSQuotaPeriod: false\n",
            r#"{"cpuCFSQuota":null}"#,
        ] {
            assert!(!config(owned).leaves_cpu_max(), "{owned:?}");
        }
    }

    #[test]
    fn a_pods_own_group_is_told_from_all_others() {
        let uid = "5d8c2a3e-7a4f-4a37-9a43-2f6f2b0f4c11";
        let unit = uid.replace('-', "_");
        for good in pod_paths(uid) {
            assert!(is_pod_path(&good), "{good}");
        }
        assert!(pod_paths(uid).contains(&format!(
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{unit}.slice"
        )));
        for bad in [
            "kubepods.slice".to_owned(),
            "kubepods/burstable".to_owned(),
            format!("kubepods/pod{uid}/container"),
            format!("x/kubepods/pod{uid}"),
            format!("kubepods/../kubepods/pod{uid}"),
            format!("kubepods.slice/kubepods-burstable-pod{unit}.slice"),
            "kubepods/pod".to_owned(),
            "kubepods/pod..".to_owned(),
        ] {
            assert!(!is_pod_path(&bad), "{bad}");
        }
        for bad in ["", "a/b", "..", "a_b", &"a".repeat(65)] {
            assert_eq!(pod_paths(bad), Vec::<String>::new(), "{bad}");
        }
    }

    #[test]
    fn a_recording_names_no_pod_and_no_address() {
        let state =
            r#"{"policyName":"static","defaultCpuSet":"0","entries":{"5d8c":{"db":"1-2"}},"checksum":7}"#;
        let nameless = CpuState::nameless(state).unwrap();
        assert!(!nameless.contains("5d8c") && !nameless.contains("db"), "{nameless}");
        assert_eq!(CpuState::parse(&nameless).unwrap().exclusive["0"].to_string(), "1-2");
        let config = "clusterDNS:\n- 10.96.0.10\ncpuManagerPolicy: static\ncpuCFSQuota: false\n";
        assert_eq!(KubeletConfig::nameless(config), "cpuManagerPolicy: static\ncpuCFSQuota: false\n");
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,80}", key in "[a-z]{0,4}") {
            let _ = (CpuState::parse(&text), KubeletConfig::parse(&text));
            let _ = (is_pod_path(&text), top_level(&text, &key));
        }
    }

    #[test]
    fn what_is_no_file_is_not_read() {
        let tree = crate::testing::Tree::new();
        let path = tree.root().path("var/lib/kubelet").join(STATE);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let error = CpuState::read(tree.root(), "var/lib/kubelet").unwrap_err();
        assert!(error.to_string().contains("a regular file"), "{error}");
    }
}
