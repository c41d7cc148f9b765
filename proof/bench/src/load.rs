//! Asks a real placement daemon over loopback, again and again, and times its answers.
//!
//! The daemon answers on one thread, so on one core. Every connection asks again as soon as it has its
//! answer; what is timed is the whole way, client included.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ballast_predict::{fleet, train};
use clap::Args;
use nix::sys::signal::Signal;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

use ballast_cli::common::terminal::stop;
use ballast_cli::common::terminal::tell;
use ballast_cli::common::threads::all_cores;
use ballast_testbed::events::Quantiles;
use ballast_testbed::processes::{Process, free_addresses};

/// The daemon answers within this, or has failed.
const READY_WITHIN: Duration = Duration::from_secs(20);
/// Before the measurement: caches fill, connections stand.
const WARM_UP: Duration = Duration::from_millis(500);

/// How it is asked.
#[derive(Args, Debug)]
pub(crate) struct LoadArgs {
    /// The model's file; one trained on a synthetic fleet of 20,000 VMs unless given
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Connections, each with one question under way
    #[arg(long, value_name = "N", default_value_t = 8,
        value_parser = clap::value_parser!(u16).range(1..=100))]
    pub(super) connections: u16,
    /// For how many seconds
    #[arg(long, value_name = "S", default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Print one JSON object, alone on stdout
    #[arg(long)]
    pub(super) json: bool,
}

/// How the clients reach the daemon.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    Loopback,
    /// The daemon's Unix socket: without certificates only who comes by it may change anything.
    Socket,
}

#[derive(Debug, Serialize)]
pub(super) struct Measured {
    connections: u16,
    seconds: f64,
    requests: u64,
    pub(super) requests_per_s: f64,
    request_ms: Quantiles,
    /// Processor time of the daemon for one request.
    daemon_cpu_us_per_request: f64,
    /// What one core could do: the daemon uses no more than one.
    requests_per_daemon_cpu_s: f64,
    daemon_rss_mib: f64,
    /// From the start of a daemon whose predecessor was killed to its first answer.
    restart_s: f64,
    /// What it has written down, as long as the files say.
    state_mib: f64,
}

impl Measured {
    pub(super) fn text(&self, what: &str) -> String {
        let Self { connections, seconds, requests_per_s, daemon_rss_mib, restart_s, state_mib, .. } = self;
        let [p50, p99, longest] = told(&self.request_ms);
        let (cpu_us, per_cpu_s) = (self.daemon_cpu_us_per_request, self.requests_per_daemon_cpu_s);
        format!(
            "{connections} connections, {seconds:.1} s: {requests_per_s:.0} requests/s, {what}\n\
             p50 {p50}   p99 {p99}   longest {longest}\n\
             the daemon: {cpu_us:.1} µs of processor time a request ({per_cpu_s:.0} requests a core-second), \
             {daemon_rss_mib:.1} MiB\n\
             killed and started again it answers after {restart_s:.2} s, with {state_mib:.1} MiB on disk",
        )
    }
}

/// Median, 99th percentile and the longest, in words.
pub(super) fn told(times: &Quantiles) -> [String; 3] {
    let ms = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.3} ms"));
    [times.p50, times.p99, times.max].map(ms)
}

/// Starts a daemon, has it made ready, and measures it. `files` writes what it needs into a folder, and says
/// what its configuration has beyond the model; `requests` are those of a client, by its number from 0, which asks
/// the next one over and over.
pub(super) fn bench(
    args: &LoadArgs,
    way: Way,
    files: impl FnOnce(&Path) -> anyhow::Result<String>,
    prepare: impl AsyncFnOnce(&mut UnixStream) -> anyhow::Result<()>,
    requests: impl Fn(u16) -> Vec<Vec<u8>>,
) -> anyhow::Result<Measured> {
    let folder = tempfile::tempdir().context("a temporary folder")?;
    let model = match &args.model {
        Some(model) => model.canonicalize().with_context(|| model.display().to_string())?,
        None => {
            tell("training a model on a synthetic fleet of 20,000 VMs");
            let model = folder.path().join("model");
            fs::write(&model, made_model()?)?;

            model
        }
    };

    let [address] = free_addresses(1)?[..] else { bail!("no free port") };
    let config = folder.path().join("place.toml");
    let (state, more) = (folder.path().join("state"), files(folder.path())?);
    let socket = folder.path().join("place.sock");
    let text = format!(
        "name = \"bench\"\nlisten = [\"{address}\", \"unix:{}\"]\nstate_dir = {state:?}\n[predict]\nmodel = \
         {model:?}\n{more}",
        socket.display()
    );
    fs::write(&config, text)?;
    let words = ["place", "--config", config.to_str().context("a path in UTF-8")?];

    // From this thread: the daemon ends with the thread that has started it.
    let mut daemon = Process::start("place", &words, folder.path())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let measured = runtime.block_on(async {
        let stop = stop()?;
        tokio::select! {
            measured = measure(args, way, (address, &socket), &mut daemon, prepare, requests) => measured,
            () = stop => bail!("ended by a signal"),
        }
    });

    let mut measured = measured?;
    daemon.signal(Signal::SIGKILL);
    daemon.wait()?;
    for entry in fs::read_dir(&state)? {
        measured.state_mib += entry?.metadata()?.len() as f64 / f64::from(1 << 20);
    }

    let start = Instant::now();
    let mut daemon = Process::start("place", &words, folder.path())?;
    runtime.block_on(ready(address, &mut daemon))?;
    measured.restart_s = start.elapsed().as_secs_f64();
    daemon.signal(Signal::SIGTERM);

    Ok(measured)
}

