//! Many curves, each kept once, with what is looked up in them.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::curve::{CurveError, SurvivalCurve};
use super::grid::{BINS, EDGES, HORIZONS, HORIZONS_S, bin_of, edge_s};

/// Which of [`Curves`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CurveId(u32);

impl CurveId {
    /// The curve of a number that [`CurveId::index`] gave.
    pub const fn new(index: u32) -> Self {
        Self(index)
    }

    /// Its number, from 0.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Distinct curves. Each has a table of its remaining lifetimes and a row of shares for each bin of uptime.
///
/// A curve takes 10 kB with its tables.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<SurvivalCurve>", into = "Vec<SurvivalCurve>")]
pub struct Curves {
    curves: Vec<SurvivalCurve>,
    /// Of each curve, at each edge.
    remaining_s: Vec<[f32; EDGES]>,
    /// Of each curve, in the middle of each bin, and at the end of the grid.
    rows: Vec<[[f32; HORIZONS]; EDGES]>,
    ids: BTreeMap<[u32; EDGES], CurveId>,
}

impl Curves {
    /// The id of this curve: an old one if these very shares are there.
    pub fn intern(&mut self, curve: SurvivalCurve) -> CurveId {
        let id = CurveId(self.curves.len() as u32);
        let key = curve.shares().map(f32::to_bits);
        if let Some(old) = self.ids.get(&key) {
            return *old;
        }

        self.ids.insert(key, id);
        self.remaining_s.push(std::array::from_fn(|edge| curve.remaining_s(edge_s(edge))));
        self.rows.push(std::array::from_fn(|bin| {
            let uptime_s = f32::midpoint(edge_s(bin), edge_s(bin + 1));
            HORIZONS_S.map(|longer_s| curve.conditional(uptime_s, longer_s))
        }));
        self.curves.push(curve);
        id
    }

    /// How many distinct curves there are.
    pub fn len(&self) -> usize {
        self.curves.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.curves.is_empty()
    }

    /// All ids, in order.
    pub fn ids(&self) -> impl Iterator<Item = CurveId> {
        (0..self.curves.len() as u32).map(CurveId)
    }

    /// The curve of an id; `None` if the id is of other curves.
    pub fn get(&self, id: CurveId) -> Option<&SurvivalCurve> {
        self.curves.get(id.index())
    }

    /// Expected remaining lifetime of a VM of this uptime, in seconds, at most 14 days: a look-up, linear between the
    /// edges of the grid. Beyond the grid the value at its end stands.
    ///
    /// # Panics
    ///
    /// The id is of other curves.
    #[inline]
    pub fn remaining_s(&self, id: CurveId, uptime_s: f32) -> f32 {
        let table = &self.remaining_s[id.index()];
        let bin = bin_of(uptime_s);
        if bin == BINS {
            return table[BINS];
        }

        let within = (uptime_s.max(0.0) - edge_s(bin)) / (edge_s(bin + 1) - edge_s(bin));
        table[bin] + (table[bin + 1] - table[bin]) * within
    }

    /// The shares of VMs of this uptime that live so much longer as each of [`HORIZONS_S`] says: never rising, 0 to 1.
    /// They are those of the middle of the uptime's bin, an eighth of the uptime off at most.
    ///
    /// # Panics
    ///
    /// The id is of other curves.
    #[inline]
    pub fn survival(&self, id: CurveId, uptime_s: f32) -> &[f32; HORIZONS] {
        &self.rows[id.index()][bin_of(uptime_s)]
    }
}

impl fmt::Debug for Curves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Curves").field(&self.curves.len()).finish()
    }
}

impl PartialEq for Curves {
    fn eq(&self, other: &Self) -> bool {
        self.curves == other.curves
    }
}

impl TryFrom<Vec<SurvivalCurve>> for Curves {
    type Error = CurveError;

    fn try_from(list: Vec<SurvivalCurve>) -> Result<Self, CurveError> {
        let mut curves = Self::default();
        for (number, curve) in list.into_iter().enumerate() {
            let id = curves.intern(curve);
            if id.index() != number {
                return Err(CurveError::repeated(number, id.index()));
            }
        }
        Ok(curves)
    }
}

impl From<Curves> for Vec<SurvivalCurve> {
    fn from(curves: Curves) -> Self {
        curves.curves
    }
}

#[cfg(test)]
mod tests {
    use super::super::curve::tests::hazards;
    use super::super::grid::HORIZON_S;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_distinct_curve_is_kept_once() {
        let mut curves = Curves::default();
        let curve = |hazard| SurvivalCurve::from_hazards(&[hazard; BINS]);
        let ids = [0.1, 0.2, 0.1].map(|hazard| curves.intern(curve(hazard)));
        assert_eq!((ids[0], ids[1] == ids[0], curves.len()), (ids[2], false, 2));
        assert_eq!(curves.get(ids[1]), Some(&curve(0.2)));
        assert_eq!(curves.get(CurveId(2)), None);

        let text = serde_json::to_string(&curves).unwrap();
        let read: Curves = serde_json::from_str(&text).unwrap();
        assert_eq!(read, curves);
        assert_eq!(read.survival(ids[1], 1e4), curves.survival(ids[1], 1e4));
        let twice = serde_json::to_string(&[curve(0.1), curve(0.1)]).unwrap();
        assert!(serde_json::from_str::<Curves>(&twice).unwrap_err().to_string().contains("curve 1"));
    }

    proptest! {
        #[test]
        fn a_look_up_says_what_the_curve_says(
            hazards in hazards(),
            uptime_s in prop_oneof![0.0_f32..1e7, any::<f32>()],
        ) {
            let mut curves = Curves::default();
            let id = curves.intern(SurvivalCurve::from_hazards(&hazards));
            let looked_up = curves.remaining_s(id, uptime_s);
            prop_assert!((0.0..=HORIZON_S).contains(&looked_up), "{}", looked_up);
            let row = curves.survival(id, uptime_s);
            prop_assert!(row.iter().all(|share| (0.0..=1.0).contains(share)));
            prop_assert!(row.windows(2).all(|two| two[0] >= two[1]), "{:?}", row);

            // At the edges the look-up is exact, and within a bin it lies between them.
            let bin = bin_of(uptime_s);
            let curve = curves.get(id).unwrap();
            let ends = [bin, bin + 1].map(|edge| curve.remaining_s(edge_s(edge)));
            let [low, high] = [ends[0].min(ends[1]) * 0.999, ends[0].max(ends[1]) * 1.001];
            prop_assert!((low..=high).contains(&looked_up), "{} {:?}", looked_up, ends);
        }
    }
}
