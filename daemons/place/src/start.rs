//! The third step of a start: the threads that follow the model's file and the cluster.

use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use ballast_hw::durable::Lock;
use ballast_predict::Request;
use ballast_runtime::Listening;
use ballast_runtime::alarms::AlarmBook;
use ballast_runtime::audit::AuditLog;
use ballast_runtime::config::Listen;
use ballast_runtime::events::Events;
use ballast_runtime::http::AccessPolicy;
use ballast_runtime::{clock, lock};
use tokio::runtime::Runtime;

use crate::adopt::Adopted;
use crate::agents::Agents;
use crate::api::Api;
use crate::config::PlaceConfig;
use crate::fleet_limits::FleetBook;
use crate::kubernetes::Kube;
use crate::overcommit::Overcommit;
use crate::predictor::Predictor;
use crate::reloader::{self, ReloadOrder};

/// A daemon that knows its model, and cannot be reached yet. The fields that come first are dropped first.
pub(crate) struct Started {
    pub(crate) api: Api,
    /// Follows the model's file.
    pub(crate) reloader: JoinHandle<()>,
    pub(crate) orders: Sender<ReloadOrder>,
    pub(crate) writer: JoinHandle<()>,
    pub(crate) listening: Listening,
    pub(crate) runtime: Runtime,
    pub(crate) lock: Lock,
}

impl Adopted<'_> {
    /// Reads the model, and starts the threads that follow the model's file and the cluster.
    pub(crate) fn start(self) -> anyhow::Result<Started> {
        let Self { opened, inventory, writer, events, faults } = self;
        let config = opened.config;

        // The first answer is given with the model, if there is one.
        let predictor = Arc::new(Predictor::new(&config.predict));
        predictor.look(&events, false);
        let (orders, inbox) = mpsc::channel();
        tracing::info!(
            listen = Listen::addresses(&config.listen),
            name = %config.name,
            model = %config.predict.model.display(),
            "placement daemon runs"
        );

        let kube = start_kube(config, &predictor, &events)?;

        let agents = Arc::new(Agents::default());
        agents.start(Arc::clone(&inventory), opened.tls.clone())?;
        let overcommit = config.overcommit.map(|it| Overcommit::open(it, &config.state_dir, faults.clone()));
        let overcommit = overcommit.transpose()?;
        if let Some(overcommit) = &overcommit {
            overcommit.start(Arc::clone(&agents), Arc::clone(&inventory), opened.tls.clone())?;
        }

        let limits = Arc::new(FleetBook::default());
        limits.start(Arc::clone(&agents), opened.tls.clone())?;

        let mut access = AccessPolicy::of_queries()
            .with_allowed_hosts(&config.allowed_hosts)
            .with_audit(AuditLog::new(&config.state_dir, events.clone(), faults.clone()));
        if let Some(kube) = &config.kubernetes {
            access = access.with_body_bytes_max(kube.body_bytes_max);
        }
        let api = Api {
            name: config.name.clone(),
            require_model: config.predict.require_model,
            predictor,
            read_at: Arc::new(Mutex::new(clock::now())),
            inventory,
            hosts: config.inventory.clone().map(|file| Arc::new(Mutex::new(file))),
            hosts_problem: Arc::default(),
            drains: Arc::new(config.drains.clone()),
            counters: Arc::default(),
            agents,
            overcommit,
            limits,
            alarms: AlarmBook::new(faults, opened.tls.clone()),
            events,
            kube,
            tls: opened.tls,
            access: Arc::new(access),
        };

        // Nobody is answered before VMs have what the model says of their lifetimes.
        api.follow_lifetimes();
        let reloader = follow_model(api.clone(), inbox)?;
        let (listening, runtime, lock) = (opened.listening, opened.runtime, opened.lock);
        Ok(Started { api, reloader, orders, writer, listening, runtime, lock })
    }
}

/// The scheduler extender, if one is configured.
fn start_kube(
    config: &PlaceConfig,
    predictor: &Arc<Predictor>,
    events: &Events,
) -> anyhow::Result<Option<Arc<Kube>>> {
    let kube = config.kubernetes.as_ref().map(|kubernetes| {
        let predictor = Arc::clone(predictor);
        let predict = Box::new(move |request: &Request| predictor.predict(request));
        Kube::start(kubernetes, config.policy, predict, events.clone())
    });
    kube.transpose()
}

fn follow_model(api: Api, inbox: Receiver<ReloadOrder>) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name("model".into()).spawn(move || {
        reloader::run(&inbox, |ordered| {
            api.predictor.look(&api.events, ordered);
            api.follow_lifetimes();
            *lock(&api.read_at) = clock::now();
            // Alarms begin when they are first seen.
            let _ = api.look();
        });
    })
}
