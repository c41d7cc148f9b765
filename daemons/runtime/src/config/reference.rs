//! The reference of a daemon's keys, made by running the code that reads them.
//!
//! The code is run over an empty text, and says of each key what the key may hold. Then it is run once for every
//! word of every choice, so that keys and defaults which depend on a choice are told with it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::reader::{Description, KeyDescription, Section, describe};

/// A table of the file with its keys; the first one is the file itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableReference {
    /// As in a file: `[meter]`, `[[vm]]`; empty for the keys at the top.
    pub heading: String,
    pub help: &'static str,
    pub keys: Vec<KeyReference>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyReference {
    /// What the code says of the key where nothing is set, or else under the first choice that needs the key.
    pub key: KeyDescription,
    /// Choices of other keys without which the key is refused: `source = "hwmon"`.
    pub only_with: Vec<String>,
    /// Defaults that another choice brings, each with that choice.
    pub other_defaults: Vec<(String, String)>,
}

impl KeyReference {
    /// Its default, and what another choice makes of it, in Markdown.
    pub fn default_text(&self) -> String {
        let default = match (&self.key.default, self.key.is_required) {
            (Some(default), _) => format!("`{default}`"),
            (None, true) => "needed".to_owned(),
            (None, false) => "–".to_owned(),
        };
        let others = self.other_defaults.iter().map(|(value, with)| format!("; `{value}` with `{with}`"));
        default + &others.collect::<String>()
    }

    /// What it is for, and without which choices it is refused, in Markdown.
    pub fn meaning(&self) -> String {
        let with: Vec<_> = self.only_with.iter().map(|with| format!("`{with}`")).collect();
        match with.is_empty() {
            true => self.key.help.to_owned(),
            false => format!("{} Only with {}.", self.key.help, with.join(" or ")),
        }
    }
}

pub fn reference(read: impl Fn(&mut Section<'_, '_>)) -> Vec<TableReference> {
    let usual = describe("", &read);
    let mut tables = vec![TableReference { heading: String::new(), help: "", keys: vec![] }];
    add(&mut tables, &usual);

    for choice in keys(&usual).filter(|key| !key.choices.is_empty() && !key.heading.starts_with("[[")) {
        let path = match choice.heading.trim_matches(['[', ']']) {
            "" => choice.key.to_owned(),
            table => format!("{table}.{}", choice.key),
        };

        // By key: what is said of it, under each word of the choice under which it is read.
        let mut said: BTreeMap<(String, &str), Vec<(String, KeyDescription)>> = BTreeMap::new();
        for word in &choice.choices {
            let setting = format!("{path} = {word}");
            let found = describe(&setting, &read);
            add(&mut tables, &found);
            for key in keys(&found) {
                let of_key = said.entry((key.heading.clone(), key.key)).or_default();
                of_key.push((setting.clone(), key.clone()));
            }
        }

        for it in tables.iter_mut().flat_map(|table| &mut table.keys) {
            let Some(said) = said.get(&(it.key.heading.clone(), it.key.key)) else { continue };
            if said.len() < choice.choices.len() {
                it.only_with.extend(said.iter().map(|(setting, _)| setting.clone()));
                continue;
            }
            let other = said.iter().filter(|(_, key)| key.default != it.key.default);
            it.other_defaults
                .extend(other.filter_map(|(with, key)| Some((key.default.clone()?, with.clone()))));
        }
    }

    tables
}

fn keys(descriptions: &[Description]) -> impl Iterator<Item = &KeyDescription> {
    descriptions.iter().filter_map(|it| match it {
        Description::Key(key) => Some(key),
        Description::Table { .. } => None,
    })
}

/// Adds what is not there yet, each key after the one that was read before it.
fn add(tables: &mut Vec<TableReference>, descriptions: &[Description]) {
    for description in descriptions {
        match description {
            Description::Table { heading, help } => {
                if tables.iter().all(|table| table.heading != *heading) {
                    tables.push(TableReference { heading: heading.clone(), help, keys: vec![] });
                }
            }
            Description::Key(key) => {
                let Some(table) = tables.iter_mut().find(|table| table.heading == key.heading) else {
                    continue;
                };
                if table.keys.iter().any(|it| it.key.key == key.key) {
                    continue;
                }
                let before = keys(descriptions).filter(|it| it.heading == key.heading);
                let before = before.take_while(|it| it.key != key.key).last();
                let at =
                    table.keys.iter().position(|it| before.is_some_and(|before| before.key == it.key.key));
                let (only_with, other_defaults) = (vec![], vec![]);
                let entry = KeyReference { key: key.clone(), only_with, other_defaults };
                table.keys.insert(at.map_or(0, |at| at + 1), entry);
            }
        }
    }
}

/// The reference as Markdown: a heading and a table of keys for every table of the file.
pub fn markdown(tables: &[TableReference]) -> String {
    let mut page = String::new();
    for table in tables {
        if !table.heading.is_empty() {
            let _ = write!(page, "### {}\n\n{}\n\n", table.heading, table.help);
        }
        page.push_str("| key | allowed | default | is |\n|---|---|---|---|\n");
        for it in &table.keys {
            let (key, default, meaning) = (&it.key, it.default_text(), it.meaning());
            let _ = writeln!(page, "| `{}` | {} | {default} | {meaning} |", key.key, key.allowed);
        }
        page.push('\n');
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::allowed::{choice, flag, whole};

    fn read(root: &mut Section<'_, '_>) {
        let mut meter = root.section("meter", "The meter.");
        let by_name = meter.key("by", "Which.").or(false, choice([("rapl", false), ("name", true)]));
        if by_name {
            meter.key("name", "Its number.").required(whole("a number", 1..=9_u8));
        }
        let fast = meter.key("fast", "Whether it is fast.").or(false, flag());
        meter.key("sample", "How often.").or(if fast { 1 } else { 2 }, whole("a number", 1..=9_u8));
        meter.finish();
        for mut vm in root.sections("vm", "A VM.") {
            vm.key("id", "Which.").required(whole("a number", 0..=1_u8));
            vm.finish();
        }
    }

    #[test]
    fn every_key_is_described_with_what_it_depends_on() {
        let page = markdown(&reference(read));
        let keys: Vec<_> =
            page.lines().filter(|line| line.starts_with(['#', '|']) && line.contains('`')).collect();
        assert_eq!(
            keys,
            [
                "| `by` | \"rapl\" or \"name\" | `\"rapl\"` | Which. |",
                "| `name` | a number, 1 to 9 | needed | Its number. Only with `meter.by = \"name\"`. |",
                "| `fast` | true or false | `false` | Whether it is fast. |",
                "| `sample` | a number, 1 to 9 | `2`; `1` with `meter.fast = true` | How often. |",
                "| `id` | a number, 0 to 1 | needed | Which. |",
            ]
        );
    }
}
