//! What would have been chosen, kept until it is seen what was.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// So many standings of nodes are kept for pods that are not bound yet; the oldest pods go first.
const STANDINGS_KEPT: usize = 1_000_000;

/// What would have been chosen for pods that are not bound yet.
#[derive(Debug, Default)]
pub(crate) struct Shadow {
    /// By the pod's uid.
    standings: HashMap<String, Standings>,
    /// Uids with the number of their question, the oldest first; one that was asked again stands here twice.
    order: VecDeque<(String, u64)>,
    questions: u64,
    kept: usize,
}

#[derive(Debug)]
struct Standings {
    question: u64,
    /// What is said of the best one.
    why: String,
    /// By name, with each node's standing.
    nodes: Vec<(Arc<str>, usize)>,
}

/// What was chosen, beside what would have been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// One of the best, the first by name.
    pub(crate) best: Arc<str>,
    /// How the chosen one stood: 1 is the best. `None` where it was not asked about, or was refused.
    pub(crate) standing: Option<usize>,
    /// How many standings there were: the last one's.
    pub(crate) of: usize,
    /// What the rules said of the best one.
    pub(crate) why: String,
}

impl Shadow {
    /// Keeps what would be chosen for a pod. A pod that is asked for again is chosen for anew.
    pub(crate) fn keep(&mut self, uid: &str, mut nodes: Vec<(Arc<str>, usize)>, why: String) {
        self.forget(uid);
        if nodes.is_empty() {
            return;
        }
        nodes.sort_unstable();
        self.questions += 1;
        self.kept += nodes.len();
        self.order.push_back((uid.to_owned(), self.questions));
        self.standings.insert(uid.to_owned(), Standings { question: self.questions, why, nodes });
        while self.kept > STANDINGS_KEPT || self.order.len() > 2 * self.standings.len() + 1_000 {
            let Some((oldest, question)) = self.order.pop_front() else { break };
            if self.standings.get(&oldest).is_some_and(|kept| kept.question == question) {
                self.forget(&oldest);
            }
        }
    }

    /// A pod is bound; `None` where nothing was asked for it.
    pub(crate) fn bound(&mut self, uid: &str, node: &str) -> Option<Outcome> {
        let Standings { nodes, why, .. } = self.take(uid)?;
        let (best, _) = nodes.iter().min_by_key(|(name, standing)| (*standing, name))?;
        let chosen = nodes.binary_search_by(|(name, _)| (**name).cmp(node)).ok();
        Some(Outcome {
            best: Arc::clone(best),
            standing: chosen.map(|at| nodes[at].1 + 1),
            of: nodes.iter().map(|(_, standing)| standing + 1).max()?,
            why,
        })
    }

    /// A pod has gone, or is asked for anew.
    pub(crate) fn forget(&mut self, uid: &str) {
        drop(self.take(uid));
    }

    fn take(&mut self, uid: &str) -> Option<Standings> {
        let kept = self.standings.remove(uid)?;
        self.kept -= kept.nodes.len();
        Some(kept)
    }

    /// Pods that are not bound yet.
    pub(crate) fn waiting(&self) -> usize {
        self.standings.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(standings: &[(&str, usize)]) -> Vec<(Arc<str>, usize)> {
        standings.iter().map(|(name, standing)| (Arc::from(*name), *standing)).collect()
    }

    #[test]
    fn what_was_chosen_is_told_beside_what_would_have_been() {
        let mut shadow = Shadow::default();
        shadow.keep("u1", nodes(&[("c", 0), ("a", 1), ("b", 0), ("d", 2)]), "why".into());
        shadow.keep("u2", nodes(&[("a", 0)]), "why".into());
        shadow.keep("u3", vec![], "why".into());
        let outcome =
            |best: &str, standing, of| Some(Outcome { best: best.into(), standing, of, why: "why".into() });
        assert_eq!((shadow.waiting(), shadow.bound("u3", "a")), (2, None));
        assert_eq!(shadow.bound("u2", "elsewhere"), outcome("a", None, 1));
        assert_eq!(shadow.bound("u1", "c"), outcome("b", Some(1), 3), "who ties with the best is as good");
        assert_eq!((shadow.bound("u1", "c"), shadow.waiting()), (None, 0), "told once");
        shadow.keep("u1", nodes(&[("a", 0), ("b", 1)]), "why".into());
        shadow.keep("u1", nodes(&[("a", 1), ("b", 0)]), "why".into());
        assert_eq!(shadow.bound("u1", "a"), outcome("b", Some(2), 2), "the last question counts");
    }

    #[test]
    fn pods_that_are_never_bound_do_not_pile_up() {
        let mut shadow = Shadow::default();
        let many: Vec<_> = (0..1_000).map(|n| (Arc::from(format!("n{n:04}")), n)).collect();
        for pod in 0..1_100 {
            shadow.keep(&pod.to_string(), many.clone(), "why".into());
        }
        assert_eq!((shadow.waiting(), shadow.kept), (1_000, STANDINGS_KEPT));
        assert!(shadow.bound("99", "n0000").is_none() && shadow.bound("100", "n0000").is_some());
        for _ in 0..10_000 {
            shadow.keep("again", nodes(&[("a", 0)]), "why".into());
        }
        assert!(shadow.order.len() < 4_000, "{}", shadow.order.len());
    }
}
