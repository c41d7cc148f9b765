//! What an experiment says, once for the terminal, once as a section of the document, once as JSON.

pub mod admission;
pub mod chain;
pub mod chassis;
pub mod colocation;
pub mod control_loop;
pub mod faults;
pub mod labels;
pub mod lifetimes;
pub mod limits;
pub mod models;
pub mod oversubscription;
mod paper;
pub mod scheduler;
pub mod server;
pub mod traces;

use std::fmt::{Display, Write as _};

use serde::Serialize;
use serde_json::Value;

use crate::plot::figure::Figure;
use ballast_cli::common::text_table::TextTable;

/// One figure to reach, and what came of it. Computed from rows, never by hand.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Goal {
    pub goal: String,
    /// What was measured; empty where it was not.
    pub measured: String,
    /// Whether it was reached; `None` where it was not measured.
    pub met: Option<bool>,
}

impl Goal {
    pub fn new(goal: impl Into<String>, measured: Option<(String, bool)>) -> Self {
        let goal = goal.into();
        match measured {
            Some((measured, met)) => Self { goal, measured, met: Some(met) },
            None => Self { goal, measured: String::new(), met: None },
        }
    }

    fn verdict(&self) -> &'static str {
        match self.met {
            Some(true) => "met",
            Some(false) => "NOT MET",
            None => "not measured",
        }
    }
}

/// A piece of a report, in its order.
pub enum Part {
    Heading(String),
    /// A paragraph for the document alone.
    Words(String),
    TextTable(TextTable),
    Figure(Figure),
}

pub struct Report {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its name for people.
    pub title: &'static str,
    pub command: String,
    /// Tables, words and figures.
    pub parts: Vec<Part>,
    pub goals: Vec<Goal>,
    /// What was measured with, for programs.
    pub options: Value,
    /// What was measured, for programs.
    pub rows: Value,
}

#[derive(Serialize)]
struct Json<'a> {
    experiment: &'a str,
    options: &'a Value,
    rows: &'a Value,
    goals: &'a [Goal],
}

impl Report {
    pub fn json(&self) -> anyhow::Result<Value> {
        let Self { name, options, rows, goals, .. } = self;
        Ok(serde_json::to_value(Json { experiment: name, options, rows, goals })?)
    }

    /// Whether no figure was missed; one that was not measured is none that was missed.
    pub fn met(&self) -> bool {
        self.goals.iter().all(|goal| goal.met != Some(false))
    }

    pub fn text(&self) -> String {
        let mut text = format!("{}\n{}", self.title, self.command);
        // Writing to a String cannot fail.
        for part in &self.parts {
            let _ = match part {
                Part::Heading(heading) => write!(text, "\n\n{heading}"),
                Part::TextTable(table) => write!(text, "\n\n{}", table.text()),
                Part::Words(_) | Part::Figure(_) => Ok(()),
            };
        }
        if !self.goals.is_empty() {
            let _ = write!(text, "\n\nFigures to reach\n\n{}", self.goals_table().text());
        }
        text
    }

    pub fn markdown(&self) -> String {
        let mut text = format!("# {}\n\n```sh\n{}\n```\n", self.title, self.command);
        if !self.goals.is_empty() {
            // Writing to a String cannot fail.
            let _ = write!(text, "\n## Figures to reach\n\n{}", self.goals_table().markdown());
            text.push_str("\n## What was run\n");
        }
        for part in &self.parts {
            let _ = match part {
                Part::Heading(heading) => write!(text, "\n## {heading}\n"),
                Part::Words(words) => write!(text, "\n{words}\n"),
                Part::TextTable(table) => write!(text, "\n{}", table.markdown()),
                Part::Figure(Figure { name, caption, .. }) => {
                    write!(text, "\n![{caption}]({name}.svg)\n\n*{caption}*\n")
                }
            };
        }
        text
    }

    pub fn figures(&self) -> impl Iterator<Item = &Figure> {
        self.parts.iter().filter_map(|part| match part {
            Part::Figure(figure) => Some(figure),
            _ => None,
        })
    }

    fn goals_table(&self) -> TextTable {
        TextTable::of(
            3,
            &self.goals,
            &[
                ("figure to reach", &|goal| goal.goal.clone()),
                ("measured", &|goal| goal.measured.clone()),
                ("", &|goal| goal.verdict().to_owned()),
            ],
        )
    }
}

