//! Uptimes at which curves have values, and horizons at which placement reads them.

/// Bins of uptime: four of 16 s each, then four to each doubling, up to 97 days. The edges are whole seconds, so that
/// a bin is found by shifting.
pub const BINS: usize = 72;
/// Edges of the bins, the first and the last with them.
pub const EDGES: usize = BINS + 1;
/// Width of the first bins.
const STEP_S: u32 = 16;

/// No remaining lifetime counts as longer than this: 14 days (LAVA, arXiv 2412.09840, appendix G.1).
pub const HORIZON_S: f32 = 1_209_600.0;
/// How many horizons a row has.
pub const HORIZONS: usize = 32;
/// From 28 s to 14 d, two to each doubling (1 and 1.5); the third from the end is 7 days.
pub const HORIZONS_S: [f32; HORIZONS] = horizons();

const EDGES_S: [f32; EDGES] = edges();

/// The bin of an uptime in seconds: 0 to [`BINS`], where the last means beyond the grid. What is negative or no number
/// counts as 0.
#[inline]
pub const fn bin_of(uptime_s: f32) -> usize {
    // The cast saturates, and is 0 for NaN.
    let steps = uptime_s as u32 / STEP_S;
    if steps < 4 {
        return steps as usize;
    }

    let doublings = steps.ilog2() - 2;
    let bin = (4 * (doublings + 1) + ((steps >> doublings) & 3)) as usize;
    if bin < BINS { bin } else { BINS }
}

/// Where a bin begins, in seconds. [`BINS`] gives the end of the grid, and so does everything above.
#[inline]
pub const fn edge_s(bin: usize) -> f32 {
    EDGES_S[if bin < EDGES { bin } else { BINS }]
}

const fn edges() -> [f32; EDGES] {
    let mut edges = [0.0; EDGES];
    let mut bin = 0;
    while bin < EDGES {
        let steps = if bin < 4 { bin as u32 } else { (4 + bin as u32 % 4) << (bin / 4 - 1) };
        edges[bin] = (steps * STEP_S) as f32;
        bin += 1;
    }
    edges
}

const fn horizons() -> [f32; HORIZONS] {
    let mut horizons = [0.0; HORIZONS];
    let mut from_end = 0;
    while from_end < HORIZONS {
        let share = if from_end.is_multiple_of(2) { 1.0 } else { 0.75 };
        horizons[HORIZONS - 1 - from_end] = HORIZON_S * share / (1_u32 << (from_end / 2)) as f32;
        from_end += 1;
    }
    horizons
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_edge_begins_its_own_bin() {
        for bin in 0..EDGES {
            let edge = edge_s(bin);
            assert_eq!(bin_of(edge), bin);
            assert_eq!(bin_of(edge - 1.0), bin.saturating_sub(1));
            assert!(bin == 0 || edge > edge_s(bin - 1));
        }

        assert_eq!(
            [1, 4, 5, 8, 40, 72, 99].map(edge_s),
            [16.0, 64.0, 80.0, 128.0, 32_768.0, 8_388_608.0, 8_388_608.0]
        );
        assert_eq!([f32::NAN, -5.0, f32::INFINITY, 1e30].map(bin_of), [0, 0, BINS, BINS]);
    }

    #[test]
    fn horizons_end_at_seven_and_fourteen_days() {
        let days = [31, 30, 29, 28].map(|n: usize| HORIZONS_S[n] / 86_400.0);
        assert_eq!(days, [14.0, 10.5, 7.0, 5.25]);
        assert!(HORIZONS_S.is_sorted() && (27.0..28.0).contains(&HORIZONS_S[0]));
    }
}
