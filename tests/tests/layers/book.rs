//! The documents: every relative link leads to a heading, and the list of limits denies nothing that ships.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::source::root;

/// What ships, by the word that a document calls it, and a file that ships it.
const SHIPPED: [(&str, &str); 9] = [
    ("web page", "daemons/runtime/ui/index.html"),
    ("dashboard", "packaging/grafana"),
    ("alert rules", "packaging/prometheus"),
    ("kubepods", "daemons/agent/src/pods/mod.rs"),
    ("kubernetes nodes", "config/kubernetes/agent-daemonset.yaml"),
    ("redfish", "hw/bmc/src/redfish.rs"),
    ("certificates", "cli/src/certs.rs"),
    ("manual pages", "cli/src/man.rs"),
    ("scheduler extender", "config/kubernetes/scheduler.yaml"),
];
/// How a sentence denies that something is there.
const DENIALS: [&str; 7] =
    ["no ", "no such ", "nothing below `", "without a ", "not a ", "never a ", "without "];

/// Every Markdown file of the project, without what builds and packages make.
fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_built =
            ["target", "node_modules", "generated", "corpus"].contains(&name) || path.ends_with("docs/book");
        if path.is_dir() && !is_built && !name.starts_with('.') {
            pages(&path, found);
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

/// The text outside of fenced blocks of code, with the number of each line.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// A heading's anchor, as mdBook and forges make it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
    text.chars().filter(|letter| letter.is_alphanumeric() || "-_".contains(*letter)).collect()
}

/// Where the links of a line lead, without those to other sites.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
}

fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

#[test]
fn every_relative_link_and_anchor_resolves() {
    let mut files = Vec::new();
    pages(&root(), &mut files);
    let texts: BTreeMap<_, _> =
        files.iter().map(|file| (file.clone(), fs::read_to_string(file).expect("text"))).collect();
    assert!(texts.len() > 60, "only {} pages were found", texts.len());

    let (mut broken, mut count) = (String::new(), 0);
    for (file, text) in &texts {
        for (n, line) in prose(text) {
            for link in links(line) {
                count += 1;
                let (path, wanted) = link.split_once('#').unwrap_or((link, ""));
                let target = if path.is_empty() {
                    file.clone()
                } else {
                    normal(&file.parent().expect("a folder").join(path))
                };
                let has_anchor = |text: &String| {
                    prose(text).any(|(_, line)| line.starts_with('#') && anchor(line) == wanted)
                };
                let leads =
                    target.exists() && (wanted.is_empty() || texts.get(&target).is_some_and(has_anchor));
                if !leads {
                    broken += &format!("\n    {}:{}: {link}", file.display(), n + 1);
                }
            }
        }
    }
    assert!(count > 300 && broken.is_empty(), "{count} links; these lead nowhere:{broken}");
}

fn denied(text: &str) -> Vec<String> {
    let text = prose(text).map(|(_, line)| line.trim()).collect::<Vec<_>>().join(" ").to_lowercase();
    let mut found = Vec::new();
    for (name, _) in SHIPPED {
        for denial in DENIALS.iter().map(|denial| format!("{denial}{name}")) {
            let whole = |at: usize| !text[..at].chars().next_back().is_some_and(char::is_alphanumeric);
            found.extend(text.match_indices(&denial).filter(|(at, _)| whole(*at)).map(|_| denial.clone()));
        }
        if text.contains(&format!("no {name}s")) || text.contains(&format!("{name} are not shipped")) {
            found.push(name.to_owned());
        }
    }
    found
}

#[test]
fn the_list_of_limits_denies_nothing_that_ships() {
    for (name, file) in SHIPPED {
        assert!(root().join(file).exists(), "{name} does not ship: there is no {file}");
    }
    // What the page once said of what was there.
    let wrong = "- Pods: an agent touches nothing below `kubepods`.\n- There is no web page, and no\n  \
        dashboards are shipped.";
    assert_eq!(denied(wrong).len(), 4, "{:?}", denied(wrong));

    let text = fs::read_to_string(root().join("docs/limits.md")).expect("docs/limits.md");
    assert_eq!(denied(&text), Vec::<String>::new());
}
