//! Who asks, and what he may.
//!
//! Reading is for everybody who was let in: any certificate of the authority, and this machine over
//! plain HTTP. Whom the mode of the daemon's socket lets in may order everything. Every route that changes something names the [`Right`] that it needs, with [`only`].

use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody as _, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use ballast_types::{ChassisId, Role};
use http_body_util::{BodyExt as _, Collected, Limited};
use rustls::pki_types::{CertificateDer, UnixTime};
use serde::Deserialize;
use tokio::net::unix::UCred;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::Refused;
use super::bounds::{Bounds, Party};
use super::origin;
use crate::audit::{AuditLog, Before, Order};
use crate::lock;
use crate::tls::{RESERVATION, Tls, not_after, role_of};

/// No message between agents and managers comes near this.
const BODY_BYTES_MAX: usize = 64 << 10;
/// A batch of a thousand questions, with room to spare.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// A body must be whole by then.
const BODY_WITHIN: Duration = Duration::from_secs(if cfg!(test) { 10 } else { 5 });
/// Bodies up to this length are read at once; who sends a longer one waits for a turn.
const SHORT_BYTES: usize = BODY_BYTES_MAX;
/// So many bodies up to [`BATCH_BYTES_MAX`] are in memory at once.
const BATCHES: usize = 16;
/// So many orders are being done at once.
const ORDERS: usize = 128;
/// So much of an order's body is written down.
const TOLD_BYTES_MAX: usize = 1024;
/// Between two looks at whether a connection's certificate is still good.
const LOOK: Duration = Duration::from_secs(1);
/// A certificate's chain is verified again after this, and whenever the trusted authorities change.
const TRUST_FOR: Duration = Duration::from_secs(60);

/// What a route that changes something asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// To alert: this agent's chassis.
    Alert,
    /// To set budgets and VMs: an operator.
    Operate,
    /// To place VMs: an operator, as whom a scheduler comes. It may do so thousands of times a second.
    Place,
    /// To post power readings: a power source.
    ReportPower,
    /// To tell what is predicted of VMs: a placement daemon.
    Predict,
}

impl Right {
    /// Who has it, as the reference names them.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Alert => "the manager of its chassis, or the socket",
            Self::Operate | Self::Place => "operator, or the socket",
            Self::ReportPower => "power source, or the socket",
            Self::Predict => "placement daemon, or the socket",
        }
    }
}

/// What this daemon asks of its callers.
pub struct AccessPolicy {
    /// The chassis that may alert; a chassis manager takes alerts from nobody.
    chassis: Option<Role>,
    body_bytes_max: usize,
    /// Names of this daemon, in lower case, beside those that its addresses and certificate give it.
    allowed_hosts: Vec<String>,
    audit: Option<AuditLog>,
    /// For anybody on this machine, and for those who have a certificate or the socket: neither waits for the other.
    turns: [Turns; 2],
    /// For orders that are being done.
    orders: Arc<Semaphore>,
    pub bounds: Arc<Bounds>,
}

/// Who may have a long body in memory: until it is answered.
struct Turns {
    batch: Arc<Semaphore>,
    /// The longest, one at a time.
    long: Arc<Semaphore>,
}

impl Turns {
    fn new() -> Self {
        Self { batch: Arc::new(Semaphore::new(BATCHES)), long: Arc::new(Semaphore::new(1)) }
    }
}

impl AccessPolicy {
    /// For a daemon that obeys `chassis`.
    pub fn new(chassis: Option<ChassisId>) -> Self {
        let chassis = chassis.map(Role::Chassis);
        let bounds = Arc::new(Bounds::new(chassis.clone()));
        Self::within(BODY_BYTES_MAX, chassis, bounds)
    }

    /// For a daemon that obeys no chassis and answers many questions, some of them in batches.
    pub fn of_queries() -> Self {
        Self::within(BATCH_BYTES_MAX, None, Arc::new(Bounds::of_queries()))
    }

    fn within(body_bytes_max: usize, chassis: Option<Role>, bounds: Arc<Bounds>) -> Self {
        let turns = [Turns::new(), Turns::new()];
        let orders = Arc::new(Semaphore::new(ORDERS));
        Self { chassis, body_bytes_max, allowed_hosts: vec![], audit: None, turns, orders, bounds }
    }

    /// Where a body that may be so long waits for its turn; `None` if it need not.
    fn turn(&self, caller: &Caller, bytes_max: Option<u64>) -> Option<Arc<Semaphore>> {
        let turns = &self.turns[usize::from(matches!(caller.0, Kind::Local))];
        match bytes_max.unwrap_or(u64::MAX).min(self.body_bytes_max as u64) {
            bytes if bytes <= SHORT_BYTES as u64 => None,
            bytes if bytes <= BATCH_BYTES_MAX as u64 => Some(Arc::clone(&turns.batch)),
            _ => Some(Arc::clone(&turns.long)),
        }
    }

