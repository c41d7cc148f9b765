//! `ballast rig`: a plant behind kernel-format files, kept alive so that daemons run without hardware.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use ballast_sim::plant::{Plant, PlantSpec};
use ballast_testbed::rig::Rig;
use ballast_testbed::stage::write_configs;
use clap::Args;

use crate::common::control::ControlArgs;
use crate::common::numbers::positive;
use crate::common::plant::{LoadArgs, plan};
use crate::common::terminal::{say, stop, tell};

/// The path of a socket has at most 100 bytes, of which `/run/agent-s64.sock` takes some.
const FOLDER_BYTES_MAX: usize = 80;

#[derive(Args, Debug)]
pub(crate) struct RigArgs {
    /// The tree's folder: new or empty
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// End after S seconds [default: at SIGTERM or Ctrl-C]
    #[arg(long, value_name = "S", value_parser = positive)]
    seconds: Option<f64>,
    /// Also write configs for the daemons to this folder, and say how they are started
    #[arg(long, value_name = "DIR")]
    configs: Option<PathBuf>,
    /// The manager's port in these configs; the agents have those after it
    #[arg(long, value_name = "N", default_value_t = 7100, requires = "configs",
        value_parser = clap::value_parser!(u16).range(1..=65_000))]
    port: u16,
    #[command(flatten)]
    load: LoadArgs,
}

pub(crate) fn run(args: &RigArgs) -> anyhow::Result<ExitCode> {
    let plan = plan(&args.load)?;
    if let Some(folder) = &args.configs {
        fit_for_configs(folder).with_context(|| format!("--configs {}", folder.display()))?;
    }
    let mut rig = Rig::create(&args.dir, Plant::new(plan.plant.clone(), args.load.seed)).context("--dir")?;
    say(&layout(&args.dir, &plan.plant))?;
    if let Some(folder) = &args.configs {
        let (folder, tree) = (folder.canonicalize()?, args.dir.canonicalize()?);
        let control = ControlArgs::default().control()?;
        let commands =
            write_configs(&folder, &tree, &plan.plant, &control, args.port).context("--configs")?;
        let port = args.port;
        say(&format!(
            "\nstart the daemons, each in a shell of its own or with & at the end:\n\n{}\n\nthen look: \
            ballast status http://127.0.0.1:{port}, or http://127.0.0.1:{port}/ in a browser",
            commands.join("\n")
        ))?;
    }

    let ended = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&ended);
    let seconds = args.seconds;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let stop = runtime.block_on(async { stop() })?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async {
            let limit = async {
                match seconds {
                    Some(s) => tokio::time::sleep(Duration::from_secs_f64(s)).await,
                    None => std::future::pending().await,
                }
            };

            tokio::select! {
                () = stop => {}
                () = limit => {}
            }
        });

        flag.store(true, Ordering::Relaxed);
    })?;

    rig.run(&ended).context("the rig broke")?;
    tell("the rig has ended; its tree stays");

    Ok(ExitCode::SUCCESS)
}

/// Makes the folder for configs, before anything else is made.
fn fit_for_configs(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder)?;
    if fs::read_dir(folder)?.next().is_some() {
        bail!("a folder that is new or empty: configs of an earlier rig would stay beside the new ones");
    }
    // The daemons' sockets lie below it.
    let bytes = folder.canonicalize()?.as_os_str().len();
    if bytes > FOLDER_BYTES_MAX {
        bail!(
            "a path of at most {FOLDER_BYTES_MAX} bytes, because sockets lie below it; this one has {bytes}"
        );
    }
    Ok(())
}

fn layout(dir: &Path, plant: &PlantSpec) -> String {
    let dir = dir.display();
    let servers: Vec<&str> = plant.servers.iter().map(|server| server.id.as_str()).collect();
    format!(
        "{dir}/servers/ID    root of one server's agent: cpufreq, RAPL, hwmon, cgroups\n\
         \x20                ID = {}\n\
         {dir}/chassis       root of the chassis manager: power supplies, slot caps\n\
         {dir}/truth.json    what really happened, five times a second",
        servers.join(" ")
    )
}
