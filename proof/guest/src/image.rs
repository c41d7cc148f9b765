//! The image, built once and kept; and the project's own files, packed anew for every run.

use std::fs;
use std::hash::Hasher as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use siphasher::sip::SipHasher13;

use crate::history;

/// What the image is made of: a change of any of them makes a new one.
const RECIPE: [(&str, &str); 8] = [
    ("build-image", include_str!("../recipe/build-image")),
    ("build-modules", include_str!("../recipe/build-modules")),
    ("guest_rapl.c", include_str!("../recipe/guest_rapl.c")),
    ("customize", include_str!("../recipe/customize")),
    ("init", include_str!("../recipe/init")),
    ("shell", include_str!("../recipe/shell")),
    ("guest-shell.service", include_str!("../recipe/guest-shell.service")),
    ("ssdt.asl", include_str!("../recipe/ssdt.asl")),
];

/// What the kernel with `cpu.uclamp.max` is made of.
const KERNEL: [(&str, &str); 3] = [
    ("build-kernel", include_str!("../recipe/build-kernel")),
    ("kernel.config", include_str!("../recipe/kernel.config")),
    ("invariance.c", include_str!("../recipe/invariance.c")),
];

/// The agent's files among those of the authority.
const AGENT_CERT: &str = "agent-guest.crt";
const AGENT_KEY: &str = "agent-guest.key";

/// What there is to run a guest with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    Image(PathBuf),
    /// Tools or a mirror are not to be had here, and why: nothing can be tested.
    NotHere(String),
}

/// The image in `cache`, built if it is not there.
/// This fails if it cannot be built although all that is needed is there: the recipe is wrong.
pub(crate) fn ready(cache: &Path) -> anyhow::Result<Ready> {
    made("image", &RECIPE, cache)
}

/// The same of the folder of the guest's own kernel, which takes ten minutes to build.
pub(crate) fn kernel(cache: &Path) -> anyhow::Result<Ready> {
    made("kernel", &KERNEL, cache)
}

/// What the first file of `recipe` makes, kept by the hash of all of it.
fn made(kind: &str, recipe: &[(&str, &str)], cache: &Path) -> anyhow::Result<Ready> {
    let mut hasher = SipHasher13::new();
    for (_, text) in recipe {
        hasher.write(text.as_bytes());
        hasher.write_u8(0xFF);
    }

    let image = cache.join(format!("{kind}-{:016x}", hasher.finish()));

    // QEMU is checked even with a cached image: the machine may be another one.
    let has_qemu = || {
        let qemu = Command::new("qemu-system-x86_64").arg("--version").stdout(Stdio::null()).status();
        qemu.is_ok_and(|status| status.success())
    };

    if image.is_dir() && has_qemu() {
        return Ok(Ready::Image(image));
    }
    fs::create_dir_all(cache)?;
    let work = tempfile::Builder::new().prefix("build-").tempdir_in(cache)?;

    for (name, text) in recipe {
        let path = work.path().join(name);
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }

    let out = work.path().join(kind);
    fs::create_dir(&out)?;

    if let Some(why) = build(&work.path().join(format!("build-{kind}")), &out)? {
        return Ok(Ready::NotHere(why));
    }
    if !has_qemu() {
        return Ok(Ready::NotHere("qemu-system-x86_64 does not start".into()));
    }
    if !image.is_dir() {
        fs::rename(&out, &image)?;
    }
    Ok(Ready::Image(image))
}

/// Runs the recipe; gives why it cannot be run here, if it cannot.
fn build(recipe: &Path, out: &Path) -> anyhow::Result<Option<String>> {
    let mut command = Command::new(recipe);
    // The summary has stdout for itself.
    let status = command.arg(out).stdin(Stdio::null()).stdout(std::io::stderr()).status();
    let status = status.with_context(|| format!("{} does not start", recipe.display()))?;
    match status.code() {
        Some(0) => Ok(None),
        Some(code) if code == i32::from(crate::NOT_RUN) => Ok(Some("the recipe: see above".to_owned())),
        _ => bail!("{} failed: {status}", recipe.display()),
    }
}

