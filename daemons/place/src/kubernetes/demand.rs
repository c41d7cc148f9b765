//! What a pod asks of its node, and what a node has for pods: CPU and memory.
//!
//! Added up as the scheduler does (`k8s.io/component-helpers/resource`, `PodRequests`), to the same
//! thousandths of a core and bytes, so that what is full for one is full for the other.

use std::ops::{AddAssign, SubAssign};

use ballast_runtime::kubernetes::object::{Container, ContainerStatus, Node, Pod, Quantities};
use ballast_runtime::kubernetes::quantity::{milli, whole};

/// CPU and memory. Sums stop at the most that fits, which no node has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    /// Thousandths of a core.
    pub(crate) milli_cpu: u64,
    pub(crate) bytes: u64,
}

impl Amount {
    /// Reads `cpu` and `memory`; what is absent is nothing.
    fn read(from: &Quantities) -> Result<Self, String> {
        let (milli_cpu, bytes) = (told(from, "cpu")?, told(from, "memory")?);
        Ok(Self { milli_cpu: milli_cpu.unwrap_or(0), bytes: bytes.unwrap_or(0) })
    }

    fn max(self, other: Self) -> Self {
        Self { milli_cpu: self.milli_cpu.max(other.milli_cpu), bytes: self.bytes.max(other.bytes) }
    }

    fn plus(mut self, more: Self) -> Self {
        self += more;
        self
    }
}

impl AddAssign for Amount {
    fn add_assign(&mut self, more: Self) {
        self.milli_cpu = self.milli_cpu.saturating_add(more.milli_cpu);
        self.bytes = self.bytes.saturating_add(more.bytes);
    }
}

/// Of what was added before.
impl SubAssign for Amount {
    fn sub_assign(&mut self, less: Self) {
        self.milli_cpu = self.milli_cpu.saturating_sub(less.milli_cpu);
        self.bytes = self.bytes.saturating_sub(less.bytes);
    }
}

/// One of the two resources, if it is told.
fn told(from: &Quantities, name: &str) -> Result<Option<u64>, String> {
    let read = if name == "cpu" { milli } else { whole };
    let value = from.get(name).map(|quantity| read(&quantity.text()));
    value.transpose().map_err(|error| format!("{name}: {error}"))
}

pub(crate) fn allocatable(node: &Node) -> Result<Amount, String> {
    Amount::read(&node.status.allocatable).map_err(|why| format!("status.allocatable.{why}"))
}

/// What a pod holds of its node.
///
/// Containers run together; init containers before them, one by one, beside the sidecars that were started
/// before. While a pod is resized in place, the larger of what it has and what it asks for counts.
pub(crate) fn requests(pod: &Pod) -> Result<Amount, String> {
    let mut sum = Amount::default();
    for container in &pod.spec.containers {
        sum += of_container(container, &pod.status.container_statuses)?;
    }
    let (mut sidecars, mut most) = (Amount::default(), Amount::default());

    for container in &pod.spec.init_containers {
        let own = of_container(container, &pod.status.init_container_statuses)?;
        let beside = sidecars.plus(own);
        if container.restart_policy == "Always" {
            sidecars = beside;
        }
        most = most.max(beside);
    }

    sum = sum.plus(sidecars).max(most);

    // What is asked for the pod as a whole stands for what its containers ask.
    let whole = |name| told(&pod.spec.resources.requests, name);
    let pod_level = |why| format!("spec.resources.requests.{why}");
    sum.milli_cpu = whole("cpu").map_err(pod_level)?.unwrap_or(sum.milli_cpu);
    sum.bytes = whole("memory").map_err(pod_level)?.unwrap_or(sum.bytes);
    let overhead = Amount::read(&pod.spec.overhead).map_err(|why| format!("spec.overhead.{why}"))?;
    Ok(sum.plus(overhead))
}