    /// The same, for longer questions.
    pub fn with_body_bytes_max(self, body_bytes_max: usize) -> Self {
        Self { body_bytes_max: self.body_bytes_max.max(body_bytes_max), ..self }
    }

    /// The same, with every order written down.
    pub fn with_audit(self, audit: AuditLog) -> Self {
        Self { audit: Some(audit), ..self }
    }

    /// The daemon's socket cannot be bound, and why; or (`None`) it is.
    pub(super) fn note_socket(&self, why: Option<String>) {
        if let Some(audit) = &self.audit {
            audit.faults().note("the socket for orders", why);
        }
    }

    /// The same, also called by these names.
    pub fn with_allowed_hosts(self, allowed_hosts: &[String]) -> Self {
        Self { allowed_hosts: allowed_hosts.to_vec(), ..self }
    }

    /// Whether `caller` has the right.
    ///
    /// # Errors
    /// 403, with what is needed and who this is.
    fn check(&self, caller: &Caller, right: Right) -> Result<(), Refused> {
        let has = match (&caller.0, right) {
            (Kind::Local, _) => false,
            (Kind::Socket(_), _) => true,
            (Kind::Certified(_), Right::Alert) => {
                caller.role().is_some() && caller.role() == self.chassis.as_ref()
            }
            (Kind::Certified(_), Right::Operate | Right::Place) => {
                matches!(caller.role(), Some(Role::Operator(_)))
            }
            (Kind::Certified(_), Right::ReportPower) => {
                matches!(caller.role(), Some(Role::Power(_)))
            }
            (Kind::Certified(_), Right::Predict) => matches!(caller.role(), Some(Role::Place(_))),
        };

        if has {
            return Ok(());
        }
        let needed = match (right, &self.chassis) {
            (Right::Alert, Some(chassis)) => chassis.to_string(),
            (Right::Alert, None) => "a chassis's agent".into(),
            (Right::Operate | Right::Place, _) => "ballast://operator/NAME".into(),
            (Right::ReportPower, _) => "ballast://power/SOURCE".into(),
            (Right::Predict, _) => "ballast://place/NAME".into(),
        };

        let is = match (&caller.0, caller.role()) {
            (Kind::Local, _) => "plain HTTP only reads; on this machine use the daemon's socket".to_owned(),
            (_, None) => "this one has no role".to_owned(),
            (_, Some(role)) => format!("this is {role}"),
        };

        Err(Refused(StatusCode::FORBIDDEN, format!("needs the certificate of {needed}: {is}")))
    }
}

#[derive(Clone)]
pub struct Caller(Kind);

#[derive(Clone)]
enum Kind {
    /// Anybody on this machine, over plain HTTP on loopback.
    Local,
    /// Whom the mode of the daemon's socket has let in; the kernel says who that is, where it does.
    Socket(Option<UCred>),
    Certified(Arc<Certified>),
}

struct Certified {
    role: Option<Role>,
    chain: Vec<CertificateDer<'static>>,
    tls: Arc<Tls>,
    /// Under which generation, and when, the chain was last found good.
    checked: Mutex<(u64, Instant)>,
    /// The first end of validity in the chain, in seconds since 1970.
    ends: u64,
}

impl origin::Reached for Caller {
    fn by_tls(&self) -> bool {
        matches!(self.0, Kind::Certified(_))
    }
    fn by_name(&self, name: &str) -> bool {
        matches!(&self.0, Kind::Certified(it) if it.tls.is_named(name))
    }
}

impl Caller {
    /// Anybody on this machine.
    pub const LOCAL: Self = Self(Kind::Local);

    pub(super) fn by_socket(peer: Option<UCred>) -> Self {
        Self(Kind::Socket(peer))
    }

    /// Who showed this chain in a handshake that succeeded under `generation`.
    pub(super) fn certified(tls: &Arc<Tls>, generation: u64, chain: Vec<CertificateDer<'static>>) -> Self {
        // One whose end cannot be read was let in by a check that reads it: it is looked at as before.
        let ends = chain.iter().filter_map(|it| not_after(it)).min().unwrap_or(u64::MAX);
        Self(Kind::Certified(Arc::new(Certified {
            role: chain.first().and_then(role_of),
            ends,
            chain,
            tls: Arc::clone(tls),
            checked: Mutex::new((generation, Instant::now())),
        })))
    }

    /// By its certificate; `None` without one, or when it has none of Ballast's roles.
    #[must_use]
    pub fn role(&self) -> Option<&Role> {
        match &self.0 {
            Kind::Local | Kind::Socket(_) => None,
            Kind::Certified(certified) => certified.role.as_ref(),
        }
    }

