//! Single rows, fast: eight trees at once, so that the processor need not wait for any one.

use crate::tree::Tree;

/// Trees that are walked at once.
const LANES: usize = 8;

/// Bits of a node's link that hold its slot; the other 22 hold the distance to its left child.
const SLOT_BITS: u32 = 10;

/// The right child stands behind the left one. A leaf's distance is 0 and its slot holds minus infinity: the
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

    /// Appends a tree, level by level; its depth.
    fn place(&mut self, tree: &Tree) -> u32 {
        let root = if tree.slots.is_empty() { -1 } else { 0 };
        let mut level = vec![(root, self.nodes.len())];
        self.nodes.push(self.leaf_node(0));
        for depth in 0.. {
            let mut below = Vec::new();
            for (child, place) in level {
                if child >= 0 {
                    let left = self.nodes.len();
                    let node = child as usize;
                    self.nodes[place] = Node {
                        threshold: tree.thresholds[node],
                        link: u32::from(tree.slots[node]) | (((left - place) as u32) << SLOT_BITS),
                    };
                    self.nodes.extend([self.leaf_node(0); 2]);
                    below.extend([(tree.left[node], left), (tree.right[node], left + 1)]);
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
            if below.is_empty() {
                return depth;
            }
            level = below;
        }
        0
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
        let mut slots = [f32::NEG_INFINITY; N];
        for (pair, value) in slots.chunks_exact_mut(2).zip(row) {
            pair[0] = if value.is_nan() { f32::INFINITY } else { *value };
            pair[1] = if value.is_nan() { f32::NEG_INFINITY } else { *value };
        }
        for group in &self.groups {
            let mut at = group.roots;
            for _ in 0..group.steps {
                for at in &mut at {
                    let node = self.nodes[*at as usize];
                    // The mask spares a bounds check; every slot is below N.
                    let value = slots[node.link as usize & (N - 1)];
                    *at += (node.link >> SLOT_BITS) + u32::from(value > node.threshold);
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