/// Packs what goes into the guest into the tar file `payload`: the packages from the folder `packages`,
/// the agent's certificate from the folder `certs`, and what stands for VMs. The chassis manager is unpacked
/// below `stage`; gives its program.
pub(crate) fn pack(packages: &Path, certs: &Path, stage: &Path, payload: &Path) -> anyhow::Result<PathBuf> {
    let put = |to: &str, mode: u32, bytes: &[u8]| -> anyhow::Result<()> {
        let path = stage.join(to);
        fs::create_dir_all(path.parent().unwrap_or(stage))?;
        fs::write(&path, bytes)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;

        Ok(())
    };

    let vms = include_bytes!("../recipe/guest-vms.service");
    put("etc/systemd/system/guest-vms.service", 0o644, vms)?;
    put("usr/local/sbin/guest-vms", 0o755, include_bytes!("../recipe/guest-vms"))?;
    put("usr/local/sbin/guest-psu", 0o755, include_bytes!("../recipe/guest-psu"))?;
    put("usr/local/sbin/guest-load", 0o755, include_bytes!("../recipe/guest-load"))?;
    put("usr/local/sbin/guest-work", 0o755, include_bytes!("../recipe/guest-work"))?;
    put("usr/local/sbin/guest-oom", 0o755, include_bytes!("../recipe/guest-oom"))?;
    history::write(&stage.join(history::FOLDER))?;
    for (name, from) in [("agent.crt", AGENT_CERT), ("agent.key", AGENT_KEY), ("ca.crt", "ca.crt")] {
        put(&format!("usr/local/share/guest-tls/{name}"), 0o600, &fs::read(certs.join(from))?)?;
    }
    fs::create_dir_all(stage.join("root"))?;

    for name in ["ballast", "ballast-agent", "ballast-chassis"] {
        fs::copy(package(packages, name)?, stage.join(format!("root/{name}.deb")))?;
    }
    let chassis = stage.join("chassis");
    let deb = package(packages, "ballast-chassis")?;
    run(Command::new("dpkg-deb").arg("--extract").arg(deb).arg(&chassis))?;
    let tar = ["--owner=0", "--group=0", "--numeric-owner", "-cf"];
    let what = ["etc", "root", "usr"];
    run(Command::new("tar").arg("-C").arg(stage).args(tar).arg(payload).args(what))?;

    Ok(chassis.join("usr/bin/ballast-chassis"))
}

/// The file of a package; there must be one version of it.
fn package(packages: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let files = fs::read_dir(packages).with_context(|| format!("{}", packages.display()))?;
    let paths = files.filter_map(|file| Some(file.ok()?.path()));
    let is = |path: &PathBuf| {
        let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
        file.ends_with(".deb") && file.split('_').next() == Some(name)
    };
    let found: Vec<_> = paths.filter(is).collect();
    match <[PathBuf; 1]>::try_from(found) {
        Ok([path]) => Ok(path),
        Err(found) => bail!("{} packages {name} in {}, not one", found.len(), packages.display()),
    }
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with the recipe and tools that do as they are told; `failing` ones fail.
    fn recipe(failing: &[&str]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: PathBuf, text: &str| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        };

        let tools = dir.path().join("tools");
        fs::create_dir(&tools).unwrap();
        let say = |text: &str| format!("#!/bin/sh\n{text}\n");

        for (tool, does) in [
            ("id", "echo 0"),
            ("dpkg-query", "echo install ok installed"),
            ("apt-get", "exit 0"),
            ("iasl", "touch \"$2.aml\""),
            // Told to simulate, it only looks for the mirror.
            (
                "mmdebstrap",
                "for last; do :; done; mkdir -p \"$last\"; touch \"$work/vmlinuz\" \"$work/initramfs\"",
            ),
            ("mke2fs", "exit 0"),
        ] {
            put(tools.join(tool), &say(if failing.contains(&tool) { "exit 3" } else { does }));
        }

        if failing.contains(&"recipe") {
            let real = "case \"$*\" in *--simulate*) exit 0;; *) exit 3;; esac";
            put(tools.join("mmdebstrap"), &say(real));
        }

        if failing.contains(&"tools") {
            put(tools.join("dpkg-query"), &say("echo deinstall ok config-files"));
            put(tools.join("apt-get"), &say("exit 100"));
        }

        let (_, text) = RECIPE[0];
        let path = format!("#!/bin/sh\nPATH={}:$PATH\n", tools.display());
        put(dir.path().join("build-image"), &(path + text));
        fs::write(dir.path().join("ssdt.asl"), "").unwrap();
        fs::create_dir(dir.path().join("out")).unwrap();
        let recipe = dir.path().join("build-image");

        (dir, recipe)
    }

    #[test]
    fn only_missing_tools_and_a_mirror_that_is_away_are_no_run() {
        for (failing, here, wrong) in [
            (&[][..], true, false),
            (&["tools"], false, false),
            (&["mmdebstrap"], false, false),
            (&["recipe"], true, true),
            (&["iasl"], true, true),
            (&["mke2fs"], true, true),
        ] {
            let (dir, recipe) = recipe(failing);
            match build(&recipe, &dir.path().join("out")) {
                Ok(why) => {
                    assert_eq!((why.is_none(), false), (here, wrong), "{failing:?}: {why:?}");
                }
                Err(error) => assert!(wrong, "{failing:?}: {error:#}"),
            }
        }
    }
}
