//! `ballast bench predict`: how many predictions a second the real daemon gives over loopback, and how fast.
//!
//! The daemon answers on one thread, so on one core. Every connection asks again as soon as it has its
//! answer; what is timed is the whole way, client included.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ballast_predict::model::Algorithm;
use ballast_predict::{fleet, train};
use clap::Args;
use nix::sys::signal::Signal;
use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::demo::events::Quantiles;
use crate::demo::processes::{Process, free_addresses};
use crate::demo::stop;
use crate::{all_cores, say, tell};

/// The daemon answers within this, or has failed.
const READY_WITHIN: Duration = Duration::from_secs(20);
/// Before the measurement: caches fill, connections stand.
const WARM_UP: Duration = Duration::from_millis(500);

/// Arguments of `ballast bench predict`.
#[derive(Args, Debug)]
pub(crate) struct PredictArgs {
    /// The model's file; one trained on a made fleet of 20,000 VMs unless given
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Connections, each with one question under way
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=100))]
    connections: u16,
    /// VMs in every question
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    batch: u16,
    /// For how long
    #[arg(long, value_name = "S", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Print one JSON object, alone on stdout
    #[arg(long)]
    json: bool,
}

/// What was measured.
#[derive(Debug, Serialize)]
struct Measured {
    connections: u16,
    batch: u16,
    seconds: f64,
    requests: u64,
    requests_per_s: f64,
    vms_per_s: f64,
    request_ms: Quantiles,
    /// Processor time of the daemon for one request.
    daemon_cpu_us_per_request: f64,
    /// What one core could do: the daemon uses no more than one.
    requests_per_daemon_cpu_s: f64,
    daemon_rss_mib: f64,
}

impl Measured {
    fn text(&self) -> String {
        let q = &self.request_ms;
        let ms =
            |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.3} ms"));
        format!(
            "{} connections, {} VMs in every request, {:.1} s: {:.0} requests/s, {:.0} VMs/s\n\
             p50 {}   p99 {}   longest {}\n\
             the daemon: {:.1} µs of processor time a request ({:.0} requests a core-second), {:.1} MiB",
            self.connections,
            self.batch,
            self.seconds,
            self.requests_per_s,
            self.vms_per_s,
            ms(q.p50),
            ms(q.p99),
            ms(q.max),
            self.daemon_cpu_us_per_request,
            self.requests_per_daemon_cpu_s,
            self.daemon_rss_mib,
        )
    }
}

/// Runs the benchmark.
pub(crate) fn run(args: &PredictArgs) -> anyhow::Result<ExitCode> {
    let folder = tempfile::tempdir().context("a temporary folder")?;
    let model = match &args.model {
        Some(model) => model.canonicalize().with_context(|| model.display().to_string())?,
        None => {
            tell("training a model on a made fleet of 20,000 VMs");
            let model = folder.path().join("model");
            fs::write(&model, made_model()?)?;
            model
        }
    };
    let [address] = free_addresses(1)?[..] else { bail!("no free port") };
    let config = folder.path().join("place.toml");
    let text = format!("name = \"bench\"\nlisten = \"{address}\"\n[predict]\nmodel = {model:?}\n");
    fs::write(&config, text)?;
    let words = ["place", "--config", config.to_str().context("a path in UTF-8")?];
    // From this thread: the daemon ends with the thread that has started it.
    let mut daemon = Process::start("place", &words, folder.path())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let measured = runtime.block_on(async {
        let stop = stop()?;
        tokio::select! {
            measured = measure(args, address, &mut daemon) => measured,
            () = stop => bail!("ended by a signal"),
        }
    });
    daemon.signal(Signal::SIGTERM);
    let measured = measured?;
    say(&if args.json { serde_json::to_string_pretty(&measured)? } else { measured.text() })?;
    Ok(ExitCode::SUCCESS)
}

/// A model as daily training makes it, of a fleet that is not too large to wait for.
fn made_model() -> anyhow::Result<Vec<u8>> {
    let vms = fleet::make(&fleet::Options { vms: 20_000, ..fleet::Options::default() }).vms;
    let threads = all_cores();
    let options = train::Options { algorithm: Algorithm::default(), seed: 1, threads };
    let model = train::train(&vms, &options).context("training")?;
    Ok(model.encode()?)
}

