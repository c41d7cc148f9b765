//! One tree, as it is learnt and written down.

use serde::{Deserialize, Serialize};

use crate::bins::{Column, MISSING};

/// The deepest tree: its nodes can be counted in 22 bits.
pub const MAX_DEPTH: u32 = 20;

/// Inner nodes and leaves, numbered apart, from 0. A child that is an inner node has its number, which is
/// above its parent's; a leaf has `-1 - number`. A tree without inner nodes is its leaf 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tree {
    /// For every inner node twice its feature, plus one if missing values go left.
    pub(crate) splits: Vec<u16>,
    /// For every inner node: values up to this one go left.
    pub(crate) thresholds: Vec<f32>,
    pub(crate) left: Vec<i32>,
    pub(crate) right: Vec<i32>,
    /// For every leaf as many values as a tree answers.
    pub(crate) values: Vec<f32>,
}

impl Tree {
    /// The depth, if this is a tree of finite values, `width` for every leaf, that asks about `features` only.
    pub(crate) fn depth(&self, features: usize, width: usize) -> Result<u32, &'static str> {
        let inner = self.splits.len();
        if self.thresholds.len() != inner || self.left.len() != inner || self.right.len() != inner {
            return Err("nodes that lack a part");
        }
        if self.values.len() != (inner + 1) * width {
            return Err("not one leaf more than inner nodes");
        }
        if self.splits.iter().any(|slot| usize::from(*slot) / 2 >= features) {
            return Err("a feature that the model does not have");
        }
        if self.thresholds.iter().chain(&self.values).any(|value| !value.is_finite()) {
            return Err("a threshold or leaf that is not finite");
        }
        let mut depth = 0;
        let mut depths = vec![None; inner];
        let mut leaves = vec![false; inner + 1];

        if let Some(root) = depths.first_mut() {
            *root = Some(0);
        } else {
            leaves[0] = true;
        }

        for node in 0..inner {
            // A node's parent stands before it.
            let below = depths[node].ok_or("a node without a parent")? + 1;
            depth = depth.max(below);

            for child in [self.left[node], self.right[node]] {
                if child >= 0 {
                    let child = child as usize;
                    match depths.get_mut(child) {
                        Some(place @ None) if child > node => *place = Some(below),
                        _ => return Err("a child that is not below its one parent"),
                    }
                } else {
                    match leaves.get_mut(!child as usize) {
                        Some(seen @ false) => *seen = true,
                        _ => return Err("a leaf that is not there, or has two parents"),
                    }
                }
            }
        }

        if depth > MAX_DEPTH {
            return Err("a depth above 20");
        }
        Ok(depth)
    }

    pub(crate) fn leaf(&self, bins: &[u8], columns: &[Column], row: usize) -> usize {
        let mut at = if self.splits.is_empty() { -1 } else { 0 };
        while at >= 0 {
            let node = at as usize;
            let slot = self.splits[node];
            let goes_left = match columns[usize::from(slot / 2)].bins[row] {
                MISSING => slot % 2 == 1,
                bin => bin <= bins[node],
            };
            at = if goes_left { self.left[node] } else { self.right[node] };
        }
        !at as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        Tree {
            splits: vec![0, 3],
            thresholds: vec![0.5, 1.5],
            left: vec![-1, -2],
            right: vec![1, -3],
            values: vec![1.0, 2.0, 3.0],
        }
    }

    #[test]
    fn a_sound_tree_has_its_depth() {
        assert_eq!(tree().depth(2, 1), Ok(2));
        assert_eq!(Tree { values: vec![1.0], ..Tree::default() }.depth(1, 1), Ok(0));
    }

    #[test]
    fn whatever_is_damaged_is_refused() {
        type Damage = fn(&mut Tree);
        let damages: [(&str, Damage); 11] = [
            ("lack a part", |t| t.thresholds.truncate(1)),
            ("one leaf more", |t| t.values.truncate(2)),
            ("one leaf more", |t| *t = Tree::default()),
            ("feature", |t| t.splits[1] = 4),
            ("finite", |t| t.thresholds[0] = f32::NAN),
            ("finite", |t| t.values[2] = f32::INFINITY),
            ("one parent", |t| t.right[0] = 0),
            ("one parent", |t| t.right[0] = 2),
            ("two parents", |t| t.left[1] = -1),
            ("two parents", |t| t.left[1] = i32::MIN),
            ("without a parent", |t| t.right[0] = -3),
        ];

        for (message, damage) in damages {
            let mut tree = tree();
            damage(&mut tree);
            let error = tree.depth(2, 1).unwrap_err();
            assert!(error.contains(message), "{error}: {tree:?}");
        }

        let n = 21;
        let chain = Tree {
            splits: vec![0; n],
            thresholds: vec![0.0; n],
            left: (0..n as i32).map(|node| !node).collect(),
            right: (1..n as i32).chain([!(n as i32)]).collect(),
            values: vec![0.0; n + 1],
        };

        assert!(chain.depth(1, 1).unwrap_err().contains("depth"));
    }
}
