//! Numbers on command lines: what is allowed, and the words that refuse the rest.

/// A finite number above zero.
pub fn positive(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "a number above 0 is needed".to_owned())?;
    if value.is_finite() && value > 0.0 {
        Ok(value)
    } else {
        Err("a finite number above 0 is needed".to_owned())
    }
}

/// A finite number, not below zero.
pub fn not_negative(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err("a finite number, 0 or above, is needed".to_owned()),
    }
}

/// A share of something, 0 to 1.
pub fn share(text: &str) -> Result<f64, String> {
    within(text, 0.0, 1.0)
}

/// A number of this range, both ends included.
pub fn within(text: &str, low: f64, high: f64) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (low..=high).contains(&value) => Ok(value),
        _ => Err(format!("a number from {low} to {high} is needed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_are_refused() {
        assert_eq!(share("0.6"), Ok(0.6));
        for wrong in ["-0.1", "1.1", "NaN", "x", ""] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
    }
}
