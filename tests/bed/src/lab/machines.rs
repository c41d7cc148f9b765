//! Recorded machines: one compact text file each, below `tests/machines`, unpacked into a folder.
//!
//! One line is one file, link or folder, its path below the root:
//!
//! ```text
//! path: text                  a file; \n and \t in the text stand for themselves
//! path -> target              a link
//! path/                       an empty folder
//! # anything                  a comment
//! ```
//!
//! `{0-3,8}` in a path makes one line of each number; `{}` in the text is that number, `{+4}` and `{-4}`
//! are four more and four less.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use tempfile::TempDir;

const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../machines");

/// The kinds that there are, in alphabetical order.
pub fn kinds() -> Vec<String> {
    let entries = fs::read_dir(DIR).expect("tests/machines").flatten();
    let names = entries.map(|entry| entry.file_name().into_string().expect("a plain name"));
    let mut kinds: Vec<_> = names.filter_map(|name| name.strip_suffix(".txt").map(str::to_owned)).collect();
    kinds.sort();
    kinds
}

/// A machine as a folder, gone when dropped.
pub fn unpack(kind: &str) -> TempDir {
    let text = fs::read_to_string(format!("{DIR}/{kind}.txt")).expect(kind);
    let dir = tempfile::tempdir().expect("a temporary folder");
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        for line in expanded(line) {
            put(dir.path(), &line);
        }
    }
    dir
}

fn put(root: &Path, line: &str) {
    let at = |path: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect(line);
        path
    };

    if let Some((path, target)) = line.split_once(" -> ") {
        symlink(target, at(path)).expect(line);
    } else if let Some(path) = line.strip_suffix('/') {
        fs::create_dir_all(at(path)).expect(line);
    } else {
        // ACPI names have colons: the one before the text is the last with a space or the end behind it.
        let (path, text) = match line.strip_suffix(':') {
            Some(path) => (path, ""),
            None => line.split_once(": ").unwrap_or_else(|| panic!("{line:?} is no line")),
        };

        let text = text.replace("\\n", "\n").replace("\\t", "\t");
        fs::write(at(path), text + "\n").expect(line);
    }
}

/// One line of each number in the path's braces.
fn expanded(line: &str) -> Vec<String> {
    let path_end = line.find(": ").unwrap_or(line.len());
    let (Some(open), Some(close)) = (line[..path_end].find('{'), line[..path_end].find('}')) else {
        return vec![line.to_owned()];
    };
    let one = |number: i64| {
        let mut text = line[close + 1..].replace("{}", &number.to_string());
        while let Some(start) = text.find("{+").or_else(|| text.find("{-")) {
            let end = start + text[start..].find('}').expect(line);
            let more: i64 = text[start + 1..end].parse().expect(line);
            text.replace_range(start..=end, &(number + more).to_string());
        }

        format!("{}{number}{text}", &line[..open])
    };

    let numbers = line[open + 1..close].split(',').flat_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse::<i64>().expect(line)..=last.parse().expect(line)
    });

    numbers.map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stand_for_files() {
        assert_eq!(
            expanded("cpu{0-1,8}/siblings: {},{+4}"),
            ["cpu0/siblings: 0,4", "cpu1/siblings: 1,5", "cpu8/siblings: 8,12"]
        );
        assert_eq!(expanded("plain: a"), ["plain: a"]);
        let dir = tempfile::tempdir().unwrap();
        for line in ["a/ACPI:00/x: 1\\n2", "a/empty:", "a/folder/", "link -> a/ACPI:00"] {
            put(dir.path(), line);
        }
        assert_eq!(fs::read_to_string(dir.path().join("link/x")).unwrap(), "1\n2\n");
        assert_eq!(fs::read_to_string(dir.path().join("a/empty")).unwrap(), "\n");
        assert!(dir.path().join("a/folder").is_dir());
    }
}