    /// For log and events.
    pub fn name(&self) -> String {
        match &self.0 {
            Kind::Socket(Some(peer)) => match peer.pid() {
                Some(pid) => format!("uid {} (pid {pid})", peer.uid()),
                None => format!("uid {}", peer.uid()),
            },
            Kind::Socket(None) | Kind::Local => "this machine".to_owned(),
            Kind::Certified(_) => self.role().map_or_else(|| "no role".to_owned(), Role::to_string),
        }
    }

    /// Whose room and tokens it uses, when it is known by `address`.
    pub(super) fn party(&self, address: Party) -> Party {
        match &self.0 {
            Kind::Local => Party::Local,
            Kind::Socket(_) => Party::Socket,
            Kind::Certified(it) => it.role.clone().map_or(address, Party::Named),
        }
    }

    /// What makes its next handshake come through, if it is the one that must.
    fn reservation(&self, access: &AccessPolicy) -> Option<HeaderValue> {
        let Kind::Certified(it) = &self.0 else { return None };
        let is_first = it.role.is_some() && it.role == access.bounds.first;
        is_first.then(|| HeaderValue::from_str(&it.tls.reservation()).ok()).flatten()
    }

    /// Whether it would be let in now: certificates end, and authorities are taken out of the files.
    fn is_still_good(&self) -> bool {
        let Kind::Certified(it) = &self.0 else { return true };
        if UnixTime::now().as_secs() > it.ends {
            return false;
        }
        let mut checked = lock(&it.checked);
        let generation = it.tls.generation();
        if checked.0 == generation && checked.1.elapsed() < TRUST_FOR {
            return true;
        }
        let good = it.tls.still_trusts(&it.chain);
        if good {
            *checked = (generation, Instant::now());
        }
        good
    }

    /// Ends when it would not be let in any more.
    pub(super) async fn is_out(&self) {
        while self.is_still_good() {
            sleep(LOOK).await;
        }
    }
}

/// Lets only callers with `right` reach these methods of a route.
pub(super) fn only<S>(right: Right, methods: MethodRouter<S>) -> MethodRouter<S, Infallible>
where
    S: Clone + Send + Sync + 'static,
{
    methods.route_layer(from_fn(move |request, next| hold_to(right, request, next)))
}

async fn hold_to(right: Right, request: Request, next: Next) -> Response {
    let extensions = request.extensions();
    let known = extensions.get::<Arc<AccessPolicy>>().zip(extensions.get::<Caller>());

    // Nobody comes here past the access: then nobody has a right.
    let Some((access, caller)) = known else { return nobody() };

    if let Err(refused) = access.check(caller, right) {
        access.bounds.refusals.unauthorised.fetch_add(1, Ordering::Relaxed);
        let path = request.uri().path();
        if access.bounds.is_told() {
            tracing::warn!(path, "{}; the next ones are only counted", refused.1);
        } else {
            tracing::debug!(path, "{}", refused.1);
        }

        return refused.into_response();
    }

    let (access, who) = (Arc::clone(access), caller.name());
    if right != Right::Operate && right != Right::Place {
        return next.run(request).await;
    }

    // On its own: a client that hangs up takes back neither the order nor the line about it. Orders that a disk holds
    // up are no more than connections, though their clients have gone.
    let turn = Arc::clone(&access.orders).acquire_owned().await;
    let order = tokio::spawn(async move {
        let answer = match right {
            Right::Operate => audited(&access, who, request, next).await,
            _ => next.run(request).await,
        };
        access.bounds.refusals.ordered(answer.status());
        drop(turn);
        answer
    });
    let broken = |error| Refused(StatusCode::INTERNAL_SERVER_ERROR, format!("the order: {error}"));
    order.await.unwrap_or_else(|error| broken(error).into_response())
}

/// Has an order done, and written down before it is answered.
async fn audited(access: &AccessPolicy, who: String, request: Request, next: Next) -> Response {
    let Some(audit) = access.audit.clone() else { return next.run(request).await };
    let what = format!("{} {}", request.method(), request.uri());
    let (parts, body) = request.into_parts();
    // Whole already, and not too long: `admit` has seen to that.
    let body = to_bytes(body, access.body_bytes_max).await.unwrap_or_default();
    let after = (!body.is_empty()).then(|| text_of(&body));
    let answer = next.run(Request::from_parts(parts, Body::from(body))).await;

    let (parts, mut body) = answer.into_parts();
    let mut why = None;
    if !parts.status.is_success() {
        // Only of these the log says more than the status: all other answers go on unread, however long they are.
        let whole = to_bytes(body, usize::MAX).await.unwrap_or_default();
        why = serde_json::from_slice::<Why>(&whole).ok().and_then(|why| why.error.or(why.reason));
        body = whole.into();
    }
    let before = parts.extensions.get::<Before>().map(|Before(before)| before.clone());
    let why = why.map_or(String::new(), |why| format!(": {why}"));
    let order = Order { who, what, before, after, outcome: format!("{}{why}", parts.status) };
    // The disk may take its time, and alerts leave from this thread.
    let _ = spawn_blocking(move || audit.note(order)).await;

    Response::from_parts(parts, body)
}

