//! What keeps secrets out of the archive: of config files the keys that Ballast knows, of every text no PEM block
//! and no user in an address.

use std::collections::BTreeSet;

use ballast_agent::config::{AgentConfig, ConfigFile as _};
use ballast_chassis::config::ChassisConfig;
use ballast_place::config::PlaceConfig;
use toml::{Table, Value};

/// What stands in the place of a secret.
const LEFT_OUT: &str = "(left out)";
const PEM_BEGIN: &str = "-----BEGIN ";
const PEM_END: &str = "-----END ";

/// The text without PEM blocks, and without users and passwords in addresses.
pub(super) fn scrub(text: &str) -> String {
    without_users(&without_pem(text))
}

fn without_pem(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(PEM_BEGIN) {
        kept += &rest[..at];
        kept += LEFT_OUT;
        let block = &rest[at + PEM_BEGIN.len()..];
        // A block that does not end is left out to the end of the text.
        let end = block.find(PEM_END).and_then(|end| {
            let label = end + PEM_END.len();
            Some(label + block[label..].find("-----")? + 5)
        });
        rest = end.map_or("", |end| &block[end..]);
    }
    kept + rest
}

/// Rather too much than too little: a password may hold whatever an address may.
fn without_users(text: &str) -> String {
    let ends = |letter: char| letter.is_whitespace() || "\"'<>`\\,".contains(letter);
    let each = |word: &str| {
        let plain = word.trim_end_matches(ends);
        without_user(plain) + &word[plain.len()..]
    };
    text.split_inclusive(ends).map(each).collect()
}

/// One word, without the user and the password before its last `@`, and without the query of an address.
fn without_user(word: &str) -> String {
    let (scheme, rest) = match word.find("://") {
        Some(at) => word.split_at(at + 3),
        None => ("", word),
    };
    let user = rest.rfind('@').filter(|at| !scheme.is_empty() || rest[..*at].contains(':'));
    let user = user.filter(|_| !rest.starts_with("unix:/"));
    let (hidden, rest) = user.map_or(("", rest), |at| (LEFT_OUT, &rest[at..]));
    match rest.find('?').filter(|_| !scheme.is_empty()) {
        Some(query) => format!("{scheme}{hidden}{}?{LEFT_OUT}", &rest[..query]),
        None => format!("{scheme}{hidden}{rest}"),
    }
}

/// The keys of the three files, with their tables' paths.
pub(super) struct ConfigKeys {
    tables: BTreeSet<String>,
    keys: BTreeSet<(String, &'static str)>,
}

impl ConfigKeys {
    pub(super) fn new() -> Self {
        let (mut tables, mut keys) = (BTreeSet::new(), BTreeSet::new());
        for table in [AgentConfig::reference(), ChassisConfig::reference(), PlaceConfig::reference()].concat()
        {
            let path = table.heading.trim_matches(['[', ']']).to_owned();
            keys.extend(table.keys.iter().map(|it| (path.clone(), it.key.key)));
            tables.insert(path);
        }
        Self { tables, keys }
    }

    /// A config file's text with the values of known keys alone, and without comments.
    ///
    /// # Errors
    /// What is wrong with the file, without a word of it.
    pub(super) fn redacted(&self, text: &str) -> Result<String, String> {
        let mut table: Table = text.parse().map_err(|error: toml::de::Error| error.message().to_owned())?;
        self.redact("", &mut table);
        toml::to_string(&table).map_err(|error| error.to_string())
    }

    fn is_known(&self, path: &str, key: &str) -> bool {
        self.keys.iter().any(|(at, known)| *at == path && *known == key)
    }

