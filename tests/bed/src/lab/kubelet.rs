//! A kubelet for tests: its `podresources` socket, its `cpu_manager_state` and its pods' cgroups, in a server's root.
//!
//! The socket speaks gRPC by `h2` alone, as the agent's own client does not.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use ballast_agent::podresources::{ContainerResources, ListPodResourcesResponse, METHOD, PodResources};
use ballast_types::VmId;
use prost::Message as _;
use serde_json::{Value, json};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;

use crate::rig::vm_cgroup;

/// The kubelet's folder in a server's root.
const DIR: &str = "var/lib/kubelet";

/// One pod, as the kubelet and the API server know it.
#[derive(Clone, Debug)]
pub struct PodDouble {
    pub name: String,
    pub uid: String,
    /// The rig's VM that plays it.
    pub vm: VmId,
    /// `Guaranteed`, `Burstable` or `BestEffort`.
    pub qos: &'static str,
    pub labels: Value,
    /// Its exclusive CPUs; none where it shares its own.
    pub cpus: Vec<u32>,
}

impl PodDouble {
    /// As the API server tells it, in the namespace `default`.
    pub fn object(&self, version: u64) -> Value {
        let cpu = self.cpus.len().max(1).to_string();
        json!({"kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": self.name, "namespace": "default", "uid": self.uid,
                "resourceVersion": version.to_string(), "labels": self.labels},
            "spec": {"nodeName": "s01", "containers": [{"name": "main",
                "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}}]},
            "status": {"phase": "Running", "qosClass": self.qos}})
    }

    /// Its cgroup below `sys/fs/cgroup`, as the driver `systemd` names it.
    pub fn cgroup(&self) -> String {
        let unit = self.uid.replace('-', "_");
        match self.qos.to_lowercase().as_str() {
            "guaranteed" => format!("kubepods.slice/kubepods-pod{unit}.slice"),
            qos => format!("kubepods.slice/kubepods-{qos}.slice/kubepods-{qos}-pod{unit}.slice"),
        }
    }
}

pub fn pod_list(pods: &[PodDouble]) -> String {
    let items: Vec<_> = pods.iter().map(|pod| pod.object(1)).collect();
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items})
        .to_string()
}

/// The kubelet; its socket is closed when it is dropped.
pub struct Kubelet {
    root: PathBuf,
    answer: Arc<Mutex<Vec<u8>>>,
    serving: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Kubelet {
    /// One in `root`, which shares `shared` among the pods without CPUs of their own. The pods' groups tell the use
    /// of their VMs; with `limited`, a limit of a pod's bandwidth is its VM's.
    pub fn start(root: &Path, shared: &str, pods: &[PodDouble], limited: bool) -> Self {
        let mut this = Self { root: root.to_owned(), answer: Arc::default(), serving: None };
        fs::create_dir_all(this.at("pod-resources")).expect("a folder");
        for pod in pods {
            let top = root.join("sys/fs/cgroup");
            let (group, vm) = (top.join(pod.cgroup()), top.join(vm_cgroup(&pod.vm)));
            fs::create_dir_all(&group).expect("a group");
            let names =
                ["cpu.stat", "cpu.max", "cpu.max.burst", "cpuset.cpus", "cgroup.events", "memory.max"];
            for name in names {
                let file = group.join(name);
                match name {
                    "cpu.stat" => symlink(vm.join(name), &file).expect("a link"),
                    "cpu.max" if limited => symlink(vm.join(name), &file).expect("a link"),
                    "cpu.max" => fs::write(&file, "max 100000\n").expect("a file"),
                    "cpu.max.burst" => fs::write(&file, "0\n").expect("a file"),
                    _ => fs::write(&file, "\n").expect("a file"),
                }
            }
        }
        this.assign(shared, pods);
        this.serve();
        this
    }

    fn at(&self, name: &str) -> PathBuf {
        self.root.join(DIR).join(name)
    }

    /// Gives out other CPUs: the state is replaced as the kubelet does it, and the socket tells the same.
    pub fn assign(&self, shared: &str, pods: &[PodDouble]) {
        self.write_state(shared, pods);
        self.tell(pods);
    }

    pub fn write_state(&self, shared: &str, pods: &[PodDouble]) {
        let list = |cpus: &[u32]| cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let entries: serde_json::Map<_, _> = (pods.iter().filter(|pod| !pod.cpus.is_empty()))
            .map(|pod| (pod.uid.clone(), json!({"main": list(&pod.cpus)})))
            .collect();
        let state =
            json!({"policyName": "static", "defaultCpuSet": shared, "entries": entries, "checksum": 1});
        let (new, file) = (self.at("new"), self.at("cpu_manager_state"));
        fs::write(&new, state.to_string()).expect("a file");
        fs::rename(new, file).expect("a file");
    }

    pub fn tell(&self, pods: &[PodDouble]) {
        let container = |pod: &PodDouble| ContainerResources {
            name: "main".into(),
            cpu_ids: pod.cpus.iter().map(|cpu| i64::from(*cpu)).collect(),
        };
        let pod = |pod: &PodDouble| PodResources {
            name: pod.name.clone(),
            namespace: "default".into(),
            containers: vec![container(pod)],
        };
        let answer = ListPodResourcesResponse { pod_resources: pods.iter().map(pod).collect() };
        self.tell_message(&answer.encode_to_vec());
    }

    /// The same, with a recorded message.
    pub fn tell_message(&self, message: &[u8]) {
        let mut framed = vec![0];
        framed.extend((message.len() as u32).to_be_bytes());
        framed.extend(message);
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = framed;
    }

    /// Ends it, as a kubelet that is stopped: the socket is gone, its state is still there.
    pub fn stop(&mut self) {
        if let Some((stop, thread)) = self.serving.take() {
            drop(stop);
            thread.join().expect("it ends");
            fs::remove_file(self.at("pod-resources/kubelet.sock")).expect("a socket");
        }
    }

    /// Serves the socket, again after [`Self::stop`].
    pub fn serve(&mut self) {
        let socket = self.at("pod-resources/kubelet.sock");
        let answer = Arc::clone(&self.answer);
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async move {
                let listener = UnixListener::bind(socket).expect("a socket");
                ready.send(()).expect("somebody waits");
                let accept = async {
                    while let Ok((stream, _)) = listener.accept().await {
                        tokio::spawn(answer_all(stream, Arc::clone(&answer)));
                    }
                };
                tokio::select! {
                    () = accept => {}
                    _ = stopped => {}
                }
            });
        });
        is_ready.recv().expect("it serves");
        self.serving = Some((stop, thread));
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.serving.take() {
            drop(stop);
            let _ = thread.join();
        }
    }
}

async fn answer_all(stream: UnixStream, answer: Arc<Mutex<Vec<u8>>>) {
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let head = axum::http::Response::builder().header("content-type", "application/grpc");
        let head = head.body(()).expect("a head");
        let mut trailers = axum::http::HeaderMap::new();
        let is_list = request.uri().path() == METHOD;
        trailers.insert("grpc-status", if is_list { "0" } else { "12" }.parse().expect("a status"));
        let Ok(mut body) = respond.send_response(head, false) else { return };
        let message = answer.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let sent = body.send_data(message.into(), false).and_then(|()| body.send_trailers(trailers));
        if sent.is_err() {
            return;
        }
    }
}