/// Why an order was not done, as answers say that.
#[derive(Deserialize)]
struct Why {
    error: Option<String>,
    reason: Option<String>,
}

/// The beginning of a body, for people.
fn text_of(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(TOLD_BYTES_MAX)]).into_owned()
}

fn nobody() -> Response {
    Refused(StatusCode::FORBIDDEN, "nobody was let in".into()).into_response()
}

/// What every request passes: its certificate is still good, no foreign page has sent it, its peer does
/// not ask too often, and its body is there, whole, in time and not too long.
pub(super) async fn admit(access: Arc<AccessPolicy>, request: Request, next: Next) -> Response {
    let Some((caller, party)) = request.extensions().get::<(Caller, Party)>().cloned() else {
        return nobody();
    };
    if !caller.is_still_good() {
        let why = "the certificate is no longer good".into();
        return closing(Refused(StatusCode::UNAUTHORIZED, why).into_response());
    }

    // Before it costs a token: what a page sends takes nothing from this machine's own clients.
    if let Err(refused) = origin::check(&caller, &access.allowed_hosts, &request) {
        access.bounds.refusals.foreign.fetch_add(1, Ordering::Relaxed);
        let path = request.uri().path();
        if access.bounds.is_told() {
            tracing::warn!(path, "{}; the next ones are only counted", refused.1);
        } else {
            tracing::debug!(path, "{}", refused.1);
        }

        return closing(refused.into_response());
    }

    // Nothing that others do, or that it did itself, may hold an alert back.
    let alert = request.uri().path() == "/v1/alert" && access.check(&caller, Right::Alert).is_ok();

    if !alert && !access.bounds.may_ask(&party) {
        access.bounds.refusals.too_many.fetch_add(1, Ordering::Relaxed);
        let mut answer = Refused(StatusCode::TOO_MANY_REQUESTS, "too many requests".into()).into_response();
        answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        return answer;
    }

    let (mut request, turn) = match with_whole_body(&access, &caller, request).await {
        Ok(read) => read,
        Err(refused) => return closing(refused.into_response()),
    };
    let reservation = caller.reservation(&access);
    request.extensions_mut().insert(caller);
    request.extensions_mut().insert(access);
    let mut answer = next.run(request).await;
    drop(turn);

    // Responses are of the moment, except for the page's files, which set their own header.
    answer.headers_mut().entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if let Some(reservation) = reservation {
        answer.headers_mut().insert(RESERVATION, reservation);
    }
    answer
}

/// Reads the whole body. A long one also gets a permit, which it holds until the response.
async fn with_whole_body(
    access: &AccessPolicy,
    caller: &Caller,
    request: Request,
) -> Result<(Request, Option<OwnedSemaphorePermit>), Refused> {
    let (parts, body) = request.into_parts();
    let too_long = || {
        let why = format!("no whole body of at most {} bytes", access.body_bytes_max);
        Refused(StatusCode::PAYLOAD_TOO_LARGE, why)
    };
    if body.size_hint().lower() > access.body_bytes_max as u64 {
        return Err(too_long());
    }
    // Before it is read, and until it is answered: many long ones at once would fill the memory.
    let mut turn = None;
    if let Some(turns) = access.turn(caller, body.size_hint().upper()) {
        turn = timeout(BODY_WITHIN, turns.acquire_owned()).await.ok().and_then(Result::ok);
        if turn.is_none() {
            let why = "others with long bodies came first".into();
            return Err(Refused(StatusCode::SERVICE_UNAVAILABLE, why));
        }
    }
    match timeout(BODY_WITHIN, Limited::new(body, access.body_bytes_max).collect()).await {
        Ok(Ok(whole)) => {
            let body = Body::from(joined(whole, turn.is_some()).await);
            Ok((Request::from_parts(parts, body), turn))
        }
        Ok(Err(_)) => Err(too_long()),
        Err(_) => {
            let why = format!("the body was not there within {} s", BODY_WITHIN.as_secs());
            Err(Refused(StatusCode::REQUEST_TIMEOUT, why))
        }
    }
}

/// A body in one piece. To copy a long one takes milliseconds in which nobody else is answered, so another thread does.
async fn joined(whole: Collected<Bytes>, is_long: bool) -> Bytes {
    match is_long {
        true => spawn_blocking(|| whole.to_bytes()).await.unwrap_or_default(),
        false => whole.to_bytes(),
    }
}

/// This was the connection's last answer.
fn closing(mut answer: Response) -> Response {
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer
}
