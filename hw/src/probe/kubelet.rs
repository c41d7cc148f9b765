use serde::Serialize;

use crate::kubelet::{CpuState, KUBELET_DIR, KubeletConfig, POD_RESOURCES};
use crate::{CpuList, Root};

/// A kubelet, as far as its files tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Kubelet {
    /// Its CPU manager's policy, by its state or else by its configuration: pods have CPUs of their own with `static`.
    pub cpu_manager_policy: Option<String>,
    /// Whether its configuration plainly says that it does not write `cpu.max`.
    pub leaves_cpu_max: bool,
    /// Whether its socket for pods' resources is there.
    pub pod_resources: bool,
    /// The CPUs that pods have alone, and those that all others share.
    pub exclusive_cpus: String,
    pub shared_cpus: String,
    /// How many pods have CPUs of their own.
    pub exclusive_pods: usize,
    /// Why its state cannot be read, if that is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Kubelet {
    /// `None` where there is no folder of a kubelet's.
    pub(super) fn read(root: &Root) -> Option<Self> {
        if !root.path(KUBELET_DIR).is_dir() {
            return None;
        }
        let config = KubeletConfig::read(root, KUBELET_DIR).unwrap_or_default();
        let (state, error) = match CpuState::read(root, KUBELET_DIR) {
            Ok(state) => (state, None),
            Err(error) => (None, Some(super::files::told(root, &error))),
        };
        let exclusive = state.iter().flat_map(|state| state.exclusive.values().flat_map(CpuList::iter));
        Some(Self {
            exclusive_cpus: exclusive.collect::<CpuList>().to_string(),
            shared_cpus: state.as_ref().map(|it| it.shared.to_string()).unwrap_or_default(),
            exclusive_pods: state.as_ref().map_or(0, |it| it.exclusive.len()),
            leaves_cpu_max: config.leaves_cpu_max(),
            cpu_manager_policy: state.map(|it| it.policy).or(config.cpu_manager_policy),
            pod_resources: root.path(&format!("{KUBELET_DIR}/{POD_RESOURCES}")).exists(),
            error,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn a_kubelet_is_told_by_its_folder_and_its_policy_by_its_state() {
        let tree = Tree::new();
        assert_eq!(Kubelet::read(tree.root()), None);
        tree.write("var/lib/kubelet/config.yaml", "cpuManagerPolicy: none\ncpuCFSQuota: false\n");
        let found = Kubelet::read(tree.root()).unwrap();
        assert_eq!((found.cpu_manager_policy.as_deref(), found.leaves_cpu_max), (Some("none"), true));
        let state =
            r#"{"policyName":"static","defaultCpuSet":"0,3","entries":{"u":{"c":"1-2"}},"checksum":1}"#;
        tree.write("var/lib/kubelet/cpu_manager_state", state);
        let found = Kubelet::read(tree.root()).unwrap();
        assert_eq!(found.cpu_manager_policy.as_deref(), Some("static"));
        assert_eq!((&*found.exclusive_cpus, &*found.shared_cpus, found.exclusive_pods), ("1-2", "0,3", 1));
        tree.write("var/lib/kubelet/cpu_manager_state", "{");
        let error = Kubelet::read(tree.root()).unwrap().error.unwrap();
        assert!(error.contains("/var/lib/kubelet/cpu_manager_state"), "{error}");
    }
}
