//! Statistics that several crates need, in one order of summation, so that results are the same bit for bit.

/// The population standard deviation; `None` of nothing.
pub fn standard_deviation(values: impl Iterator<Item = f64> + Clone) -> Option<f64> {
    let count = values.clone().count();
    if count == 0 {
        return None;
    }

    let mean = values.clone().sum::<f64>() / count as f64;
    let squares: f64 = values.map(|value| (value - mean) * (value - mean)).sum();
    Some((squares / count as f64).sqrt())
}

/// The median; NaN of nothing. Sorts the list.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        n if n.is_multiple_of(2) => f64::midpoint(values[middle - 1], values[middle]),
        _ => values[middle],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_that_of_the_whole_population() {
        let of = |values: &[f64]| standard_deviation(values.iter().copied());
        assert_eq!(of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]), Some(2.0));
        assert_eq!((of(&[3.0]), of(&[])), (Some(0.0), None));
    }

    #[test]
    fn a_median_lies_in_the_middle() {
        assert_eq!((median(&mut [3.0, 1.0, 2.0]), median(&mut [4.0, 1.0])), (2.0, 2.5));
        assert!(median(&mut []).is_nan());
    }
}
