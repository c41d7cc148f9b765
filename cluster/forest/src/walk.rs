//! Single rows, fast: eight trees at once, so that the processor need not wait for any one.

use crate::tree::Tree;

/// Trees that are walked at once.
const LANES: usize = 8;

/// Bits of a node's link that hold its split; the other 22 hold the distance to its left child.
const SPLIT_BITS: u32 = 10;

/// The right child stands behind the left one. A leaf's distance is 0 and its split holds minus infinity: the
/// walk stays there, so all lanes can take the same number of steps.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// In a leaf the bits of its payload.
    threshold: f32,
    link: u32,
}

/// Trees in an order that is good to walk.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    nodes: Vec<Node>,
    groups: Vec<Group>,
    /// What leaves point to, where a leaf has more than one value.
    wide: Vec<f32>,
    features: usize,
    width: usize,
}

/// Trees that add to the same outputs.
#[derive(Clone, Copy, Debug)]
struct Group {
    roots: [u32; LANES],
    steps: u32,
    output: usize,
}

impl Walk {
    /// Of trees that were found sound. Tree `n` adds `width` values from output `n % (outputs / width)` on.
    pub(crate) fn new(trees: &[Tree], features: usize, outputs: usize, width: usize) -> Self {
        let mut walk =
            Self { nodes: Vec::new(), groups: Vec::new(), wide: vec![0.0; width], features, width };
        // A tree that adds nothing, for lanes without one. Wide leaves: the first payload is of zeros.
        walk.nodes.push(walk.leaf_node(0.0f32.to_bits()));
        let kinds = outputs / width;
        for output in 0..kinds {
            let mut own = trees.iter().skip(output).step_by(kinds).peekable();
            while own.peek().is_some() {
                let mut group = Group { roots: [0; LANES], steps: 0, output };
                for (root, tree) in group.roots.iter_mut().zip(own.by_ref().take(LANES)) {
                    *root = walk.nodes.len() as u32;
                    group.steps = group.steps.max(walk.place(tree));
                }
                walk.groups.push(group);
            }
        }
        walk
    }

    fn leaf_node(&self, payload: u32) -> Node {
        Node { threshold: f32::from_bits(payload), link: 2 * self.features as u32 }
    }

    /// Appends a tree; its depth. The children of a node stand together, and what is below the larger of them
    /// comes next: the way that most rows go crosses few cache lines.
    fn place(&mut self, tree: &Tree) -> u32 {
        let mut sizes = vec![1usize; tree.splits.len()];
        let below = |sizes: &[usize], child: i32| sizes.get(child as usize).copied().unwrap_or(0);
        for node in (0..sizes.len()).rev() {
            sizes[node] += below(&sizes, tree.left[node]) + below(&sizes, tree.right[node]);
        }
        let root = if sizes.is_empty() { -1 } else { 0 };
        let mut open = vec![(root, self.nodes.len(), 0)];
        self.nodes.push(self.leaf_node(0));
        let mut deepest = 0;

        while let Some((child, place, depth)) = open.pop() {
            deepest = deepest.max(depth);
            if child >= 0 {
                let node = child as usize;
                let left = self.nodes.len();
                self.nodes.extend([self.leaf_node(0); 2]);
                let link = u32::from(tree.splits[node]) | (((left - place) as u32) << SPLIT_BITS);
                self.nodes[place] = Node { threshold: tree.thresholds[node], link };
                let mut children =
                    [(tree.left[node], left, depth + 1), (tree.right[node], left + 1, depth + 1)];
                children.sort_by_key(|child| below(&sizes, child.0));
                open.extend(children);
            } else {
                let values = &tree.values[!child as usize * self.width..][..self.width];
                let payload = match values {
                    [value] => value.to_bits(),
                    _ => (self.wide.len() / self.width) as u32,
                };

                self.nodes[place] = self.leaf_node(payload);

                if self.width > 1 {
                    self.wide.extend(values);
                }
            }
        }

        deepest
    }

    /// Adds up what the trees say about a row.
    pub(crate) fn add(&self, row: &[f32], sums: &mut [f64]) {
        if 2 * self.features < 64 {
            self.add_prepared::<64>(row, sums);
        } else {
            self.add_prepared::<1024>(row, sums);
        }
    }

