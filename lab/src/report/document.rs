//! `docs/experiments.md`: one section per experiment, each between its own markers.

use anyhow::bail;

/// The document, in its folder.
pub const FILE: &str = "experiments.md";
/// The folder of its plots, beside it.
pub const PLOTS: &str = "experiments";
/// The order of the sections. What stands outside of their markers is never touched.
const ORDER: [&str; 14] = [
    "server",
    "chassis",
    "tradeoff",
    "stability",
    "scheduler",
    "admission",
    "labels",
    "models",
    "oversubscription",
    "chain",
    "colocation",
    "limits",
    "lifetimes",
    "traces",
];
/// What a new document begins with.
pub const HEAD: &str = "# Experiments\n\n\
    Generated: `ballast experiment all --output docs` (or `just experiments`) writes all of it, \
    `ballast experiment server --output docs` that experiment's section alone. Every figure and \
    every verdict is computed from the runs. The same command gives the same bytes.\n";

fn begin(name: &str) -> String {
    format!("<!-- experiment: {name} -->\n")
}

fn end(name: &str) -> String {
    format!("<!-- end of experiment: {name} -->\n")
}

/// The document with this section instead of its old one, or in its place by `ORDER`.
/// This fails when the section's markers do not pair.
pub fn with_section(document: &str, name: &str, section: &str) -> anyhow::Result<String> {
    let (begin, end) = (begin(name), end(name));
    let block = format!("{begin}\n{}\n\n{end}", section.trim());
    let (from, to, block) = match (document.find(&begin), document.find(&end)) {
        (Some(from), Some(to)) if from < to => (from, to + end.len(), block),
        (None, None) => match next(document, name) {
            Some(at) => (at, at, format!("{block}\n")),
            None => (document.len(), document.len(), format!("\n{block}")),
        },
        _ => bail!(
            "the markers of section {name} do not pair: \"{}\" must be followed by \"{}\", once",
            begin.trim(),
            end.trim()
        ),
    };
    Ok(format!("{}{block}{}", &document[..from], &document[to..]))
}

/// Where the first section begins that stands behind this one.
fn next(document: &str, name: &str) -> Option<usize> {
    let later = ORDER.iter().skip_while(|other| **other != name).skip(1);
    later.filter_map(|later| document.find(&begin(later))).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_find_their_place_whatever_the_order_of_writing() {
        let sections = [
            ("traces", "R"),
            ("lifetimes", "N"),
            ("chain", "K"),
            ("limits", "I"),
            ("colocation", "J"),
            ("oversubscription", "O"),
            ("models", "M"),
            ("labels", "L"),
            ("stability", "S"),
            ("server", "A"),
            ("tradeoff", "T"),
            ("chassis", "C"),
            ("scheduler", "P"),
            ("admission", "G"),
        ];

        let mut document = HEAD.to_owned();
        for (name, text) in sections {
            document = with_section(&document, name, text).unwrap();
        }
        let mut ordered = HEAD.to_owned();

        for name in ORDER {
            let (_, text) = sections.iter().find(|(n, _)| *n == name).unwrap();
            ordered = with_section(&ordered, name, text).unwrap();
        }

        assert_eq!(document, ordered);
        assert!(document.starts_with(HEAD));
    }

    #[test]
    fn a_second_time_changes_nothing_and_a_new_text_only_its_section() {
        let one = with_section(HEAD, "server", "first").unwrap();
        let two = with_section(&one, "chassis", "other").unwrap();
        assert_eq!(with_section(&two, "server", "first").unwrap(), two);
        let by_hand = format!("{two}\nWritten by hand.\n");
        let three = with_section(&by_hand, "server", "second").unwrap();
        assert_eq!(three, by_hand.replace("first", "second"));
    }

    #[test]
    fn broken_markers_are_refused_by_name() {
        let broken = format!("{HEAD}{}", begin("server"));
        let error = with_section(&broken, "server", "x").unwrap_err().to_string();
        assert!(error.contains("section server"), "{error}");
    }
}
