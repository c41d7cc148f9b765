//! What a pod asks of its node, and what a node has for pods: CPU and memory.
//!
//! Added up as the scheduler does (`k8s.io/component-helpers/resource`, `PodRequests`), to the same
//! thousandths of a core and bytes, so that what is full for one is full for the other.

use std::ops::{AddAssign, SubAssign};

use super::object::{Container, ContainerStatus, Node, Pod, Quantities};
use super::quantity::{milli, whole};

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

    /// The larger of each.
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

/// What pods may have of a node.
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

    fn asks(name: &str, cpu: &str, memory: &str) -> Value {
        json!({"name": name, "resources": {"requests": {"cpu": cpu, "memory": memory}}})
    }

    fn sidecar(name: &str, cpu: &str, memory: &str) -> Value {
        let mut it = asks(name, cpu, memory);
        it["restartPolicy"] = json!("Always");
        it
    }

    #[test]
    fn pods_ask_for_what_the_scheduler_reckons_with() {
        const MI: u64 = 1 << 20;
        let two = [asks("a", "250m", "64Mi"), asks("b", "1", "128Mi")];
        for (what, spec, status, milli_cpu, mi) in [
            ("nothing", json!({"containers": [{"name": "a"}]}), json!({}), 0, 0),
            ("containers add up", json!({"containers": two}), json!({}), 1250, 192),
            (
                "an init container that asks for more",
                json!({"containers": two, "initContainers": [asks("i", "2", "10Mi"), asks("j", "10m",
                    "300Mi")]}),
                json!({}),
                2000,
                300,
            ),
            (
                "a sidecar runs with containers and later init containers",
                json!({"containers": two,
                    "initContainers": [asks("i", "2", "1Mi"), sidecar("s", "500m", "100Mi"), asks("j",
                        "1500m", "250Mi")]}),
                json!({}),
                2000,
                350,
            ),
            (
                "sidecars beside containers",
                json!({"containers": two, "initContainers": [sidecar("s", "1", "1Mi"), sidecar("t", "1",
                    "1Mi")]}),
                json!({}),
                3250,
                194,
            ),
            (
                "overhead on top",
                json!({"containers": two, "initContainers": [asks("i", "2", "1Mi")],
                    "overhead": {"cpu": "250m", "memory": "120Mi", "example.com/x": "?"}}),
                json!({}),
                2250,
                312,
            ),
            (
                "the pod's own request stands for its containers'",
                json!({"containers": two, "resources": {"requests": {"cpu": "3"}}, "overhead": {"cpu": "1"}}),
                json!({}),
                4000,
                192,
            ),
            (
                "a limit where there is no request",
                json!({"containers": [{"name": "a", "resources": {"limits": {"cpu": "2", "memory": "1Gi"},
                    "requests": {"memory": "512Mi"}}}]}),
                json!({}),
                2000,
                512,
            ),
            (
                "a resize that is not done yet",
                json!({"containers": two}),
                json!({"containerStatuses": [
                    {"name": "a", "resources": {"requests": {"cpu": "2", "memory": "32Mi"}}},
                    {"name": "b", "allocatedResources": {"cpu": "1", "memory": "256Mi"}}]}),
                3000,
                320,
            ),
            (
                "numbers stand for themselves",
                json!({"containers": [{"name": "a",
                "resources": {"requests": {"cpu": 0.5, "memory": 1048576}}}]}),
                json!({}),
                500,
                1,
            ),
        ] {
            let sum = requests(&pod(spec, status)).unwrap();
            assert_eq!(sum, Amount { milli_cpu, bytes: mi * MI }, "{what}");
        }
    }

    #[test]
    fn hostile_quantities_are_refused_by_name_and_never_overflow() {
        for (spec, says) in [
            (
                json!({"containers": [asks("a", "-1", "1")]}),
                "container a: resources.requests.cpu: \"-1\" is no",
            ),
            (json!({"initContainers": [asks("i", "1", "1Zi")]}), "container i: resources.requests.memory: "),
            (json!({"overhead": {"cpu": "x"}}), "spec.overhead.cpu: "),
            (json!({"resources": {"requests": {"memory": ""}}}), "spec.resources.requests.memory: "),
        ] {
            let why = requests(&pod(spec, json!({}))).unwrap_err();
            assert!(why.starts_with(says), "{why}");
        }

        let huge =
            json!({"containers": [asks("a", "9E", "9E"), asks("b", "9E", "9E"), asks("c", "9E", "9E")]});
        let sum = requests(&pod(huge, json!({}))).unwrap();
        assert_eq!(sum, Amount { milli_cpu: u64::MAX, bytes: u64::MAX });
    }
}