/// A subsection with this table.
pub(crate) fn section(heading: impl Into<String>, table: TextTable) -> [Part; 2] {
    [Part::Heading(heading.into()), Part::TextTable(table)]
}

/// Names the sets that were skipped, if any was.
pub(crate) fn without_data(skipped: &[String]) -> Option<Part> {
    let names = skipped.join(", ");
    let heading = format!("Skipped, not in $BALLAST_DATA (default ../shared/data): {names}");
    (!skipped.is_empty()).then_some(Part::Heading(heading))
}

/// A value of a text, by its name.
pub(crate) type Named<'a> = (&'a str, &'a dyn Display);

/// A text of the folder `words` with these values in place of `{names}`, each paragraph in one line.
pub(crate) fn filled(template: &str, values: &[Named<'_>]) -> String {
    let items =
        |paragraph: &str| paragraph.split("\n- ").map(|item| item.replace('\n', " ")).collect::<Vec<_>>();
    let paragraphs = template.trim_end().split("\n\n").map(|paragraph| items(paragraph).join("\n- "));
    let mut text = paragraphs.collect::<Vec<_>>().join("\n\n");
    for (name, value) in values {
        text = text.replace(&format!("{{{name}}}"), &value.to_string());
    }
    debug_assert!(!text.contains('{'), "a value is missing: {text}");
    text
}

/// A number with so many places; a dash where there is none.
pub(crate) fn number(value: f64, places: usize) -> String {
    if value.is_finite() { format!("{value:.places$}") } else { "–".to_owned() }
}

/// The same of a number that may be missing: nothing where it is.
pub(crate) fn maybe(value: Option<f64>, places: usize) -> String {
    value.map(|value| number(value, places)).unwrap_or_default()
}

pub(crate) fn range(low: f64, high: f64, places: usize) -> String {
    format!("{}–{}", number(low, places), number(high, places))
}

pub(crate) fn percent(share: f64, places: usize) -> String {
    number(100.0 * share, places)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut table = TextTable::new(1, &["policy", "P95"]);
        table.row(vec!["stepwise".into(), number(1.0, 3)]);
        let figure = Figure {
            name: "server-figure5".into(),
            caption: "Figure 5".into(),
            height: 100,
            draw: Box::new(|_| Ok(())),
        };

        Report {
            name: "server",
            title: "One server",
            command: "ballast-lab experiment server".into(),
            parts: vec![
                Part::Heading("Bursty".into()),
                Part::Words("Why.".into()),
                Part::TextTable(table),
                Part::Figure(figure),
            ],
            goals: vec![
                Goal::new("a", Some(("1".into(), true))),
                Goal::new("b", Some(("2".into(), false))),
                Goal::new("c", None),
            ],
            options: Value::Null,
            rows: Value::Array(vec![]),
        }
    }

    #[test]
    fn people_and_documents_see_tables_and_verdicts() {
        let (text, markdown) = (report().text(), report().markdown());
        for part in ["One server", "Bursty", "1.000", "NOT MET", "not measured"] {
            assert!(text.contains(part) && markdown.contains(part), "{part}\n{text}\n{markdown}");
        }
        assert!(markdown.contains("![Figure 5](server-figure5.svg)"), "{markdown}");
        assert!(markdown.contains("Why.") && !text.contains("Why."));
    }

    #[test]
    fn programs_see_rows_options_and_verdicts() {
        let json = report().json().unwrap();
        assert_eq!(json["experiment"], "server");
        assert_eq!(json["goals"][1]["met"], false);
        assert!(json["goals"][2]["met"].is_null());
        assert!(json["rows"].is_array());

        // What was not measured is no miss.
        assert!(!report().met());
        let mut fine = report();
        fine.goals.remove(1);
        assert!(fine.met());
    }

    #[test]
    fn a_text_has_values_in_place_of_their_names() {
        let text = filled("{n} rows of\n{n}:\n\n- one\n  more\n- two\n", &[("n", &3)]);
        assert_eq!(text, "3 rows of 3:\n\n- one   more\n- two");
    }

    #[test]
    fn what_is_not_a_number_is_a_dash() {
        assert_eq!(number(f64::NAN, 2), "–");
        assert_eq!((maybe(None, 1), percent(0.125, 1)), (String::new(), "12.5".to_owned()));
        assert_eq!(range(1.0, 2.0, 1), "1.0–2.0");
    }
}