async fn measure(
    args: &PredictArgs,
    address: SocketAddr,
    daemon: &mut Process,
) -> anyhow::Result<Measured> {
    let deadline = Instant::now() + READY_WITHIN;
    while TcpStream::connect(address).await.is_err() {
        if daemon.ended().is_some() || Instant::now() > deadline {
            bail!("the daemon does not answer:\n{}", daemon.last_words(10));
        }
        sleep(Duration::from_millis(20)).await;
    }
    let request = request(args.batch);
    let mut clients = JoinSet::new();
    let begin = Instant::now() + WARM_UP;
    let end = begin + Duration::from_secs(args.seconds.into());
    for _ in 0..args.connections {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        clients.spawn(client(stream, request.clone(), begin, end));
    }
    sleep(begin - Instant::now()).await;
    let before = daemon.usage().context("the daemon has ended")?;
    sleep(end - Instant::now()).await;
    let after = daemon.usage().context("the daemon has ended")?;
    let mut times = vec![];
    while let Some(client) = clients.join_next().await {
        times.extend(client??);
    }
    let (requests, seconds) = (times.len() as f64, f64::from(args.seconds));
    let cpu = (after.cpu - before.cpu).as_secs_f64();
    Ok(Measured {
        connections: args.connections,
        batch: args.batch,
        seconds,
        requests: times.len() as u64,
        requests_per_s: requests / seconds,
        vms_per_s: requests / seconds * f64::from(args.batch),
        request_ms: Quantiles::of(times),
        daemon_cpu_us_per_request: cpu / requests * 1e6,
        requests_per_daemon_cpu_s: requests / cpu,
        daemon_rss_mib: after.rss_kib as f64 / 1024.0,
    })
}

/// A whole HTTP request for so many VMs, all of one subscription that the model knows or not.
fn request(batch: u16) -> Vec<u8> {
    let vm = r#"{"vm_id":"vm-1","subscription":"sub-00001","cores":4,"memory_gb":16,"vm_type":"general"}"#;
    let body = match batch {
        1 => vm.to_owned(),
        _ => format!(r#"{{"vms":[{}]}}"#, vec![vm; batch.into()].join(",")),
    };
    let length = body.len();
    format!("POST /v1/predict HTTP/1.1\r\nhost: bench\r\ncontent-length: {length}\r\n\r\n{body}")
        .into_bytes()
}

/// Asks until `end`, and gives the milliseconds of every answer since `begin`.
async fn client(
    mut stream: TcpStream,
    request: Vec<u8>,
    begin: Instant,
    end: Instant,
) -> anyhow::Result<Vec<f64>> {
    let mut times = vec![];
    let mut answer = vec![];
    loop {
        let start = Instant::now();
        if start >= end {
            return Ok(times);
        }
        stream.write_all(&request).await?;
        answer.clear();
        while !is_whole(&answer)? {
            if stream.read_buf(&mut answer).await? == 0 {
                bail!("the daemon has closed the connection");
            }
        }
        if start >= begin {
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
}

/// Whether these bytes are a whole answer.
///
/// # Errors
/// When it is not a good one.
fn is_whole(answer: &[u8]) -> anyhow::Result<bool> {
    let Some(head) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
        return Ok(false);
    };
    let text = std::str::from_utf8(&answer[..head])?;
    if !text.starts_with("HTTP/1.1 200 ") {
        bail!("answered {}", text.lines().next().unwrap_or_default());
    }
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.context("an answer without a length")?.parse()?;
    Ok(answer.len() >= head + 4 + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_when_its_length_is_there_and_a_refusal_is_an_error() {
        let whole = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        assert!(is_whole(whole).unwrap());
        for end in 0..whole.len() {
            assert!(!is_whole(&whole[..end]).unwrap(), "{end}");
        }
        let refused = is_whole(b"HTTP/1.1 429 Too Many Requests\r\n\r\n").unwrap_err();
        assert!(refused.to_string().contains("429"));
    }
}
