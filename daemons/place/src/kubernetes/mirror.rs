//! The cluster as the API server tells it: lists and watch events in, changes of an inventory out.
//!
//! Pure: no clock, no network; a recorded stream gives the same changes every time.
//!
//! **What is relied on.** A watch tells what happened to one object in the order in which it happened, and
//! goes on after the list that it follows ("Kubernetes API Concepts", *Efficient detection of changes*).
//! Resource versions are opaque here: two of one object are compared for equality, never for order, so that
//! this also holds where they may not be ordered (before Kubernetes 1.35). A uid never comes back. A pod that
//! was bound is never unbound, and one that has ended (`Succeeded`, `Failed`) never runs again. So these are
//! ignored, whatever brings them:
//!
//! * an object of a version that is known already: told twice;
//! * an object whose uid was told gone, or ended: told late;
//! * the end of an object that another of its name has replaced already: told late;
//! * a pod without a node, of a uid that has one: told late.
//!
//! What is left is an older version of a node that is still there, or of a pod whose requests were changed in
//! place: within one watch that does not come, and the next event or list mends it.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::Arc;

use ballast_placement::inventory::{HostSpec, NamedHost, NamedVm, Placed, Snapshot, VmSpec};
use ballast_placement::{Expected, HostState, MemoryKb, MilliCores, Resources};
use ballast_types::Instant;

use super::demand::{Amount, allocatable, requests};
use super::hints::{Predict, RefusedHint, criticality, hints, workload};
use ballast_runtime::kubernetes::object::{Meta, Node, Object as _, Pod};

/// So many uids that are gone are remembered: more than can be told late.
const GONE_KEPT: usize = 10_000;

/// What an inventory is to be told. Names are those of nodes, and `namespace/name` of pods.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change {
    All(Snapshot),
    /// A node, new or otherwise than before.
    SetHost(NamedHost),
    /// A node has gone; its pods were removed before.
    RemoveHost(Arc<str>),
    /// A pod holds its share of a node.
    Put(Placed),
    /// A pod holds nothing any more.
    Remove(Arc<str>),
}

/// What became of an object that was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Taken,
    Repeated,
    Late,
    /// It cannot be read: what was known of it stays, and nothing is known where it is new.
    Refused(String),
}

/// Whether a node can have a pod, by what is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Fits,
    /// The node is not known, or not what it has.
    Unknown,
    /// Not now; it could if others left.
    Full(String),
    /// Not even if it were empty, or it is closed to the pod.
    Never(String),
}

impl Verdict {
    pub(crate) fn fails(&self) -> bool {
        matches!(self, Self::Full(_) | Self::Never(_))
    }
}

pub(crate) struct Reading<'a> {
    /// The node's label that names its chassis.
    pub(crate) chassis_label: &'a str,
    /// What the names of hints' labels begin with.
    pub(crate) label_prefix: &'a str,
    /// Asked for what no label tells.
    pub(crate) predict: Predict<'a>,
    /// The current time: the start of pods without `creationTimestamp`.
    pub(crate) now: Instant,
}

/// A pod as an inventory is asked or told of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Read {
    /// What it takes and what to reckon with.
    pub(crate) spec: VmSpec,
    pub(crate) amount: Amount,
    /// Labels that mean nothing.
    pub(crate) refused: Vec<RefusedHint>,
    /// What it is, as its label says.
    pub(crate) criticality: Option<String>,
}

/// Which object it is, in which version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ident {
    /// A node's name; a pod's `namespace/name`. Empty where there is none.
    pub(crate) name: String,
    pub(crate) uid: String,
    version: String,
}