    fn redact(&self, path: &str, table: &mut Table) {
        for (key, value) in table.iter_mut() {
            let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            match value {
                Value::Table(table) if self.tables.contains(&below) => self.redact(&below, table),
                Value::Array(values) if self.tables.contains(&below) => {
                    values.iter_mut().for_each(|value| match value {
                        Value::Table(table) => self.redact(&below, table),
                        other => *other = LEFT_OUT.into(),
                    });
                }
                known if self.is_known(path, key) && is_harmless(path, key, known) => {}
                unknown => *unknown = LEFT_OUT.into(),
            }
        }
    }
}

/// Whether a value is what its key takes: where a file should be named, somebody may have put what belongs into it.
fn is_harmless(path: &str, key: &str, value: &Value) -> bool {
    let names_a_file = key.ends_with("_file") || path.ends_with("tls");
    match value {
        Value::String(text) if names_a_file => {
            text.starts_with(['/', '.']) && text.len() < 256 && !text.contains([':', ' ', '+', '='])
        }
        Value::Array(values) => values.iter().all(|value| is_harmless(path, key, value)),
        Value::Table(_) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_nobody_knows_keep_their_values_for_themselves() {
        let text = "budget_w = 500 # hunter0\npassword = \"hunter1\"\n[redfish]\n\
                    credentials_file = \"/etc/bmc\"\npassword = \"hunter2\"\ntoken = { a = [\"hunter3\"] }\n\
                    [[server]]\nid = \"s01\"\nsecret = 4\n[hunter]\nid = \"hunter5\"\n";
        let kept = ConfigKeys::new().redacted(text).unwrap();
        assert!(!kept.contains("\"hunter") && !kept.contains("hunter0") && !kept.contains("= 4"), "{kept}");
        for part in
            ["budget_w = 500", "credentials_file = \"/etc/bmc\"", "id = \"s01\"", "secret = \"(left out)\""]
        {
            assert!(kept.contains(part), "{part}: {kept}");
        }
        let text = "budget_w = { password = \"hunter1\" }\nlisten = [{ x = \"hunter2\" }]\n\
                    [redfish]\ncredentials_file = \"admin:hunter3\"\n[tls]\nkey = \"MIGHunter4\"\n\
                    cert = \"/etc/ballast/c1.crt\"\n";
        let kept = ConfigKeys::new().redacted(text).unwrap();
        assert!(!kept.to_lowercase().contains("hunter") && kept.contains("/etc/ballast/c1.crt"), "{kept}");
        let error = ConfigKeys::new().redacted("password = hunter2").unwrap_err();
        assert!(!error.contains("hunter2"), "{error}");
    }

    /// A key that holds a secret itself would have to be left out.
    #[test]
    fn keys_about_secrets_name_files() {
        let words = ["password", "secret", "token", "credential", "username"];
        let keys = ConfigKeys::new().keys;
        let about = keys.iter().filter(|(_, key)| words.iter().any(|word| key.contains(word)));
        let about: Vec<_> = about.collect();
        assert!(about.len() >= 2 && about.iter().all(|(_, key)| key.ends_with("_file")), "{about:?}");
    }

    #[test]
    fn pem_blocks_and_users_in_addresses_are_left_out_of_every_text() {
        let key = "-----BEGIN PRIVATE KEY-----\\nMIGH\\n-----END PRIVATE KEY-----";
        for (text, kept) in [
            (format!("a {key} b {key}c"), "a (left out) b (left out)c"),
            ("a -----BEGIN EC PRIVATE KEY-----\nMIGH".to_owned(), "a (left out)"),
            (
                "get https://ann:pa@ss@bmc1/x, unix:/a@b".to_owned(),
                "get https://(left out)@bmc1/x, unix:/a@b",
            ),
            (
                "\"http://u:p@h\" and http://h:1/a?b=c d".to_owned(),
                "\"http://(left out)@h\" and http://h:1/a?(left out) d",
            ),
            (
                "ann:hun/ter@h:7100 and http://ann:hun/ter@h".to_owned(),
                "(left out)@h:7100 and http://(left out)@h",
            ),
            (
                "c1: pmbus@3-0058, ballast-chassis@c1.service: x".to_owned(),
                "c1: pmbus@3-0058, ballast-chassis@c1.service: x",
            ),
            ("plain".to_owned(), "plain"),
        ] {
            assert_eq!(scrub(&text), kept);
        }
    }
}
