//! What a model learns from and answers about: a table of features.

/// The most features a table or a model may have: a node keeps its feature in ten bits.
pub const MAX_FEATURES: usize = 500;

/// Features, one column each. A value is finite, or `NaN` for "missing".
#[derive(Clone, Debug, PartialEq)]
pub struct FeatureTable {
    columns: Vec<Vec<f32>>,
    rows: usize,
}

/// Why columns are not a [`FeatureTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// So many columns; one to [`MAX_FEATURES`] are allowed.
    #[error("{0} feature columns; allowed: 1 to {MAX_FEATURES}")]
    Columns(usize),
    /// So many rows; one to `u32::MAX - 1` are allowed.
    #[error("{0} rows; allowed: 1 to {max}", max = u32::MAX - 1)]
    Rows(usize),
    /// A column has another length than the first one.
    #[error("column {column} has {rows} rows; column 0 has {expected}")]
    Length {
        /// Which column, from 0.
        column: usize,
        /// How many rows that column has.
        rows: usize,
        /// Those of the first column.
        expected: usize,
    },
    /// A table of so many columns was given to a model of so many features.
    #[error("{columns} columns for a model of {features} features")]
    Features {
        /// Columns of the table.
        columns: usize,
        /// Features of the model.
        features: usize,
    },
    /// An infinite value; missing is `NaN`.
    #[error("column {column}, row {row}: infinite; allowed: finite, or NaN for missing")]
    Infinite {
        /// Which column, from 0.
        column: usize,
        /// Which row, from 0.
        row: usize,
    },
}

impl FeatureTable {
    /// The table of these columns.
    ///
    /// # Errors
    ///
    /// None or too many columns or rows, columns of different length, or an infinite value.
    pub fn from_columns(columns: Vec<Vec<f32>>) -> Result<Self, TableError> {
        if columns.is_empty() || columns.len() > MAX_FEATURES {
            return Err(TableError::Columns(columns.len()));
        }
        let rows = columns[0].len();
        if rows == 0 || rows >= u32::MAX as usize {
            return Err(TableError::Rows(rows));
        }
        for (column, values) in columns.iter().enumerate() {
            if values.len() != rows {
                return Err(TableError::Length { column, rows: values.len(), expected: rows });
            }
            if let Some(row) = values.iter().position(|value| value.is_infinite()) {
                return Err(TableError::Infinite { column, row });
            }
        }
        Ok(Self { columns, rows })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of features.
    pub fn columns(&self) -> usize {
        self.columns.len()
    }

    /// One feature of every row; `None` beyond the last.
    pub fn column(&self, column: usize) -> Option<&[f32]> {
        self.columns.get(column).map(Vec::as_slice)
    }

    /// All features of one row into `out`.
    ///
    /// # Panics
    ///
    /// `row` is not below [`FeatureTable::rows`], or `out` is not [`FeatureTable::columns`] long.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.columns(), "one value for every column");
        for (value, column) in out.iter_mut().zip(&self.columns) {
            *value = column[row];
        }
    }

    pub(crate) fn all(&self) -> &[Vec<f32>] {
        &self.columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_table_is_refused_by_place() {
        let refused = |columns| FeatureTable::from_columns(columns).unwrap_err();
        assert_eq!(refused(vec![]), TableError::Columns(0));
        assert_eq!(refused(vec![vec![1.0]; 501]), TableError::Columns(501));
        assert_eq!(refused(vec![vec![]]), TableError::Rows(0));
        let length = TableError::Length { column: 1, rows: 2, expected: 1 };
        assert_eq!(refused(vec![vec![1.0], vec![1.0, 2.0]]), length);
        assert_eq!(length.to_string(), "column 1 has 2 rows; column 0 has 1");
        let infinite = refused(vec![vec![1.0, f32::NAN], vec![0.0, f32::NEG_INFINITY]]);
        assert_eq!(infinite, TableError::Infinite { column: 1, row: 1 });
    }

    #[test]
    fn rows_are_read_across_columns() {
        let table = FeatureTable::from_columns(vec![vec![1.0, 2.0], vec![3.0, 4.0]]).unwrap();
        let mut row = [0.0; 2];
        table.read_row(1, &mut row);
        assert_eq!((row, table.rows(), table.columns()), ([2.0, 4.0], 2, 2));
        assert_eq!((table.column(1), table.column(2)), (Some(&[3.0, 4.0][..]), None));
    }
}