/// Waits until the daemon has answered.
async fn ready(address: SocketAddr, daemon: &mut Process) -> anyhow::Result<()> {
    let deadline = Instant::now() + READY_WITHIN;
    let healthy = async || {
        let mut stream = TcpStream::connect(address).await?;
        ask(&mut stream, &bare("GET", "/healthz"), &mut vec![]).await
    };
    while healthy().await.is_err() {
        if daemon.ended().is_some() || Instant::now() > deadline {
            bail!("the daemon does not answer:\n{}", daemon.last_words(10));
        }
        sleep(Duration::from_millis(20)).await;
    }

    Ok(())
}

/// A model as daily training makes it, of a fleet that is not too large to wait for.
fn made_model() -> anyhow::Result<Vec<u8>> {
    let vms = fleet::make(&fleet::Options { vms: 20_000, ..fleet::Options::default() }).vms;
    let threads = all_cores();
    let options = train::Options { threads, ..train::Options::default() };
    let model = train::train(&vms, &options).context("training")?;
    Ok(model.encode()?)
}

async fn measure(
    args: &LoadArgs,
    way: Way,
    (address, socket): (SocketAddr, &Path),
    daemon: &mut Process,
    prepare: impl AsyncFnOnce(&mut UnixStream) -> anyhow::Result<()>,
    requests: impl Fn(u16) -> Vec<Vec<u8>>,
) -> anyhow::Result<Measured> {
    ready(address, daemon).await?;
    prepare(&mut UnixStream::connect(socket).await?).await?;
    let mut clients = JoinSet::new();
    let begin = Instant::now() + WARM_UP;
    let end = begin + Duration::from_secs(args.seconds.into());

    for n in 0..args.connections {
        match way {
            Way::Loopback => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                clients.spawn(client(stream, requests(n), begin, end));
            }
            Way::Socket => {
                clients.spawn(client(UnixStream::connect(socket).await?, requests(n), begin, end));
            }
        }
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
        seconds,
        requests: times.len() as u64,
        requests_per_s: requests / seconds,
        request_ms: Quantiles::of(times),
        daemon_cpu_us_per_request: cpu / requests * 1e6,
        requests_per_daemon_cpu_s: requests / cpu,
        daemon_rss_mib: after.rss_kib as f64 / 1024.0,
        restart_s: 0.0,
        state_mib: 0.0,
    })
}

/// A whole HTTP request without a body.
pub(super) fn bare(method: &str, path: &str) -> Vec<u8> {
    format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").into_bytes()
}

/// A whole HTTP request.
pub(super) fn post(path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// Asks until `end`, and gives the milliseconds of every answer since `begin`.
async fn client(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    requests: Vec<Vec<u8>>,
    begin: Instant,
    end: Instant,
) -> anyhow::Result<Vec<f64>> {
    let (mut times, mut answer) = (vec![], vec![]);
    for request in requests.iter().cycle() {
        let start = Instant::now();
        if start >= end {
            break;
        }
        ask(&mut stream, request, &mut answer).await?;
        if start >= begin {
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    Ok(times)
}

pub(super) async fn ask(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    request: &[u8],
    answer: &mut Vec<u8>,
) -> anyhow::Result<()> {
    stream.write_all(request).await?;
    answer.clear();
    while !is_whole(answer)? {
        if stream.read_buf(answer).await? == 0 {
            bail!("the daemon has closed the connection");
        }
    }
    Ok(())
}

/// Whether these bytes are a whole answer.
fn is_whole(answer: &[u8]) -> anyhow::Result<bool> {
    let Some(head) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
        return Ok(false);
    };
    let text = std::str::from_utf8(&answer[..head])?;
    if text.starts_with("HTTP/1.1 204 ") {
        return Ok(true);
    }
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
