//! Whose CPUs are whose, by what the kubelet tells in two places. Pure.
//!
//! A CPU counts as a pod's only where nothing speaks against it. Whatever is in doubt is disputed, and a CPU that is
//! disputed is not slowed: it may be a user-facing pod's.

use std::collections::{BTreeMap, BTreeSet};

use ballast_hw::CpuList;
use ballast_hw::kubelet::CpuState;

use super::node_pods::NodePod;
use super::podresources::ListPodResourcesResponse;

/// The exclusive CPUs of every pod that has some, and what is in doubt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Assigned {
    /// By the UID that the kubelet knows.
    pub(super) pods: BTreeMap<String, CpuList>,
    /// CPUs that are not slowed, by the reason.
    pub(super) disputed: BTreeMap<String, CpuList>,
}

/// Who claims a CPU: a known pod by its UID, or words for one that is not.
type Claims = BTreeMap<u32, BTreeSet<Result<String, String>>>;

/// Puts together what the kubelet's socket and its state say, as far as each could be read. `pods` are those that the
/// API server knows.
pub(super) fn assigned(
    listed: Option<&ListPodResourcesResponse>,
    state: Option<&CpuState>,
    pods: &BTreeMap<String, NodePod>,
) -> Assigned {
    let by_list = listed.map(|it| listed_claims(it, pods));
    let by_state = state.map(|it| state_claims(it, pods));
    let claims = [&by_list, &by_state];
    let cpus: BTreeSet<u32> =
        claims.into_iter().flatten().flat_map(|claims| claims.keys().copied()).collect();

    let mut all = Assigned::default();
    for cpu in cpus {
        let told = claims.into_iter().flatten().map(|claims| claims.get(&cpu).cloned().unwrap_or_default());
        let shared = state.is_some_and(|state| state.shared.contains(cpu));
        match owner(told.collect(), shared) {
            Ok(uid) => all.pods.entry(uid).or_default().extend([cpu]),
            Err(why) => all.disputed.entry(why).or_default().extend([cpu]),
        }
    }
    all
}

/// The one pod that a CPU is given to. Fails with the reason why that is in doubt.
fn owner(told: Vec<BTreeSet<Result<String, String>>>, shared: bool) -> Result<String, String> {
    if let Some(why) = told.iter().flatten().find_map(|claim| claim.as_ref().err()) {
        return Err(why.clone());
    }
    if told.iter().any(|claims| claims.len() > 1) {
        return Err("two pods claim them".into());
    }
    if shared || told.windows(2).any(|two| two[0] != two[1]) {
        return Err("the kubelet's socket and its cpu_manager_state disagree".into());
    }
    let first = told.into_iter().flatten().flatten().next();
    first.ok_or_else(|| "nobody claims them".into())
}

fn listed_claims(answer: &ListPodResourcesResponse, pods: &BTreeMap<String, NodePod>) -> Claims {
    let mut claims = Claims::new();
    for pod in &answer.pod_resources {
        let key = format!("{}/{}", pod.namespace, pod.name);
        let uid = pods.values().find(|it| it.key == key).map(|it| it.uid.clone());
        let claim = uid.ok_or_else(|| format!("the API server does not know their pod {key}"));
        for cpu in pod.containers.iter().flat_map(|container| &container.cpu_ids) {
            // No CPU has such a number: then it is nobody's either.
            let Ok(cpu) = u32::try_from(*cpu) else { continue };
            claims.entry(cpu).or_default().insert(claim.clone());
        }
    }
    claims
}

