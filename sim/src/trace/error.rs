use thiserror::Error;

#[derive(Debug, Error)]
pub enum TraceError {
    #[error("{file}: {error}")]
    Io { file: String, error: std::io::Error },
    /// There is no header, no row or no value.
    #[error("{file}: no {what}: a trace has a header and at least one row with one number")]
    Empty { file: String, what: &'static str },
    #[error("{file}: {problem}")]
    Header { file: String, problem: String },
    #[error("{file}, {place}: {error}")]
    Row { file: String, place: String, error: std::io::Error },
    #[error("{file}, {place}: {column} = {value:?}: {allowed} is needed")]
    Cell {
        file: String,
        place: String,
        column: String,
        /// What it holds, shortened.
        value: String,
        allowed: String,
    },
    /// Too many rows are out of order or repeated.
    #[error("{file}: {bad} of {rows} rows are {what}: at most 1 % may be")]
    Disorder {
        file: String,
        /// Out of order or repeated.
        what: &'static str,
        bad: u64,
        rows: u64,
    },
    /// The stamps are too far apart for the number of rows.
    #[error("{file}: the stamps span {slots} periods of {period_s} s, but there are only {rows} rows")]
    Sparse {
        file: String,
        /// Periods between the first and the last stamp.
        slots: u64,
        period_s: f64,
        rows: u64,
    },
    /// Most values cannot be what they are said to be.
    #[error("{file}: {bad} of {cells} values are implausible as {unit:?}: say what they are (see --unit)")]
    Unit { file: String, bad: u64, cells: u64, unit: super::Unit },
    /// Shares that look like percent.
    #[error("{file}: {bad} of {cells} values of {column} are above 1: say that it holds percent, if it does")]
    Percent {
        file: String,
        column: String,
        /// How many are above 1.
        bad: u64,
        cells: u64,
    },
}