fn of_container(container: &Container, statuses: &[ContainerStatus]) -> Result<Amount, String> {
    let says = |what: &str, why| format!("container {}: {what}.{why}", container.name);
    let resources = &container.resources;

    // The API server fills in a request that is missing from its limit; so does this.
    let asked = |name| {
        let limit = || told(&resources.limits, name).map_err(|why| says("resources.limits", why));
        let request = told(&resources.requests, name).map_err(|why| says("resources.requests", why))?;
        Ok::<_, String>(request.map_or_else(limit, |it| Ok(Some(it)))?.unwrap_or(0))
    };

    let spec = Amount { milli_cpu: asked("cpu")?, bytes: asked("memory")? };
    let Some(status) = statuses.iter().find(|status| status.name == container.name) else {
        return Ok(spec);
    };
    let has = Amount::read(&status.resources.requests).map_err(|why| says("status.resources", why))?;
    let given = Amount::read(&status.allocated_resources).map_err(|why| says("allocatedResources", why))?;
    Ok(spec.max(has).max(given))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "`json!` gives values")]
    fn pod(spec: Value, status: Value) -> Pod {
        serde_json::from_value(json!({"spec": spec, "status": status})).unwrap()
    }

    /// Containers, each as "name cpu memory"; a name that ends with `+` is that of a sidecar.
    fn containers(all: &[&str]) -> Value {
        let one = |text: &&str| {
            let parts: Vec<_> = text.split(' ').collect();
            let requests = json!({"cpu": parts[1], "memory": parts[2]});
            let policy = if parts[0].ends_with('+') { "Always" } else { "" };
            json!({"name": parts[0], "resources": {"requests": requests}, "restartPolicy": policy})
        };
        all.iter().map(one).collect()
    }

    #[test]
    fn pods_ask_for_what_the_scheduler_reckons_with() {
        const MI: u64 = 1 << 20;
        let two = || json!({"containers": containers(&["a 250m 64Mi", "b 1 128Mi"])});
        let with = |key: &str, value: Value| {
            let mut spec = two();
            spec[key] = value;
            spec
        };
        let init = |all: &[&str]| with("initContainers", containers(all));

        let mut overhead = init(&["i 2 1Mi"]);
        overhead["overhead"] = json!({"cpu": "250m", "memory": "120Mi", "example.com/x": "?"});
        let mut own = with("resources", json!({"requests": {"cpu": "3"}}));
        own["overhead"] = json!({"cpu": "1"});
        let one = |resources: Value| json!({"containers": [{"name": "a", "resources": resources}]});
        let limits = json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"memory": "512Mi"}});
        let resized = json!({"containerStatuses": [
            {"name": "a", "resources": {"requests": {"cpu": "2", "memory": "32Mi"}}},
            {"name": "b", "allocatedResources": {"cpu": "1", "memory": "256Mi"}}]});
        let numbers = json!({"requests": {"cpu": 0.5, "memory": 1048576}});
        let later = init(&["i 2 1Mi", "s+ 500m 100Mi", "j 1500m 250Mi"]);

        for (what, spec, status, milli_cpu, mi) in [
            ("nothing", json!({"containers": [{"name": "a"}]}), json!({}), 0, 0),
            ("containers add up", two(), json!({}), 1250, 192),
            ("an init container asks for more", init(&["i 2 10Mi", "j 10m 300Mi"]), json!({}), 2000, 300),
            ("a sidecar runs with containers and later init containers", later, json!({}), 2000, 350),
            ("sidecars beside containers", init(&["s+ 1 1Mi", "t+ 1 1Mi"]), json!({}), 3250, 194),
            ("overhead on top", overhead, json!({}), 2250, 312),
            ("the pod's own request stands for its containers'", own, json!({}), 4000, 192),
            ("a limit where there is no request", one(limits), json!({}), 2000, 512),
            ("a resize that is not done yet", two(), resized, 3000, 320),
            ("numbers stand for themselves", one(numbers), json!({}), 500, 1),
        ] {
            let sum = requests(&pod(spec, status)).unwrap();
            assert_eq!(sum, Amount { milli_cpu, bytes: mi * MI }, "{what}");
        }
    }

    #[test]
    fn hostile_quantities_are_refused_by_name_and_never_overflow() {
        for (spec, says) in [
            (
                json!({"containers": containers(&["a -1 1"])}),
                "container a: resources.requests.cpu: \"-1\" is no",
            ),
            (json!({"initContainers": containers(&["i 1 1Zi"])}), "container i: resources.requests.memory: "),
            (json!({"overhead": {"cpu": "x"}}), "spec.overhead.cpu: "),
            (json!({"resources": {"requests": {"memory": ""}}}), "spec.resources.requests.memory: "),
        ] {
            let why = requests(&pod(spec, json!({}))).unwrap_err();
            assert!(why.starts_with(says), "{why}");
        }

        let huge = json!({"containers": containers(&["a 9E 9E", "b 9E 9E", "c 9E 9E"])});
        let sum = requests(&pod(huge, json!({}))).unwrap();
        assert_eq!(sum, Amount { milli_cpu: u64::MAX, bytes: u64::MAX });
    }
}
