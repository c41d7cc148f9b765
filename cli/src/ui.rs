//! `ballast ui`: the web page for several daemons, as a process of its own that hands their answers on.
//!
//! A chassis manager serves the same page for itself; it knows no VMs, and this shows those that agents tell of.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use axum::Router;
use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use ballast_runtime::Target;
use ballast_runtime::config::Listen;
use ballast_runtime::http::{self, AccessPolicy, Refused};
use ballast_runtime::tls::{self, Peer, Tls};
use ballast_runtime::ui::{self, Site, SiteDaemon};
use clap::Args;
use reqwest::Client;
use tokio::time::sleep;

use crate::common::answers::{Answer, Said, ask_all};
use crate::common::daemons::{TlsArgs, failure, target};
use crate::common::terminal::{say, stop, tell};

/// A daemon from which nothing comes for so long is asked anew; managers send something every second.
const QUIET_MAX: Duration = Duration::from_secs(10);
/// Between two tries to find a manager.
const ASK_AGAIN: Duration = Duration::from_secs(2);
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// What is handed on. All of it only reads.
const PATHS: [&str; 4] = ["v1/status", "v1/history", "v1/stream", "readyz"];

#[derive(Args, Debug)]
pub(crate) struct UiArgs {
    /// Daemons to show: chassis managers, and agents for their VMs; as http://ADDRESS:PORT, https://ADDRESS:PORT or
    /// unix:/PATH
    #[arg(
        value_name = "URL",
        env = "BALLAST_URL",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:7100"
    )]
    urls: Vec<String>,
    /// Where the page is served, on this machine alone
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7110")]
    listen: SocketAddr,
    #[command(flatten)]
    tls: TlsArgs,
}

/// Serves until somebody ends it.
pub(crate) fn run(args: &UiArgs) -> anyhow::Result<ExitCode> {
    if !args.listen.ip().is_loopback() {
        bail!(
            "--listen {}: an address of this machine, as 127.0.0.1:7110; from elsewhere: ssh -L",
            args.listen
        );
    }
    let tls = args.tls.open()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(args, tls))?;
    Ok(ExitCode::SUCCESS)
}

async fn serve(args: &UiArgs, tls: Option<Arc<Tls>>) -> anyhow::Result<()> {
    let daemons = args.urls.iter().map(|url| Daemon::new(url, tls.as_deref()));
    let daemons: Arc<[Daemon]> = daemons.collect::<anyhow::Result<Vec<_>>>()?.into();
    let mut stop = Box::pin(stop()?);
    let site = tokio::select! {
        site = site(args, tls) => site?,
        () = &mut stop => return Ok(()),
    };

    let access = Arc::new(AccessPolicy::of_queries());
    let routes = Router::new().route("/d/{daemon}/{*path}", get(forward)).merge(ui::routes(&site)?);
    let routes = http::guarded(routes.with_state(daemons), Arc::clone(&access));
    let listeners = http::bind(&[Listen::Plain(args.listen)], None).await?;
    say(&format!("http://{}/", args.listen))?;
    http::serve(listeners, routes, access, stop).await;
    Ok(())
}

/// One daemon, as this process reaches it.
struct Daemon {
    target: Target,
    client: Client,
}

impl Daemon {
    fn new(url: &str, tls: Option<&Tls>) -> anyhow::Result<Self> {
        let target = target(url).map_err(anyhow::Error::msg)?;
        let client = tls::http_client(tls.map(|tls| (tls, Peer::Daemon)));
        let client = client.connect_timeout(CONNECT_WITHIN).read_timeout(QUIET_MAX);
        let client = target.reached_by(client).build().with_context(|| url.to_owned())?;
        Ok(Self { target, client })
    }
}

/// Who is who, once a chassis manager answers: the page begins with one. Of those that do not answer then nobody knows;
/// most daemons are agents.
async fn site(args: &UiArgs, tls: Option<Arc<Tls>>) -> anyhow::Result<Site> {
    let mut is_first = true;
    loop {
        let answers = ask_all(args.urls.clone(), tls.clone()).await?;
        let silent = answers.iter().any(|it| matches!(it.said, Said::Error(_)));
        let chassis = named(&answers, |said| matches!(said, Said::Chassis(_)));
        if chassis.is_empty() && !silent {
            bail!("none of these is a chassis manager: the page begins with one");
        }

        if is_first {
            let errors = answers.iter().filter_map(|it| match &it.said {
                Said::Error(why) => Some(format!("{}: {why}", it.url)),
                _ => None,
            });
            errors.for_each(|line| tell(&line));
        }
        if !chassis.is_empty() {
            let agents = named(&answers, |said| matches!(said, Said::Agent(_) | Said::Error(_)));
            return Ok(Site { version: ballast_runtime::VERSION, chassis, agents });
        }
        if is_first {
            tell("waiting for a chassis manager to answer");
        }
        is_first = false;
        sleep(ASK_AGAIN).await;
    }
}

/// Those whose answer passes, as the page reaches them.
fn named(answers: &[Answer], test: impl Fn(&Said) -> bool) -> Vec<SiteDaemon> {
    let daemon =
        |(n, answer): (usize, &Answer)| SiteDaemon { name: answer.url.clone(), base: format!("/d/{n}") };
    answers.iter().enumerate().filter(|(_, it)| test(&it.said)).map(daemon).collect()
}

/// Hands a question on to a daemon, and the answer back as it comes.
async fn forward(
    State(daemons): State<Arc<[Daemon]>>,
    Path((number, path)): Path<(usize, String)>,
    RawQuery(query): RawQuery,
    asked: HeaderMap,
) -> Result<Response, Refused> {
    let daemon = daemons.get(number).filter(|_| PATHS.contains(&path.as_str()));
    let daemon = daemon.ok_or_else(|| Refused(StatusCode::NOT_FOUND, "no such path".into()))?;
    let query = query.map_or(String::new(), |query| format!("?{query}"));

    let mut request = daemon.client.get(daemon.target.url(&format!("/{path}{query}")));
    if let Some(last) = asked.get("last-event-id") {
        request = request.header("last-event-id", last);
    }
    let answer = request
        .send()
        .await
        .map_err(|error| Refused(StatusCode::BAD_GATEWAY, failure(&daemon.target, &error)))?;

    let (status, kind) = (answer.status(), answer.headers().get(header::CONTENT_TYPE).cloned());
    let body = Body::new(reqwest::Body::from(answer));
    let kind = kind.map(|kind| [(header::CONTENT_TYPE, kind)]);
    Ok((status, kind.into_iter().flatten().collect::<HeaderMap>(), body).into_response())
}
