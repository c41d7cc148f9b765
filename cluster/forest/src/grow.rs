//! Growth of one tree: level by level, or leaf by leaf where the number of leaves is bounded.
//!
//! Leaf by leaf: H. Shi, *Best-first decision tree learning*, University of Waikato, 2007; as LightGBM does.
//!
//! For every feature and open node a histogram is summed; the best split of all features divides the node's
//! rows. Of two siblings only the smaller is summed, the other is the parent less that one.

use core::cmp::Reverse;
use core::ops::Range;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use crate::bins::{Column, MISSING};
use crate::parallel::for_each;
use crate::rng::Stream;
use crate::split::{Demands, Split, best};
use crate::sums::Sums;
use crate::tree::Tree;

/// Up to so many open nodes keep their histograms for the level below: 256 bins × 24 bytes × features each.
/// Fewer in tests, so that small trees see both ways.
const KEPT_NODES: usize = if cfg!(test) { 2 } else { 128 };

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry<R> {
    pub(crate) row: u32,
    pub(crate) stat: R,
}

#[derive(Clone, Debug)]
pub(crate) struct Plan<U> {
    pub(crate) max_depth: u32,
    /// The leaf with the highest gain is split next, until there are so many; `None` splits level by level.
    pub(crate) max_leaves: Option<u32>,
    pub(crate) demands: Demands<U>,
    /// How many features are tried at a node.
    pub(crate) features: usize,
    pub(crate) chance: Stream,
    pub(crate) threads: NonZeroUsize,
}

/// A tree whose leaves have no values yet.
#[derive(Clone, Debug)]
pub(crate) struct Grown<S> {
    pub(crate) tree: Tree,
    /// For every inner node the last bin that goes left.
    pub(crate) bins: Vec<u8>,
    /// For every leaf its entries, as they stand now, and their sums.
    pub(crate) leaves: Vec<(Range<usize>, S)>,
    /// For every feature the gain of its splits.
    pub(crate) gains: Vec<f64>,
}

/// A node that may be split.
struct Open<S> {
    range: Range<usize>,
    sums: S,
    source: Source,
    /// The inner node above it, and whether this is its left child.
    parent: Option<(usize, bool)>,
}

impl<S: Sums> Open<S> {
    /// Its two sides, when so many of its entries, which add up to `sums`, go left.
    fn children(&self, inner: usize, left: usize, sums: S) -> [Self; 2] {
        let middle = self.range.start + left;
        let mut rest = self.sums;
        rest.subtract(&sums);
        let sides = [(self.range.start..middle, sums, true), (middle..self.range.end, rest, false)];
        sides.map(|(range, sums, left)| Self {
            range,
            sums,
            source: Source::Rows,
            parent: Some((inner, left)),
        })
    }
}

/// Where a node's histogram comes from.
enum Source {
    Rows,
    /// The histogram of that node of the level above, less that of these rows.
    Less {
        parent: usize,
        rows: Range<usize>,
    },
    /// The same, less the histogram of a node of this level.
    LessNode {
        parent: usize,
        sibling: usize,
    },
}

struct Work<S> {
    /// Histograms of the level above and of this one, node by node.
    above: Vec<S>,
    here: Vec<S>,
    best: Vec<Option<Split<S>>>,
}

pub(crate) struct Grower<'a, S: Sums> {
    columns: &'a [Column],
    work: Vec<Work<S>>,
    right: Vec<Entry<S::Row>>,
}

impl<'a, S: Sums> Grower<'a, S> {
    pub(crate) fn new(columns: &'a [Column]) -> Self {
        let work = || Work { above: Vec::new(), here: Vec::new(), best: Vec::new() };
        Self { columns, work: columns.iter().map(|_| work()).collect(), right: Vec::new() }
    }

