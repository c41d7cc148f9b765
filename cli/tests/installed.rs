//! What the packages install: completions, manual pages, the pages of the book; and that what is named is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::ballast;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const PACKAGES: [(&str, &str); 4] = [
    ("ballast", "cli"),
    ("ballast-agent", "daemons/agent"),
    ("ballast-chassis", "daemons/chassis"),
    ("ballast-place", "daemons/place"),
];

/// What `ballast man` writes for the packages.
fn generated() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    assert!(ballast(folder.path(), "man --dir .").status.success());
    folder
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

/// The files that an asset's pattern names, each with what follows the folder of the first `*`.
fn matching(pattern: &Path) -> Vec<(PathBuf, PathBuf)> {
    let text = pattern.to_str().unwrap();
    let Some(star) = text.find('*') else {
        let name = pattern.file_name().unwrap().into();
        return if pattern.is_file() { vec![(pattern.to_owned(), name)] } else { vec![] };
    };
    let folder = Path::new(&text[..text[..star].rfind('/').unwrap()]);
    let (is_deep, last) = (text.contains("**"), text.rsplit('/').next().unwrap());
    let (begins, ends) = last.split_once('*').unwrap();
    let fits = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        (is_deep || path.parent() == Some(folder)) && name.starts_with(begins) && name.ends_with(ends)
    };
    let inner = |path: PathBuf| (path.clone(), path.strip_prefix(folder).unwrap().to_owned());
    files_below(folder).into_iter().filter(fits).map(inner).collect()
}

/// Of every package: its files where they are installed, each with where it comes from; programs left out.
fn installed(generated: &Path) -> BTreeMap<&'static str, BTreeMap<PathBuf, PathBuf>> {
    let mut packages = BTreeMap::new();
    for (name, folder) in PACKAGES {
        let folder = Path::new(ROOT).join(folder);
        let manifest: toml::Table = fs::read_to_string(folder.join("Cargo.toml")).unwrap().parse().unwrap();
        let assets = manifest["package"]["metadata"]["deb"]["assets"].as_array().unwrap();
        let mut files = BTreeMap::new();
        for asset in assets {
            let [from, to] = [0, 1].map(|n| asset[n].as_str().unwrap());
            let from = match from.split_once("packaging/generated/") {
                Some((_, path)) => generated.join(path),
                None if from.starts_with("target/") => continue,
                None => folder.join(from).canonicalize().unwrap_or_else(|_| folder.join(from)),
            };
            let found = matching(&from);
            assert!(!found.is_empty(), "{name}: nothing is {}", from.display());
            for (from, inner) in found {
                let to = if to.ends_with('/') {
                    Path::new("/").join(to).join(inner)
                } else {
                    Path::new("/").join(to)
                };
                assert!(files.insert(to.clone(), from).is_none(), "{name}: {} twice", to.display());
            }
        }
        packages.insert(name, files);
    }
    packages
}

/// What stands before each `end` in a text, back to the last letter that no path has.
fn paths_before<'a>(text: &'a str, end: &'a str) -> impl Iterator<Item = &'a str> {
    text.match_indices(end).map(move |(at, _)| {
        let is_of_path = |letter: char| letter.is_ascii_alphanumeric() || "/._-".contains(letter);
        let begin = text[..at].rfind(|letter| !is_of_path(letter)).map_or(0, |before| before + 1);
        &text[begin..at + end.len()]
    })
}

#[test]
fn what_is_generated_is_installed_by_one_package_each() {
    let folder = generated();
    let mut shipped = BTreeSet::new();
    for (to, from) in installed(folder.path()).into_values().flatten() {
        assert!(!to.starts_with("/etc") || shipped.insert(from.clone()), "{} by two packages", to.display());
        if from.starts_with(folder.path()) {
            assert!(shipped.insert(from.clone()), "{} by two packages", from.display());
        }
    }
    let all = files_below(folder.path());
    let left: Vec<_> = all.iter().filter(|it| !shipped.contains(*it) && !it.ends_with("cli.md")).collect();
    assert!(all.len() > 50 && left.is_empty(), "no package has {left:?}");
}