    fn add_prepared<const N: usize>(&self, row: &[f32], sums: &mut [f64]) {
        // Twice each feature: a missing value goes right by the first, left by the second.
        let mut splits = [f32::NEG_INFINITY; N];
        for (pair, value) in splits.chunks_exact_mut(2).zip(row) {
            pair[0] = if value.is_nan() { f32::INFINITY } else { *value };
            pair[1] = if value.is_nan() { f32::NEG_INFINITY } else { *value };
        }

        for group in &self.groups {
            let mut at = group.roots;
            for _ in 0..group.steps {
                for at in &mut at {
                    let node = self.nodes[*at as usize];

                    // The mask spares a bounds check; every split is below N.
                    let value = splits[node.link as usize & (N - 1)];
                    *at += (node.link >> SPLIT_BITS) + u32::from(value > node.threshold);
                }
            }

            let leaves = at.map(|at| self.nodes[at as usize].threshold);

            if self.width == 1 {
                // In pairs: a chain of eight additions would take longer.
                let [a, b, c, d, e, f, g, h] = leaves.map(f64::from);
                sums[group.output] += ((a + b) + (c + d)) + ((e + f) + (g + h));
            } else {
                for leaf in leaves {
                    let values = &self.wide[leaf.to_bits() as usize * self.width..][..self.width];
                    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += f64::from(*value));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A tree by numbers: each next node takes the place of a leaf.
    fn tree(nodes: &[(u16, f32, usize)], width: usize) -> Tree {
        let mut tree = Tree { values: vec![0.0; width * (nodes.len() + 1)], ..Tree::default() };
        for (number, (split, threshold, at)) in nodes.iter().enumerate() {
            // Leaves so far: 0 to `number`. One becomes this node, with itself and a new one below.
            let leaf = !((at % (number + 1)) as i32);
            let sides = tree.left.iter_mut().chain(&mut tree.right);
            sides.filter(|side| **side == leaf).for_each(|side| *side = number as i32);
            tree.splits.push(*split);
            tree.thresholds.push(*threshold);
            tree.left.push(leaf);
            tree.right.push(!(number as i32 + 1));
        }
        tree.values.iter_mut().enumerate().for_each(|(n, value)| *value = n as f32 + 0.25);
        tree
    }

    /// What a tree says, node by node.
    fn plainly(tree: &Tree, row: &[f32], width: usize) -> Vec<f64> {
        let mut at = if tree.splits.is_empty() { -1 } else { 0 };
        while at >= 0 {
            let node = at as usize;
            let value = row[usize::from(tree.splits[node] / 2)];
            let left = match value.is_nan() {
                true => tree.splits[node] % 2 == 1,
                false => value <= tree.thresholds[node],
            };
            at = if left { tree.left[node] } else { tree.right[node] };
        }
        tree.values[!at as usize * width..][..width].iter().map(|value| f64::from(*value)).collect()
    }

    proptest! {
        #[test]
        fn a_walk_is_what_the_trees_say(
            trees in prop::collection::vec(prop::collection::vec((0..140u16, -3..4i8, any::<usize>()),
                0..40), 1..20),
            row in prop::collection::vec(prop_oneof![Just(f32::NAN), (-3..4i8).prop_map(f32::from)], 70),
            features in prop::sample::select(vec![1u16, 15, 31, 32, 70]),
            (kinds, width) in prop::sample::select(vec![(1usize, 1usize), (2, 1), (3, 1), (1, 2), (1, 3)]),
        ) {
            let trees: Vec<Tree> = trees
                .chunks_exact(kinds)
                .flatten()
                .map(|nodes| {
                    let node = |n: &(u16, i8, usize)| (n.0 % (2 * features), f32::from(n.1), n.2);
                    tree(&nodes.iter().map(node).collect::<Vec<_>>(), width)
                })
                .collect();
            let (features, outputs) = (usize::from(features), kinds * width);
            prop_assume!(trees.iter().all(|tree| tree.depth(features, width).is_ok()));
            let row = &row[..features];
            let mut expected = vec![0.0; outputs];

            for (n, tree) in trees.iter().enumerate() {
                let sums = expected[n % kinds..].iter_mut();
                sums.zip(plainly(tree, row, width)).for_each(|(sum, value)| *sum += value);
            }

            let mut sums = vec![0.0; outputs];
            Walk::new(&trees, features, outputs, width).add(row, &mut sums);

            // Small whole numbers and quarters: their sums are exact.
            prop_assert_eq!(sums, expected);
        }
    }
}