    /// A tree that serves these entries. They come out in another order: leaf by leaf.
    pub(crate) fn grow(&mut self, entries: &mut [Entry<S::Row>], mut plan: Plan<S::Unit>) -> Grown<S> {
        let mut grown = Grown {
            tree: Tree::default(),
            bins: Vec::new(),
            leaves: Vec::new(),
            gains: vec![0.0; self.columns.len()],
        };

        self.right.resize(entries.len().max(self.right.len()), Entry::default());
        let mut sums = S::default();
        entries.iter().for_each(|entry| sums.add_row(entry.stat));
        let root = Open { range: 0..entries.len(), sums, source: Source::Rows, parent: None };

        match plan.max_leaves {
            _ if plan.max_depth == 0 || !plan.may_split(&root.sums) => grown.leaf(root),
            None => self.by_level(entries, root, &mut plan, &mut grown),
            Some(leaves) => self.best_first(entries, root, &mut plan, &mut grown, leaves as usize),
        }

        grown
    }

    fn by_level(
        &mut self,
        entries: &mut [Entry<S::Row>],
        root: Open<S>,
        plan: &mut Plan<S::Unit>,
        grown: &mut Grown<S>,
    ) {
        let mut level = vec![root];

        for depth in 1.. {
            if level.is_empty() {
                break;
            }
            let splits = self.search(entries, &level, plan);
            let lefts = self.partition(entries, &level, &splits, plan.threads);
            let kept = self.kept(&level, plan);
            let mut below = Vec::new();

            for (number, ((node, split), left)) in level.into_iter().zip(splits).zip(lefts).enumerate() {
                let Some((feature, split)) = split else {
                    grown.leaf(node);
                    continue;
                };

                let inner = grown.inner(&node, feature, &self.columns[feature], &split);
                let mut children = node.children(inner, left, split.left);
                let open =
                    children.each_ref().map(|child| depth < plan.max_depth && plan.may_split(&child.sums));
                let small = usize::from(children[1].range.len() < children[0].range.len());
                let large = 1 - small;

                if kept && open[large] {
                    let parent = number;
                    children[large].source = match open[small] {
                        true => Source::LessNode { parent, sibling: below.len() + small },
                        false => Source::Less { parent, rows: children[small].range.clone() },
                    };
                }

                for (child, open) in children.into_iter().zip(open) {
                    if open { below.push(child) } else { grown.leaf(child) }
                }
            }

            level = below;
        }
    }

    fn best_first(
        &mut self,
        entries: &mut [Entry<S::Row>],
        root: Open<S>,
        plan: &mut Plan<S::Unit>,
        grown: &mut Grown<S>,
        leaves: usize,
    ) {
        // By gain, which is above 0 and so has the order of its bits; of equals the first one found comes first.
        let mut open = BTreeMap::new();
        let (mut new, mut depth, mut count) = (vec![root], 1, 0);

        loop {
            let splits = self.search(entries, &new, plan);
            for (node, split) in new.into_iter().zip(splits) {
                let Some((feature, split)) = split else {
                    grown.leaf(node);
                    continue;
                };
                open.insert((split.gain.to_bits(), Reverse(count)), (node, feature, split, depth));
                count += 1;
            }

            if open.len() + grown.leaves.len() >= leaves {
                break;
            }
            let Some((_, (node, feature, split, below))) = open.pop_last() else { break };
            let inner = grown.inner(&node, feature, &self.columns[feature], &split);
            let level = [node];
            let left = self.partition(entries, &level, &[Some((feature, split))], plan.threads)[0];
            new = vec![];
            depth = below + 1;
            for child in level[0].children(inner, left, split.left) {
                let is_open = below < plan.max_depth && plan.may_split(&child.sums);
                if is_open { new.push(child) } else { grown.leaf(child) }
            }
        }

        open.into_values().for_each(|(node, ..)| grown.leaf(node));
    }

    /// Whether the histograms of a level are all there for the next one.
    fn kept(&self, level: &[Open<S>], plan: &Plan<S::Unit>) -> bool {
        plan.features >= self.columns.len() && level.len() <= KEPT_NODES
    }

