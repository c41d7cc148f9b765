//! Names of systemd's units, as they stand in cgroup paths.
//!
//! Source: systemd.unit(5) ("String Escaping"); systemd's `cg_escape` and `unit_name_unescape`.

/// The unit whose own cgroup `path` is, if it is one: `batch.slice/a.service` is `a.service`. A group below
/// a unit belongs to whoever runs in it.
pub fn unit_of(path: &str) -> Option<&str> {
    let name = path.rsplit('/').next()?;
    // systemd puts a `_` before names that the kernel could take for its own files.
    let name = name.strip_prefix('_').unwrap_or(name);
    let (stem, kind) = name.rsplit_once('.')?;
    (!stem.is_empty() && matches!(kind, "slice" | "scope" | "service")).then_some(name)
}

/// Undoes `\xNN`. What is not well escaped stays as it is.
pub fn unescape(name: &str) -> String {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = match tail {
            [b'x', high, low, after @ ..] if *first == b'\\' => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16);
                digit(high).zip(digit(low)).map(|(high, low)| ((high * 16 + low) as u8, after))
            }
            _ => None,
        };
        let (byte, after) = escaped.unwrap_or((*first, tail));
        bytes.push(byte);
        rest = after;
    }
    String::from_utf8(bytes).unwrap_or_else(|_| name.to_owned())
}

/// The domain of libvirt whose scope `path` is: its id, and its name as far as systemd was told it (libvirt
/// drops what is no letter, digit, `.`, `_` or `-`, and cuts at 64 characters).
///
/// The scope is `machine-qemu\x2d3\x2dweb.scope`: driver, id and name, joined by escaped hyphens.
pub fn domain_of(path: &str) -> Option<(u32, String)> {
    let name = unit_of(path)?.strip_prefix("machine-")?.strip_suffix(".scope")?;
    let machine = unescape(name);
    let mut parts = machine.splitn(3, '-');
    let (driver, id, name) = (parts.next()?, parts.next()?, parts.next()?);
    let plain = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
    (driver == "qemu" && plain && !name.is_empty()).then_some(())?;
    Some((id.parse().ok()?, name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_units_own_group_is_a_unit() {
        for (path, unit) in [
            ("batch.slice", Some("batch.slice")),
            ("batch.slice/a@1.service", Some("a@1.service")),
            (r"machine.slice/machine-qemu\x2d3\x2dweb.scope", Some(r"machine-qemu\x2d3\x2dweb.scope")),
            ("x.slice/_cpu.service", Some("cpu.service")),
            (r"machine.slice/machine-qemu\x2d3\x2dweb.scope/libvirt", None),
            ("system.slice/vmm.service/vm1", None),
            ("vms/vm1", None),
            ("vms/.slice", None),
            ("vms/a.socket", None),
            ("", None),
        ] {
            assert_eq!(unit_of(path), unit, "{path}");
        }
    }

    #[test]
    fn escapes_are_undone_and_garbage_is_left() {
        for (text, plain) in [
            (r"a\x2db", "a-b"),
            (r"\x2d", "-"),
            (r"a\x2", r"a\x2"),
            (r"a\xzz", r"a\xzz"),
            (r"a\", r"a\"),
            (r"\xff", r"\xff"),
            (r"\xc3\xa4", "ä"),
        ] {
            assert_eq!(unescape(text), plain, "{text}");
        }
    }

    #[test]
    fn a_domain_is_told_by_its_scope() {
        let scope = |name: &str| domain_of(&format!("machine.slice/{name}"));
        assert_eq!(scope(r"machine-qemu\x2d3\x2dweb.scope"), Some((3, "web".into())));
        assert_eq!(scope(r"machine-qemu\x2d12\x2dweb\x2d1.scope"), Some((12, "web-1".into())));
        for other in [
            r"machine-lxc\x2d3\x2dweb.scope",
            r"machine-qemu\x2dx\x2dweb.scope",
            r"machine-qemu\x2d3.scope",
            r"machine-qemu\x2d3\x2d.scope",
            r"machine-qemu\x2d99999999999\x2dweb.scope",
            r"machine-qemu\x2d+3\x2dweb.scope",
            r"machine-qemu\x2d3\x2dweb.scope/libvirt",
            "batch.service",
        ] {
            assert_eq!(scope(other), None, "{other}");
        }
    }
}
