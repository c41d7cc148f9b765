//! What is shipped for Kubernetes: whether it fits the API's own schema, and what rights it gives.

use std::collections::BTreeSet;
use std::path::Path;

use ballast_agent::config::{AgentConfig, ConfigFile as _};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, PodSpec, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use serde::Serialize;
use serde::de::{Deserialize as _, DeserializeOwned};
use serde_json::Value;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

fn read(path: &str) -> String {
    std::fs::read_to_string(format!("{ROOT}/{path}")).expect("a shipped file")
}

fn documents(text: &str) -> Vec<Value> {
    serde_yaml_ng::Deserializer::from_str(text).map(|it| Value::deserialize(it).expect("YAML")).collect()
}

/// What of a document is not as the schema has it: a typed object keeps nothing that it does not know.
fn misfits<T: Serialize + DeserializeOwned>(document: &Value) -> Vec<String> {
    fn compare(at: &str, text: &Value, typed: &Value, found: &mut Vec<String>) {
        match (text, typed) {
            (Value::Object(text), Value::Object(typed)) => {
                for (key, value) in text {
                    match typed.get(key) {
                        Some(typed) => compare(&format!("{at}.{key}"), value, typed, found),
                        None => found.push(format!("{at}.{key}: no such field")),
                    }
                }
            }
            (Value::Array(text), Value::Array(typed)) if text.len() == typed.len() => {
                for (n, (value, typed)) in text.iter().zip(typed).enumerate() {
                    compare(&format!("{at}[{n}]"), value, typed, found);
                }
            }
            (text, typed) if text == typed => {}
            (text, typed) => found.push(format!("{at}: {text}, read as {typed}")),
        }
    }
    let mut found = vec![];
    match serde_json::from_value::<T>(document.clone()) {
        Ok(typed) => compare("", document, &serde_json::to_value(typed).expect("JSON"), &mut found),
        Err(error) => found.push(error.to_string()),
    }
    found
}

fn misfits_of(document: &Value) -> Vec<String> {
    match document["kind"].as_str() {
        Some("ServiceAccount") => misfits::<ServiceAccount>(document),
        Some("ClusterRole") => misfits::<ClusterRole>(document),
        Some("ClusterRoleBinding") => misfits::<ClusterRoleBinding>(document),
        Some("Role") => misfits::<Role>(document),
        Some("RoleBinding") => misfits::<RoleBinding>(document),
        Some("ConfigMap") => misfits::<ConfigMap>(document),
        Some("Deployment") => misfits::<Deployment>(document),
        Some("DaemonSet") => misfits::<DaemonSet>(document),
        kind => vec![format!("kind = {kind:?}: one that this test knows")],
    }
}

#[test]
fn every_manifest_fits_the_schema_of_kubernetes() {
    for (file, count) in [("agent-daemonset", 4), ("deployment", 9)] {
        let text = read(&format!("config/kubernetes/{file}.yaml"));
        let all = documents(&text);
        assert_eq!(all.len(), count, "{file}");
        for document in &all {
            assert_eq!(misfits_of(document), Vec::<String>::new(), "{file}: {}", document["kind"]);
        }
        // A slip is found.
        let slip = documents(&text.replace("readOnly: true", "readonly: true").replace("list", "lists"));
        let found: Vec<_> = slip.iter().flat_map(misfits_of).collect();
        assert!(found.iter().any(|it| it.ends_with(".readonly: no such field")), "{found:?}");
    }
}

/// The agent of a Kubernetes node has the rights that its work needs, and the image that is made.
#[test]
fn the_agents_daemon_set_has_no_right_that_its_work_does_not_need() {
    let all = documents(&read("config/kubernetes/agent-daemonset.yaml"));
    let rules = serde_json::json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]);
    assert_eq!(all[1]["rules"], rules);
    let pod: PodSpec = serde_json::from_value(all[3]["spec"]["template"]["spec"].clone()).expect("a pod");
    let hosts = [pod.host_network, pod.host_pid, pod.host_ipc];
    assert!(hosts.iter().all(Option::is_none) && pod.containers.len() == 1 && pod.init_containers.is_none());

    let agent = &pod.containers[0];
    assert_eq!(agent.image.as_deref(), Some(concat!("ballast-agent:", env!("CARGO_PKG_VERSION"))));
    let security = agent.security_context.as_ref().expect("a security context");
    assert_eq!((security.privileged, security.allow_privilege_escalation), (Some(false), Some(false)));
    assert_eq!(security.read_only_root_filesystem, Some(true));
    let capabilities = security.capabilities.as_ref().expect("capabilities");
    assert_eq!((&capabilities.add, &capabilities.drop), (&None, &Some(vec!["ALL".to_owned()])));

    // What is mounted is there, at its own path below the root, and only these folders may be written.
    let mounts = agent.volume_mounts.as_deref().unwrap_or_default();
    let mut written = BTreeSet::new();
    let mut folders = BTreeSet::new();
    for volume in pod.volumes.as_deref().unwrap_or_default() {
        let path = &volume.host_path.as_ref().expect("a folder of the host").path;
        let mount = mounts.iter().find(|it| it.name == volume.name).expect("a volume that is mounted");
        let is_machine = ["/sys", "/proc", "/var/lib/kubelet"].iter().any(|top| path.starts_with(top));
        assert_eq!(mount.mount_path, if is_machine { format!("/host{path}") } else { path.clone() });
        assert!(mount.mount_propagation.is_none());
        if mount.read_only != Some(true) {
            written.insert(path.as_str());
        }
        folders.insert(path.as_str());
    }
    let may = ["/sys/devices/system/cpu", "/sys/devices/virtual/powercap", "/run/ballast-agent"];
    assert_eq!(written, may.into_iter().chain(["/var/lib/ballast-agent"]).collect());
    assert_eq!(mounts.len(), folders.len());

    // The configuration that the page shows for a node is one that the agent takes, and lives where it is mounted.
    let page = read("docs/operate/kubernetes-nodes.md");
    let mut blocks = page.split("```toml\n").filter_map(|block| block.split("```").next());
    let toml = blocks.find(|block| block.contains("root = ")).expect("a configuration");
    let config = AgentConfig::parse("agent.toml", toml).expect("a configuration that is accepted");
    assert_eq!(config.daemon.root, Path::new("/host"));
    assert!(config.kubernetes.is_some() && config.daemon.tls.is_some() && !config.daemon.realtime);
    let journal = config.journal_folders();
    for folder in [journal.first(), &config.daemon.state_dir] {
        assert!(written.contains(folder.to_str().expect("UTF-8")), "{}", folder.display());
    }
}