    /// The best split of every node of a level, with its feature.
    fn search(
        &mut self,
        entries: &[Entry<S::Row>],
        level: &[Open<S>],
        plan: &mut Plan<S::Unit>,
    ) -> Vec<Option<(usize, Split<S>)>> {
        let features = self.columns.len();
        let mut tried: Vec<bool> = level.iter().flat_map(|_| plan.choose(features)).collect();
        self.try_features(entries, level, plan, &tried);
        let mut splits: Vec<_> = (0..level.len()).map(|node| self.best(node)).collect();

        // Where none of the chosen features can split, the others are tried.
        if plan.features < features && splits.iter().any(Option::is_none) {
            for (tried, split) in tried.chunks_mut(features).zip(&splits) {
                tried.iter_mut().for_each(|tried| *tried = split.is_none() && !*tried);
            }
            self.try_features(entries, level, plan, &tried);
            for (node, split) in splits.iter_mut().enumerate() {
                *split = split.or_else(|| self.best(node));
            }
        }

        splits
    }

    /// The best split of a node that was found: of equals that of the first feature.
    fn best(&self, node: usize) -> Option<(usize, Split<S>)> {
        let all = self.work.iter().enumerate();
        let found = all.filter_map(|(feature, work)| Some((feature, work.best[node]?)));
        found.reduce(|best, other| if other.1.gain > best.1.gain { other } else { best })
    }

    /// Fills `best` of every feature; `tried` says for every node and feature whether to look.
    fn try_features(
        &mut self,
        entries: &[Entry<S::Row>],
        level: &[Open<S>],
        plan: &Plan<S::Unit>,
        tried: &[bool],
    ) {
        let kept = self.kept(level, plan);
        let features = self.columns.len();
        let tasks = self.work.iter_mut().zip(self.columns).enumerate();
        for_each(tasks, plan.threads, |(feature, (work, column))| {
            let tried = |node: usize| tried[node * features + feature];
            work.try_nodes(column, entries, level, &plan.demands, kept, tried);
        });
    }

    /// Divides the entries of every node that is split; how many go left.
    fn partition(
        &mut self,
        entries: &mut [Entry<S::Row>],
        level: &[Open<S>],
        splits: &[Option<(usize, Split<S>)>],
        threads: NonZeroUsize,
    ) -> Vec<usize> {
        let mut lefts = vec![0; level.len()];
        let (mut entries, mut right, mut start) = (entries, self.right.as_mut_slice(), 0);
        let mut tasks = Vec::new();

        // Nodes of a level are in the order of their entries.
        for ((node, split), left) in level.iter().zip(splits).zip(&mut lefts) {
            let (skip, length) = (node.range.start - start, node.range.len());
            let (own, rest) = entries.split_at_mut(skip).1.split_at_mut(length);
            let (buffer, rest_right) = right.split_at_mut(skip).1.split_at_mut(length);
            (entries, right, start) = (rest, rest_right, node.range.end);

            if let Some((feature, split)) = split {
                tasks.push((own, buffer, &self.columns[*feature], split, left));
            }
        }

        for_each(tasks.into_iter(), threads, |(entries, right, column, split, left)| {
            *left = divide(entries, right, column, split);
        });

        lefts
    }
}

/// Moves what goes left to the front, keeping the order on both sides; how many these are.
fn divide<S, R: Copy>(
    entries: &mut [Entry<R>],
    right: &mut [Entry<R>],
    column: &Column,
    split: &Split<S>,
) -> usize {
    let mut goes_left = [false; 256];
    goes_left[..=usize::from(split.bin)].fill(true);
    goes_left[usize::from(MISSING)] = split.missing_left;

    // Without branches: each entry is written to both sides, and one of them counts.
    let (mut lefts, mut rights) = (0, 0);

    for at in 0..entries.len() {
        let entry = entries[at];
        let is_left = goes_left[usize::from(column.bins[entry.row as usize])];
        entries[lefts] = entry;
        right[rights] = entry;
        lefts += usize::from(is_left);
        rights += usize::from(!is_left);
    }

    entries[lefts..].copy_from_slice(&right[..rights]);

    lefts
}