/// `docs/…` in a config file, and `/usr/share/doc/…` everywhere, lead to a page of the same package.
#[test]
fn pages_that_installed_files_name_are_installed() {
    let folder = generated();
    let mut pointers = 0;
    for (package, files) in installed(folder.path()) {
        let doc = Path::new("/usr/share/doc").join(package);
        for (to, from) in files.iter().filter(|(to, _)| !to.ends_with("uPlot.iife.min.js")) {
            let text = fs::read_to_string(from).unwrap().replace("\\-", "-").replace("\\&.", ".");
            let is_page = to.extension().is_some_and(|it| it == "md");
            for path in paths_before(&text, ".md").filter(|_| !is_page) {
                let page = match path.strip_prefix("docs/") {
                    Some(_) if to.starts_with("/etc") => doc.join(path),
                    _ if path.starts_with("/usr/share/doc/") => path.into(),
                    _ => continue,
                };
                pointers += 1;
                assert!(files.contains_key(&page), "{package}: {} names {}", to.display(), page.display());
            }
            if to.starts_with("/etc/ballast") {
                assert!(text.contains(&format!("/usr/share/doc/{package}/")), "{}", to.display());
            }
        }
    }
    assert!(pointers > 30, "only {pointers}");
}

/// A page's links to other pages work where it is installed.
#[test]
fn links_between_installed_pages_lead_somewhere() {
    let folder = generated();
    let mut links = 0;
    for (package, files) in installed(folder.path()) {
        for (to, from) in files.iter().filter(|(to, _)| to.extension().is_some_and(|it| it == "md")) {
            let text = fs::read_to_string(from).unwrap();
            for link in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
                if !link.ends_with(".md") || link.contains("://") {
                    continue;
                }
                links += 1;
                let mut page = to.parent().unwrap().to_owned();
                for part in link.split('/') {
                    match part {
                        ".." => assert!(page.pop()),
                        part => page.push(part),
                    }
                }
                assert!(files.contains_key(&page), "{package}: {} links to {link}", to.display());
            }
        }
    }
    assert!(links > 400, "only {links}");
}

#[test]
fn manual_pages_have_their_sections_and_every_page_that_they_name_is_there() {
    let folder = generated();
    let (mut pages, mut named) = (BTreeSet::new(), vec![]);
    let is_manual = |file: &PathBuf| {
        let parent = file.parent().unwrap().file_name().unwrap();
        parent.to_str().unwrap().starts_with("man")
    };
    for file in files_below(folder.path()).into_iter().filter(is_manual) {
        let text = fs::read_to_string(&file).unwrap().replace("\\-", "-");
        let page = file.file_name().unwrap().to_str().unwrap().to_owned();
        let (name, section) = page.rsplit_once('.').unwrap();
        let title = text.lines().find(|line| line.starts_with(".TH ")).unwrap();
        let version = concat!("\"Ballast ", env!("CARGO_PKG_VERSION"), "\" \"Ballast Manual\"");
        let begins = format!(".TH {name} {section} 20");
        assert!(title.starts_with(&begins) && title.ends_with(version), "{page}: {title}");
        assert!(!text.contains(".SH EXTRA") && !text.contains("exit-with-parent"), "{page}");
        let has = |section: &str| text.contains(&format!(".SH {section}\n"));
        assert!(has("NAME") && has("DESCRIPTION"), "{page}");
        // What is below these is an example of theirs.
        let has_none = ["ballast-admit-", "ballast-agent-", "ballast-chassis-"];
        let is_excepted =
            section == "5" || has("SUBCOMMANDS") || has_none.iter().any(|it| name.starts_with(it));
        assert!(is_excepted || has("EXAMPLES"), "{page}");
        for section in ["1", "5", "8"] {
            named
                .extend(paths_before(&text, &format!("({section})")).map(|it| (page.clone(), it.to_owned())));
        }
        pages.insert(page);
    }
    // Units name pages, too.
    for unit in files_below(&Path::new(ROOT).join("systemd")) {
        let text = fs::read_to_string(&unit).unwrap();
        let page = unit.file_name().unwrap().to_str().unwrap().to_owned();
        for section in ["1", "5", "8"] {
            named
                .extend(paths_before(&text, &format!("({section})")).map(|it| (page.clone(), it.to_owned())));
        }
    }

    let ours: Vec<_> = named.iter().filter(|(_, it)| it.contains("ballast")).collect();
    let dangling = ours.iter().filter(|(_, it)| {
        let (name, section) = it.trim_end_matches(')').rsplit_once('(').unwrap();
        !pages.contains(&format!("{name}.{section}"))
    });
    let dangling: Vec<_> = dangling.collect();
    assert!(ours.len() > 60 && dangling.is_empty(), "{dangling:?}");
    for page in ["ballast-agent-release.8", "ballast-agent-stop-post.8", "ballast-chassis-release.8"] {
        assert!(pages.contains(page), "no {page}");
    }
}

