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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_that_of_the_whole_population() {
        let of = |values: &[f64]| standard_deviation(values.iter().copied());
        assert_eq!(of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]), Some(2.0));
        assert_eq!((of(&[3.0]), of(&[])), (Some(0.0), None));
    }
}