impl<S: Sums> Work<S> {
    fn try_nodes(
        &mut self,
        column: &Column,
        entries: &[Entry<S::Row>],
        level: &[Open<S>],
        demands: &Demands<S::Unit>,
        kept: bool,
        tried: impl Fn(usize) -> bool,
    ) {
        self.best.clear();
        self.best.resize(level.len(), None);
        let cells = column.count() + 1;

        if !kept {
            self.here.clear();
            self.here.resize(cells, S::default());
            for (number, node) in level.iter().enumerate().filter(|(number, _)| tried(*number)) {
                self.here.fill(S::default());
                sum(&mut self.here, column, &entries[node.range.clone()]);
                self.best[number] = best(&self.here, &node.sums, demands);
            }

            return;
        }

        core::mem::swap(&mut self.above, &mut self.here);
        self.here.clear();
        self.here.resize(cells * level.len(), S::default());

        for (own, node) in self.here.chunks_exact_mut(cells).zip(level) {
            match &node.source {
                Source::Rows => sum(own, column, &entries[node.range.clone()]),
                Source::Less { parent, rows } => {
                    sum(own, column, &entries[rows.clone()]);
                    less(own, &self.above[parent * cells..][..cells]);
                }
                Source::LessNode { .. } => {}
            }
        }

        for (number, node) in level.iter().enumerate() {
            if let Source::LessNode { parent, sibling } = node.source {
                self.here.copy_within(sibling * cells..(sibling + 1) * cells, number * cells);
                let own = &mut self.here[number * cells..][..cells];
                less(own, &self.above[parent * cells..][..cells]);
            }

            self.best[number] = best(&self.here[number * cells..][..cells], &node.sums, demands);
        }
    }
}

fn sum<S: Sums>(histogram: &mut [S], column: &Column, entries: &[Entry<S::Row>]) {
    let last = histogram.len() - 1;
    for entry in entries {
        let bin = usize::from(column.bins[entry.row as usize]).min(last);
        histogram[bin].add_row(entry.stat);
    }
}

/// Turns a histogram into what is left of `whole` without it.
fn less<S: Sums>(histogram: &mut [S], whole: &[S]) {
    for (cell, whole) in histogram.iter_mut().zip(whole) {
        let mut rest = *whole;
        rest.subtract(cell);
        *cell = rest;
    }
}

impl<U> Plan<U> {
    fn may_split<S: Sums<Unit = U>>(&self, sums: &S) -> bool {
        sums.weight() / 2 >= self.demands.min_leaf && !sums.pure()
    }

    /// For every feature whether a node tries it: all of them, or so many by chance.
    fn choose(&mut self, features: usize) -> Vec<bool> {
        let mut tried = vec![self.features >= features; features];
        if self.features < features {
            // Floyd's sample: each subset is as likely as any other.
            for last in features - self.features..features {
                let drawn = self.chance.below(last as u32 + 1) as usize;
                let place = if tried[drawn] { last } else { drawn };
                tried[place] = true;
            }
        }
        tried
    }
}

impl<S: Sums> Grown<S> {
    fn link(&mut self, parent: Option<(usize, bool)>, child: i32) {
        match parent {
            Some((inner, true)) => self.tree.left[inner] = child,
            Some((inner, false)) => self.tree.right[inner] = child,
            None => {}
        }
    }

    fn leaf(&mut self, node: Open<S>) {
        self.link(node.parent, !(self.leaves.len() as i32));
        self.leaves.push((node.range, node.sums));
    }

    /// The new node's number.
    fn inner(&mut self, node: &Open<S>, feature: usize, column: &Column, split: &Split<S>) -> usize {
        let number = self.bins.len();
        self.link(node.parent, number as i32);
        self.gains[feature] += split.gain;
        self.bins.push(split.bin);
        // Behind the last bin there is no edge: all that is not missing goes left.
        let threshold = column.edges.get(usize::from(split.bin)).copied().unwrap_or(f32::MAX);
        self.tree.splits.push(2 * feature as u16 + u16::from(split.missing_left));
        self.tree.thresholds.push(threshold);
        self.tree.left.push(0);
        self.tree.right.push(0);
        number
    }
}