impl Ident {
    fn of(meta: &Meta, name: String) -> Self {
        let named = !meta.name.is_empty();
        let name = Some(name).filter(|_| named).unwrap_or_default();
        Self { name, uid: meta.uid.clone(), version: meta.resource_version.clone() }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ObservedNode {
    ident: Ident,
    /// Why not, where it cannot be read.
    read: Result<ReadNode, String>,
}

#[derive(Clone, Debug, PartialEq)]
struct ReadNode {
    allocatable: Amount,
    /// For the inventory; none before it tells what it has.
    host: Option<HostSpec>,
    cordoned: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ObservedPod {
    pub(crate) ident: Ident,
    pub(crate) holds: Holds,
    since: Instant,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Holds {
    /// It waits for a node.
    Nothing,
    Ended,
    Share {
        node: String,
        /// How much; why not, where it cannot be read.
        read: Result<Box<Read>, String>,
    },
}

impl Reading<'_> {
    pub(crate) fn node(&self, node: &Node) -> ObservedNode {
        let ident = Ident::of(&node.metadata, node.metadata.name.clone());
        let read = allocatable(node).map(|allocatable| ReadNode {
            allocatable,
            host: host(node, allocatable, self.chassis_label),
            cordoned: node.spec.unschedulable,
        });
        ObservedNode { ident, read }
    }

    pub(crate) fn pod(&self, pod: &Pod) -> ObservedPod {
        let node = &pod.spec.node_name;
        let holds = if pod.is_over() {
            Holds::Ended
        } else if node.is_empty() {
            Holds::Nothing
        } else {
            Holds::Share { node: node.clone(), read: self.request(pod).map(Box::new) }
        };
        ObservedPod { ident: Ident::of(pod.meta(), pod.key()), holds, since: pod.since().unwrap_or(self.now) }
    }

    /// Reads what a pod asks for. The error names what is no quantity, or is more than any node has.
    pub(crate) fn request(&self, pod: &Pod) -> Result<Read, String> {
        let amount = requests(pod)?;
        let (hints, refused) = hints(pod, amount, self.label_prefix, self.predict);

        // To the inventory's units: a pod takes no less than it asks for, and never nothing at all.
        let cores = MilliCores::from_milli(amount.milli_cpu.max(1));
        let memory = MemoryKb::from_kb(amount.bytes.div_ceil(1000));
        let (Some(cores), Some(memory)) = (cores, memory) else {
            let Amount { milli_cpu, bytes } = amount;
            return Err(format!("{milli_cpu}m CPU and {bytes} bytes: more than any node has"));
        };

        let Expected { known, class, p95 } = hints.expected;
        let spec = VmSpec {
            deployment: Some(workload(pod)),
            tenant: Some(pod.metadata.namespace.clone()).filter(|name| !name.is_empty()),
            known,
            class,
            p95,
            lifetime: hints.lifetime,
            ..VmSpec::new(Resources::new(cores, memory))
        };

        let criticality = pod.metadata.labels.get(&criticality(self.label_prefix)).cloned();
        Ok(Read { spec, amount, refused, criticality })
    }
}

#[derive(Clone, Debug)]
struct NodeEntry {
    uid: String,
    version: String,
    read: ReadNode,
}

/// A pod that holds its share of a node, known or not.
#[derive(Clone, Debug)]
struct PodEntry {
    uid: String,
    version: String,
    node: Arc<str>,
    amount: Amount,
    spec: VmSpec,
    since: Instant,
}

/// What pods hold of a node.
#[derive(Clone, Debug, Default)]
struct Load {
    pods: BTreeSet<Arc<str>>,
    sum: Amount,
}

/// Uids that were told gone since the last list, so many as are kept.
#[derive(Debug, Default)]
struct Gone {
    order: VecDeque<String>,
    uids: HashSet<String>,
}

impl Gone {
    fn remember(&mut self, uid: &str) {
        if self.uids.insert(uid.to_owned()) {
            self.order.push_back(uid.to_owned());
        }
        if self.order.len() > GONE_KEPT
            && let Some(oldest) = self.order.pop_front()
        {
            self.uids.remove(&oldest);
        }
    }
}

/// The nodes, and the pods that hold a share of one.
#[derive(Debug, Default)]
pub(crate) struct Mirror {
    nodes: BTreeMap<Arc<str>, NodeEntry>,
    pods: BTreeMap<Arc<str>, PodEntry>,
    /// By the node's name, also of nodes that are not there.
    loads: BTreeMap<Arc<str>, Load>,
    gone_nodes: Gone,
    gone_pods: Gone,
    nodes_listed: bool,
    pods_listed: bool,
    changes: Vec<Change>,
}

impl Mirror {
    /// What has changed since this was last asked; nothing before nodes and pods were both listed.
    pub(crate) fn changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// How many nodes there are, and how many of them are cordoned.
    pub(crate) fn nodes(&self) -> (usize, usize) {
        (self.nodes.len(), self.nodes.values().filter(|node| node.read.cordoned).count())
    }

    /// How many pods hold a share of a node, and how many of them of one that is not known.
    pub(crate) fn pods(&self) -> (usize, usize) {
        let lost = self.loads.iter().filter(|(name, _)| self.host(name).is_none());
        (self.pods.len(), lost.map(|(_, load)| load.pods.len()).sum())
    }

    /// A node's name as it is kept, if it is known with what it has.
    pub(crate) fn known(&self, name: &str) -> Option<Arc<str>> {
        let (name, node) = self.nodes.get_key_value(name)?;
        node.read.host.is_some().then(|| Arc::clone(name))
    }

    /// Whether a node can have a pod that asks for this.
    pub(crate) fn verdict(&self, node: &str, request: Amount, tolerates_cordon: bool) -> Verdict {
        let Some(entry) = self.nodes.get(node).filter(|entry| entry.read.host.is_some()) else {
            return Verdict::Unknown;
        };
        let has = entry.read.allocatable;
        if let Some(why) = too_little(has, request, "allocatable") {
            return Verdict::Never(why);
        }
        if entry.read.cordoned && !tolerates_cordon {
            return Verdict::Never("cordoned".into());
        }
        let mut free = has;
        free -= self.loads.get(node).map(|load| load.sum).unwrap_or_default();
        too_little(free, request, "free").map_or(Verdict::Fits, Verdict::Full)
    }

    pub(crate) fn list_nodes(&mut self, nodes: Vec<ObservedNode>) -> Vec<Effect> {
        self.nodes.clear();
        // A list is newer than all that was told before it: nothing of that can come late.
        self.gone_nodes = Gone::default();
        self.nodes_listed = false;
        let told = nodes.into_iter().map(|node| self.node_is(node)).collect();
        self.nodes_listed = true;
        self.all();
        told
    }

    pub(crate) fn list_pods(&mut self, pods: Vec<ObservedPod>) -> Vec<Effect> {
        self.pods.clear();
        self.loads.clear();
        self.gone_pods = Gone::default();
        self.pods_listed = false;
        let told = pods.into_iter().map(|pod| self.pod_is(pod)).collect();
        self.pods_listed = true;
        self.all();
        told
    }

    pub(crate) fn node_is(&mut self, node: ObservedNode) -> Effect {
        let ObservedNode { ident, read } = node;
        let before = self.nodes.get(&*ident.name).map(|n| (&*n.uid, &*n.version));
        if let Some(told) = known_already(&ident, &self.gone_nodes, before) {
            return told;
        }
        let Ident { name, uid, version } = ident;
        let read = match read {
            Ok(read) => read,
            Err(why) => return Effect::Refused(format!("node {name}: {why}")),
        };

        let (after, name) = (read.host.clone(), Arc::<str>::from(name));
        let entry = NodeEntry { uid, version, read };
        let before = self.nodes.insert(Arc::clone(&name), entry).and_then(|entry| entry.read.host);

        if before == after {
            return Effect::Taken;
        }
        let Some(spec) = after else {
            self.lose_host(&name);
            return Effect::Taken;
        };

        self.change(|_| Change::SetHost(NamedHost { name: name.to_string(), spec }));

        if before.is_none() {
            // They were there before their node was known.
            for pod in self.pods_of(&name) {
                self.change(|mirror| mirror.put(&pod));
            }
        }

        Effect::Taken
    }

    /// A node has gone. Its pods hold their share of it until they are told gone themselves.
    pub(crate) fn node_gone(&mut self, node: &ObservedNode) -> Effect {
        let Ident { name, uid, .. } = &node.ident;
        if let Some(why) = unnamed(&node.ident) {
            return Effect::Refused(why);
        }
        self.gone_nodes.remember(uid);
        match self.nodes.get(&**name).map(|before| before.uid == *uid) {
            Some(true) => {
                let entry = self.nodes.remove_entry(&**name);
                if let Some((name, NodeEntry { read: ReadNode { host: Some(_), .. }, .. })) = entry {
                    self.lose_host(&name);
                }
                Effect::Taken
            }
            Some(false) => Effect::Late,
            None => Effect::Repeated,
        }
    }

    pub(crate) fn pod_is(&mut self, pod: ObservedPod) -> Effect {
        let ObservedPod { ident, holds, since } = pod;
        let before = self.pods.get(&*ident.name);
        let version = before.map(|p| (&*p.uid, &*p.version));

        if let Some(told) = known_already(&ident, &self.gone_pods, version) {
            return told;
        }
        let same = before.is_some_and(|before| before.uid == ident.uid);
        let Ident { name, uid, version } = ident;
        let (node, read) = match holds {
            Holds::Nothing if same => return Effect::Late,
            Holds::Nothing => {
                // Another of its name has ended unseen.
                self.drop_pod(&name);
                return Effect::Taken;
            }
            Holds::Ended => {
                self.drop_pod(&name);
                self.gone_pods.remember(&uid);
                return Effect::Taken;
            }
            Holds::Share { node, read } => (node, read),
        };

        let Read { spec, amount, .. } = match read {
            Ok(read) => *read,
            Err(why) => return Effect::Refused(format!("pod {name}: {why}")),
        };

        if let Some(before) = self.pods.get_mut(&*name)
            && same
            && (&*before.node, &before.spec, before.amount) == (&*node, &spec, amount)
        {
            before.version = version;
            return Effect::Taken;
        }

        self.drop_pod(&name);
        let name = Arc::<str>::from(name);
        let node = match self.nodes.get_key_value(&*node) {
            Some((name, _)) => Arc::clone(name),
            None => Arc::from(node),
        };

        let load = self.loads.entry(Arc::clone(&node)).or_default();
        load.pods.insert(Arc::clone(&name));
        load.sum += amount;
        self.pods.insert(Arc::clone(&name), PodEntry { uid, version, node, amount, spec, since });
        self.change(|mirror| mirror.put(&name));

        Effect::Taken
    }

    pub(crate) fn pod_gone(&mut self, pod: &ObservedPod) -> Effect {
        let Ident { name, uid, .. } = &pod.ident;
        if let Some(why) = unnamed(&pod.ident) {
            return Effect::Refused(why);
        }
        self.gone_pods.remember(uid);
        match self.pods.get(&**name).map(|before| before.uid == *uid) {
            Some(true) => {
                self.drop_pod(name);
                Effect::Taken
            }
            Some(false) => Effect::Late,
            // It held nothing.
            None => Effect::Taken,
        }
    }

    /// Everything anew, instead of what was not asked for yet.
    pub(crate) fn all(&mut self) {
        self.changes.clear();
        self.change(|mirror| {
            let named = |(name, entry): (&Arc<str>, &NodeEntry)| {
                Some(NamedHost { name: name.to_string(), spec: entry.read.host.clone()? })
            };
            let hosts = mirror.nodes.iter().filter_map(named).collect();
            let vms = mirror.pods.iter().filter_map(|(key, entry)| mirror.placed(key, entry));
            Change::All(Snapshot { hosts, vms: vms.collect() })
        });
    }

    /// Forgets a pod, if it is there.
    fn drop_pod(&mut self, key: &str) {
        let Some((key, entry)) = self.pods.remove_entry(key) else { return };
        if let Some(load) = self.loads.get_mut(&entry.node) {
            load.pods.remove(&key);
            load.sum -= entry.amount;
            if load.pods.is_empty() {
                self.loads.remove(&entry.node);
            }
        }
        if self.host(&entry.node).is_some() {
            self.change(|_| Some(Change::Remove(key)));
        }
    }

    /// The inventory forgets a node, with the pods that it has there.
    fn lose_host(&mut self, name: &Arc<str>) {
        for pod in self.pods_of(name) {
            self.change(|_| Change::Remove(pod));
        }
        self.change(|_| Change::RemoveHost(Arc::clone(name)));
    }

    fn pods_of(&self, node: &str) -> Vec<Arc<str>> {
        self.loads.get(node).into_iter().flat_map(|load| &load.pods).cloned().collect()
    }

    fn host(&self, node: &str) -> Option<&HostSpec> {
        self.nodes.get(node)?.read.host.as_ref()
    }

    /// A pod's place, where its node is known.
    fn put(&self, key: &Arc<str>) -> Option<Change> {
        self.placed(key, self.pods.get(key)?).map(Change::Put)
    }

    fn placed(&self, key: &Arc<str>, entry: &PodEntry) -> Option<Placed> {
        self.host(&entry.node)?;
        let vm = NamedVm { name: key.to_string(), spec: entry.spec.clone() };
        Some(Placed { vm, host: entry.node.to_string(), since: entry.since })
    }

    fn change<C: Into<Option<Change>>>(&mut self, change: impl FnOnce(&Self) -> C) {
        if self.nodes_listed && self.pods_listed {
            let change = change(self).into();
            self.changes.extend(change);
        }
    }
}

/// What there is to say of an object before it is read further, when `before` is the uid and the version
/// known.
fn known_already(ident: &Ident, gone: &Gone, before: Option<(&str, &str)>) -> Option<Effect> {
    if let Some(why) = unnamed(ident) {
        return Some(Effect::Refused(why));
    }
    if gone.uids.contains(&ident.uid) {
        return Some(Effect::Late);
    }
    (before == Some((&*ident.uid, &*ident.version))).then_some(Effect::Repeated)
}

/// Why an object cannot be told from others.
fn unnamed(ident: &Ident) -> Option<String> {
    let Ident { name, uid, version } = ident;
    let missing = [("name", name), ("uid", uid), ("resourceVersion", version)];
    let (field, _) = missing.into_iter().find(|(_, text)| text.is_empty())?;
    Some(format!("object {name:?}: metadata.{field} is missing"))
}

/// A node for the inventory; none before it tells what it has. Memory to the kB below.
fn host(node: &Node, allocatable: Amount, chassis_label: &str) -> Option<HostSpec> {
    let Amount { milli_cpu, bytes } = allocatable;
    let cores = MilliCores::from_milli(milli_cpu).filter(|cores| *cores > MilliCores::ZERO)?;
    let memory = MemoryKb::from_kb(bytes / 1000).filter(|memory| *memory > MemoryKb::ZERO)?;
    let told = node.metadata.labels.get(chassis_label).filter(|name| !name.is_empty());
    // No label's value has a colon: a node without one is a chassis of its own.
    let chassis = told.cloned().unwrap_or_else(|| format!("node:{}", node.metadata.name));
    let state = if node.spec.unschedulable { HostState::Cordoned } else { HostState::Open };
    Some(HostSpec { state, ..HostSpec::new(chassis, Resources::new(cores, memory)) })
}

/// Why `has` does not hold what is asked. As in the scheduler, who asks for nothing finds room everywhere.
pub(crate) fn too_little(has: Amount, request: Amount, what: &str) -> Option<String> {
    let lacks = |has: u64, request: u64| request > 0 && request > has;
    if lacks(has.milli_cpu, request.milli_cpu) {
        return Some(format!("{}m CPU asked, {}m {what}", request.milli_cpu, has.milli_cpu));
    }
    lacks(has.bytes, request.bytes)
        .then(|| format!("{} bytes of memory asked, {} {what}", request.bytes, has.bytes))
}

#[cfg(test)]
mod tests;
