//! One table, for people at a terminal and for Markdown.

use std::fmt::Write as _;

use tabled::builder::Builder;
use tabled::settings::object::Columns;
use tabled::settings::{Alignment, Style};

/// A column: its head, and what a row has in it.
pub type Column<'a, R> = (&'a str, &'a dyn Fn(&R) -> String);

/// A table: a head, and rows of as many cells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextTable {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
    /// So many columns from the left hold words and stand left; the others hold numbers.
    words: usize,
}

impl TextTable {
    /// An empty table; its first `words` columns hold words.
    pub fn new(words: usize, head: &[&str]) -> Self {
        Self { head: head.iter().map(|&cell| cell.to_owned()).collect(), rows: Vec::new(), words }
    }

    pub fn of<R>(words: usize, rows: impl IntoIterator<Item = R>, columns: &[Column<'_, R>]) -> Self {
        let head: Vec<&str> = columns.iter().map(|(head, _)| *head).collect();
        let mut table = Self::new(words, &head);
        for row in rows {
            table.row(columns.iter().map(|(_, cell)| cell(&row)).collect());
        }
        table
    }

    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.head.len());
        self.rows.push(cells);
    }

    pub fn text(&self) -> String {
        let mut builder = Builder::default();
        builder.push_record(&self.head);
        for row in &self.rows {
            builder.push_record(row);
        }
        let mut table = builder.build();
        table.with(Style::blank());
        table.modify(Columns::new(self.words..), Alignment::right());
        let text = table.to_string();
        text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
    }

    pub fn markdown(&self) -> String {
        let mut text = String::new();
        let mut line = |cells: &[String]| {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "| {} |", cells.join(" | ").replace('\n', " "));
        };
        line(&self.head);
        let rule = |column| if column < self.words { "---" } else { "---:" }.to_owned();
        line(&(0..self.head.len()).map(rule).collect::<Vec<_>>());
        for row in &self.rows {
            line(row);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> TextTable {
        let mut table = TextTable::new(1, &["policy", "P95"]);
        table.row(vec!["stepwise".into(), "1.00".into()]);
        table.row(vec!["x".into(), "12.34".into()]);
        table
    }

    #[test]
    fn words_stand_left_and_numbers_right() {
        let text = table().text();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].starts_with("policy") && lines[0].ends_with("P95"), "{text}");
        assert_eq!(text.lines().map(str::len).max(), text.lines().map(str::len).min(), "{text}");
        assert_eq!(lines[1], "stepwise    1.00");
        assert_eq!(lines[2], "x          12.34");
    }

    #[test]
    fn markdown_says_the_same() {
        assert_eq!(
            table().markdown(),
            "| policy | P95 |\n| --- | ---: |\n| stepwise | 1.00 |\n| x | 12.34 |\n"
        );
    }
}