fn state_claims(state: &CpuState, pods: &BTreeMap<String, NodePod>) -> Claims {
    let mut claims = Claims::new();
    for (uid, cpus) in &state.exclusive {
        let is_known = pods.contains_key(uid);
        let claim = is_known
            .then(|| uid.clone())
            .ok_or_else(|| format!("the API server does not know their pod {uid}"));
        for cpu in cpus.iter() {
            claims.entry(cpu).or_default().insert(claim.clone());
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use ballast_types::{VmClass, VmId};
    use proptest::collection::{btree_map, btree_set, vec};
    use proptest::prelude::*;

    use super::super::podresources::{ContainerResources, PodResources};
    use super::*;

    fn known(uids: &[&str]) -> BTreeMap<String, NodePod> {
        let pod = |uid: &&str| {
            let pod = NodePod {
                uid: (*uid).into(),
                key: format!("n/{uid}"),
                id: VmId::new(uid).unwrap(),
                namespace: "n".into(),
                class: VmClass::NonUserFacing,
                by: String::new(),
                cpus: 1,
            };
            ((*uid).to_owned(), pod)
        };
        uids.iter().map(pod).collect()
    }
    fn listed(pods: &[(&str, &[i64])]) -> ListPodResourcesResponse {
        let pod = |(name, cpus): &(&str, &[i64])| PodResources {
            name: (*name).into(),
            namespace: "n".into(),
            containers: vec![ContainerResources { name: "c".into(), cpu_ids: cpus.to_vec() }],
        };
        ListPodResourcesResponse { pod_resources: pods.iter().map(pod).collect() }
    }
    fn state(shared: &str, pods: &[(&str, &str)]) -> CpuState {
        let exclusive = pods.iter().map(|(uid, cpus)| ((*uid).to_owned(), cpus.parse().unwrap())).collect();
        CpuState { policy: "static".into(), shared: shared.parse().unwrap(), exclusive }
    }
    fn shown(all: &BTreeMap<String, CpuList>) -> Vec<String> {
        all.iter().map(|(of, cpus)| format!("{cpus}: {of}")).collect()
    }

    #[test]
    fn what_both_say_counts_and_either_alone_where_the_other_is_missing() {
        let pods = known(&["a", "b"]);
        let (list, state) = (listed(&[("a", &[1, 2]), ("b", &[])]), state("0,3", &[("a", "1-2")]));
        for (list, state) in [(Some(&list), Some(&state)), (Some(&list), None), (None, Some(&state))] {
            let all = assigned(list, state, &pods);
            assert_eq!((shown(&all.pods), all.disputed.len()), (vec!["1-2: a".into()], 0));
        }
        assert_eq!(assigned(None, None, &pods), Assigned::default());
    }

    #[test]
    fn a_cpu_in_doubt_is_nobodys_and_the_reason_is_told() {
        let pods = known(&["a", "b"]);
        let disagree = "the kubelet's socket and its cpu_manager_state disagree";
        for (list, state, given, disputed) in [
            // Of each source one CPU that the other does not know of.
            (
                Some(listed(&[("a", &[1, 2])])),
                Some(state("0", &[("a", "2-3")])),
                vec!["2: a"],
                vec![format!("1,3: {disagree}")],
            ),
            (
                Some(listed(&[("a", &[1])])),
                Some(state("0", &[("b", "1")])),
                vec![],
                vec![format!("1: {disagree}")],
            ),
            (
                Some(listed(&[("a", &[1, 2]), ("b", &[2])])),
                None,
                vec!["1: a"],
                vec!["2: two pods claim them".into()],
            ),
            (None, Some(state("0-1", &[("a", "1-2")])), vec!["2: a"], vec![format!("1: {disagree}")]),
            (
                Some(listed(&[("x", &[4]), ("a", &[-1])])),
                None,
                vec![],
                vec!["4: the API server does not know their pod n/x".into()],
            ),
            (
                None,
                Some(state("", &[("gone", "4"), ("a", "5")])),
                vec!["5: a"],
                vec!["4: the API server does not know their pod gone".into()],
            ),
        ] {
            let all = assigned(list.as_ref(), state.as_ref(), &pods);
            assert_eq!(
                (shown(&all.pods), shown(&all.disputed)),
                (given.iter().map(|it| (*it).to_owned()).collect(), disputed)
            );
        }
    }

    proptest! {
        /// Whatever two sources say: no CPU is two pods', none is a pod's that any source denies, none is shared.
        #[test]
        fn no_cpu_is_given_that_a_source_denies(
            list in vec((0usize..4, vec(0i64..12, 0..5)), 0..5),
            entries in btree_map(0usize..4, btree_set(0u32..12, 0..5), 0..4),
            shared in btree_set(0u32..12, 0..4),
        ) {
            let names = ["a", "b", "c", "x"];
            let pods = known(&names[..3]);
            let list: Vec<_> = list.iter().map(|(n, cpus)| (names[*n], &cpus[..])).collect();
            let list = listed(&list);
            let entry = |(n, cpus): (&usize, &BTreeSet<u32>)| {
                (names[*n].to_owned(), cpus.iter().copied().collect())
            };
            let state = CpuState {
                policy: "static".into(),
                shared: shared.iter().copied().collect(),
                exclusive: entries.iter().map(entry).collect(),
            };
            let all = assigned(Some(&list), Some(&state), &pods);
            for (uid, cpus) in &all.pods {
                for cpu in cpus.iter() {
                    prop_assert!(!shared.contains(&cpu) && pods.contains_key(uid));
                    let says = |pod: &PodResources| pod.containers[0].cpu_ids.contains(&i64::from(cpu));
                    let by_list = list.pod_resources.iter().filter(|it| says(it)).map(|it| &it.name);
                    let by_state = state.exclusive.iter().filter(|(_, it)| it.contains(cpu)).map(|it| it.0);
                    let [by_list, by_state] = [by_list.collect(), by_state.collect::<BTreeSet<_>>()];
                    prop_assert!(by_list == by_state && by_list == BTreeSet::from([uid]));
                }
            }
        }
    }
}