/// The pages of the config files say what the book's reference says.
#[test]
fn the_manual_names_every_key_with_its_default() {
    let folder = generated();
    let reference = fs::read_to_string(Path::new(ROOT).join("docs/reference/config.md")).unwrap();
    for daemon in ["agent", "chassis", "place"] {
        let page = folder.path().join(format!("man5/ballast-{daemon}.toml.5"));
        let page =
            fs::read_to_string(page).unwrap().replace("\\-", "-").replace("\\fB", "").replace("\\fR", "");
        let begin = format!("<!-- generated: {daemon}.toml -->");
        let part = reference.split(&begin).nth(1).and_then(|it| it.split("<!-- end").next()).unwrap();
        let keys = part.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
        let keys: Vec<_> = keys.collect();
        assert!(keys.len() > 30, "{daemon}: {}", keys.len());
        for (key, rest) in keys {
            let default = rest.split(" | ").nth(1).unwrap().replace('`', "");
            assert!(page.contains(&format!("\n{key}\n")), "{daemon}: {key}");
            assert!(page.contains(&format!("Default: {default}.")), "{daemon}: {key} = {default}");
        }
    }
}

/// What bash offers for the last of these words, in a folder with one file.
fn offered(script: &Path, words: &[&str]) -> Vec<String> {
    let ask = "source \"$1\"; shift; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1))\n\
               _ballast ballast \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\" 2>/dev/null\n\
               printf '%s\\n' \"${#COMPREPLY[@]}\" \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", ask, "bash"]).arg(script).args(words).current_dir(script.parent().unwrap());
    let output = bash.output().expect("bash");
    let said = String::from_utf8(output.stdout).unwrap();
    let mut lines = said.lines().map(str::to_owned);
    let count: usize = lines.next().unwrap().parse().unwrap();
    let offered: Vec<_> = lines.collect();
    assert_eq!(offered.len(), count, "{said}");
    offered
}

#[test]
fn a_shell_completes_commands_values_and_files_only_where_one_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let output = ballast(folder.path(), &format!("completions {shell}"));
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && script.contains("budget-w"), "{shell}");
        for hidden in ["exit-with-parent", "row-by-row", "Write manual pages"] {
            assert!(!script.contains(hidden), "{shell}: {hidden}");
        }
        fs::write(folder.path().join(shell), script).unwrap();
    }

    let script = folder.path().join("bash");
    let offered = |words: &[&str]| offered(&script, words);
    let has = |words: &[&str], word: &str| offered(words).iter().any(|it| it == word);
    assert!(has(&["ballast", ""], "status") && !has(&["ballast", ""], "man"));
    assert!(has(&["ballast", "completions", ""], "fish"));
    assert!(has(&["ballast", "replay", "--policy", ""], "full-server"));
    assert!(has(&["ballast", "replay", "--telemetry", ""], "zsh"));
    // One empty word: with none at all bash would offer files.
    assert_eq!(offered(&["ballast", "replay", "--budget-w", ""]), [""]);
    crate::common::refused(folder.path(), "completions tcsh", "[possible values: bash, zsh, fish]");
}

#[test]
fn the_packages_bring_the_completions_that_the_command_prints() {
    let folder = generated();
    for (shell, file) in [("bash", "ballast.bash"), ("zsh", "_ballast"), ("fish", "ballast.fish")] {
        let printed = ballast(folder.path(), &format!("completions {shell}")).stdout;
        let written = fs::read_to_string(folder.path().join("completions").join(file)).unwrap();
        assert_eq!(written.trim_end(), String::from_utf8(printed).unwrap().trim_end(), "{shell}");
    }
}
