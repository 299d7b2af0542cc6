//! Starts a hub from its options, and ends it in order.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Instant};

use farwater_fleet::states;
use farwater_store::{Classes, Location, OpenError, OpenOptions, Store, StoreError, delivery::MarkClusters};
use farwater_telemetry::otlp::{Otlp, OtlpError};
use jiff::Timestamp;
use rustls::sign::CertifiedKey;
use thiserror::Error;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::Semaphore,
    task::JoinHandle,
    time::{Duration, sleep},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Access, Advertise, ApiThreads, Config, DataDir, Hub, HubArgs, Identity, Metrics, Replica,
    answers::Answers,
    apiserver,
    bodies::Bodies,
    bootstrap::{BootstrapError, KubeconfigError, ensure_admin_kubeconfig, ensure_defaults},
    clusters::exchange_seal_key,
    config::{ConfigError, database::local_file, environment},
    controllers::{
        self,
        resume::{self, Resume},
    },
    external_secrets::ExternalError,
    identity::{
        DataDirError, FileError, IdentityError, Mounted, MountedError, ServerNames, end_of, finish_seal_key,
        is_valid_for,
    },
    logging,
    memory::connections::Connections,
    routes,
    secret_backends::SecretBackends,
    server::{Certificate, Renewal, Server, Yielding, tls_config},
    turns::{ListTurns, Shares, Turns},
};

/// How often expired tokens are deleted.
const TOKEN_SWEEP: Duration = Duration::from_secs(3600);
/// Bytes of all bodies of requests to the API that are read or handled at a time.
const API_BODIES: usize = 256 << 20;
/// The same for administrators.
const RESERVED_BODIES: usize = 64 << 20;
/// Time for the first part of a body.
const API_GRACE: Duration = Duration::from_secs(10);
/// Maximum number of scrapers connected to the loopback listener.
const METRICS_CONNECTIONS: usize = 16;

#[derive(Debug, Error)]
pub enum HubError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error("open the database")]
    Open(#[from] OpenError),
    #[error("read the database")]
    Store(#[from] StoreError),
    #[error(transparent)]
    Replica(#[from] crate::replica::OpenError),
    #[error(transparent)]
    ExternalSecrets(#[from] ExternalError),
    #[error("another hub has taken the database over")]
    Taken,
    #[error("listen on {address}")]
    Listen {
        address: SocketAddr,
        source: std::io::Error,
    },
    #[error(transparent)]
    Mounted(#[from] MountedError),
    #[error("set up TLS")]
    Tls(#[from] rustls::Error),
    #[error("make the first objects")]
    Bootstrap(#[from] BootstrapError),
    #[error("write the administrator's kubeconfig")]
    Kubeconfig(#[from] KubeconfigError),
    #[error("start the threads of the API")]
    Threads(#[source] std::io::Error),
    #[error("wait for signals")]
    Signal(#[source] std::io::Error),
    #[error(transparent)]
    Otlp(#[from] OtlpError),
}

/// Runs a hub until SIGTERM or SIGINT, then ends it in order.
pub async fn run(args: HubArgs) -> Result<(), HubError> {
    let config = args.resolve()?;
    let otlp = Otlp::start("farwater-hub", env!("CARGO_PKG_VERSION"))?;
    logging::init(&config, otlp.as_ref());
    let outcome = run_until_signal(config).await;
    if let Some(otlp) = otlp {
        let _ = tokio::task::spawn_blocking(|| otlp.close()).await;
    }
    outcome
}

async fn run_until_signal(config: Config) -> Result<(), HubError> {
    if let Some(warning) = environment::check(std::env::vars_os().map(|(name, _)| name)) {
        tracing::warn!("{warning}");
    }
    // Before any write, so that a signal during the start also ends the hub in order.
    let mut terminate = signal(SignalKind::terminate()).map_err(HubError::Signal)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(HubError::Signal)?;
    let running = start(config).await?;
    let name = tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
        () = running.hub.store.taken() => {
            // Its memory may be wrong from now on.
            tracing::error!(location = %running.hub.store.location(), "another hub has taken the database over; stopping");
            running.stop().await;
            return Err(HubError::Taken);
        }
    };
    tracing::info!(signal = name, "stopping");
    running.stop().await;
    Ok(())
}

/// A running hub.
pub struct Running {
    pub hub: Arc<Hub>,
    /// The address that it listens on, with the actual port if the options say 0.
    pub address: SocketAddr,
    pub metrics_address: Option<SocketAddr>,
    pub admin_kubeconfig: PathBuf,
    /// From the options until the first request could be answered.
    pub ready_after: Duration,
    servers: Vec<JoinHandle<()>>,
    tasks: TaskTracker,
    /// Access is decided until the last request has ended.
    access_end: CancellationToken,
}

/// Starts a hub. Requests are answered when this returns.
pub async fn start(config: Config) -> Result<Running, HubError> {
    let (started, now) = (Instant::now(), Timestamp::now());
    // Other TLS libraries of this process use the same cryptography. A second hub in the process changes nothing.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();

    let data = DataDir::open(&config.data_dir)?;
    let mounted = config.tls.clone().map(|files| Mounted::open(files, now)).transpose()?;
    let identity = Arc::new(Identity::open(
        &data,
        mounted.as_ref().map(|(mounted, _)| mounted),
        now,
    )?);
    let listeners = Listeners::bind(&config).await?;
    let advertise = choose_advertise(&config, listeners.address);
    let names = server_names(&config, listeners.address, &advertise);
    let (certificate, renewal) = choose_certificate(mounted, names, &identity, &advertise, now)?;
    let tls = tls_config(Arc::clone(&certificate))?;

    let store = open_store(&config, &data, &identity).await?;
    ensure_defaults(&store, now).await?;
    let (shutdown, access_end) = (CancellationToken::new(), CancellationToken::new());
    let access = Access::start(store.clone(), access_end.clone()).await?;
    ensure_admin_kubeconfig(&data, &identity, &access, advertise.url(), now).await?;
    let left = resume::take_left(&store, &identity).await?;
    let replica = open_replica(&config, &store, &identity, advertise.url()).await?;
    let api_threads = Arc::new(ApiThreads::start().map_err(HubError::Threads)?);

    let hub = Arc::new(Hub {
        turns: Turns::of_api(config.max_api_requests),
        reserved_turns: Turns::of_api((config.max_api_requests / 8).max(1)),
        user_shares: Shares::new(config.max_api_requests / 2),
        bodies: Bodies::new(API_BODIES, API_GRACE),
        reserved_bodies: Bodies::new(RESERVED_BODIES, API_GRACE),
        list_turns: choose_list_turns(&config),
        answers: Answers::default(),
        refusals: Arc::default(),
        watches: Arc::new(Semaphore::new(config.max_watches)),
        watch_shares: Shares::new(config.max_watches / 4),
        metrics: Metrics::new(Arc::clone(&replica), Arc::clone(&certificate), config.data_dir.clone()),
        config,
        data,
        store,
        identity,
        access,
        replica,
        advertise,
        shutdown,
    });

    let mut running = Running::new(hub, &listeners, access_end);
    running.spawn_tasks(certificate, renewal, left);
    running.serve(listeners.main, tls.into(), api_threads);
    if let Some(listener) = listeners.metrics {
        running.serve_metrics(listener);
    }
    running.note_ready(started.elapsed());
    Ok(running)
}

/// The sockets of a hub, which exist before its database is opened: a port that is taken fails the start early.
struct Listeners {
    main: TcpListener,
    /// The address of `main`, with the actual port if the options say 0.
    address: SocketAddr,
    metrics: Option<TcpListener>,
}

impl Listeners {
    async fn bind(config: &Config) -> Result<Self, HubError> {
        let main = listen(config.listen).await?;
        let address = local_address(&main, config.listen)?;
        let metrics = match config.metrics_listen {
            Some(address) => Some(listen(address).await?),
            None => None,
        };
        Ok(Self { main, address, metrics })
    }
}

/// Returns the address for agents and people. Warns if it was derived from a listener that accepts requests from
/// everywhere.
fn choose_advertise(config: &Config, address: SocketAddr) -> Advertise {
    let Some(advertise) = &config.advertise else {
        let derived = Advertise::of_listener(address);
        if address.ip().is_unspecified() {
            tracing::warn!("{}", unreachable_warning(address, &derived));
        }
        return derived;
    };
    advertise.clone()
}

/// Returns the mounted certificate, or one of the hub's own authority for `names`.
fn choose_certificate(
    mounted: Option<(Mounted, Arc<CertifiedKey>)>,
    names: ServerNames,
    identity: &Identity,
    advertise: &Advertise,
    now: Timestamp,
) -> Result<(Arc<Certificate>, Renewal), HubError> {
    let Some((mounted, key)) = mounted else {
        let key = identity.server_certificate(&names, now)?;
        return Ok((Certificate::new(key), Renewal::Own(names)));
    };
    warn_of_certificate(&key, advertise, now);
    Ok((Certificate::new(key), Renewal::Mounted(Box::new(mounted))))
}

/// Opens the database with the seal key, and finishes an exchange of that key if the database has followed it.
async fn open_store(config: &Config, data: &DataDir, identity: &Identity) -> Result<Store, HubError> {
    let location = match &config.database {
        Some(url) => Location::from(url.clone()),
        None => local_file(data.path()).map_err(ConfigError::from)?,
    };
    let mut options = OpenOptions::new(location, *identity.seal_key().bytes());
    options.next_seal_key = identity.next_seal_key().map(|key| *key.bytes());
    options.on_change = Some(Arc::new(MarkClusters));
    options.classes = Some(Classes {
        version: states::VERSION,
        kinds: states::KINDS,
        states: states::states,
    });
    let store = Store::open(options).await?;

    if identity
        .next_seal_key()
        .is_some_and(|next| store.is_sealed_with(next.bytes()))
    {
        finish_seal_key(identity.directory())?;
        tracing::info!("the exchange of the seal key is finished");
    }
    data.remember_database(store.location())?;
    identity.note_successions(&store).await?;
    Ok(store)
}

async fn open_replica(
    config: &Config,
    store: &Store,
    identity: &Arc<Identity>,
    url: &str,
) -> Result<Arc<Replica>, HubError> {
    let mut replica = Replica::open(
        store.clone(),
        Arc::clone(identity),
        config.data_dir.clone(),
        url.to_owned(),
        Connections::new(config.max_connected_agents),
        config.sources.clone(),
    )
    .await?;
    if let Some(path) = &config.secret_backends {
        replica.secret_backends = Arc::new(SecretBackends::open(path, store.clone())?);
    }
    Ok(Arc::new(replica))
}

fn choose_list_turns(config: &Config) -> ListTurns {
    match config.database {
        Some(_) => ListTurns::of_a_server(),
        None => ListTurns::of_a_file(),
    }
}

impl Running {
    fn new(hub: Arc<Hub>, listeners: &Listeners, access_end: CancellationToken) -> Self {
        let metrics = listeners.metrics.as_ref();
        Self {
            address: listeners.address,
            metrics_address: metrics.and_then(|listener| listener.local_addr().ok()),
            admin_kubeconfig: hub.data.admin_kubeconfig(),
            ready_after: Duration::ZERO,
            servers: Vec::new(),
            tasks: TaskTracker::new(),
            access_end,
            hub,
        }
    }

    fn note_ready(&mut self, after: Duration) {
        self.ready_after = after;
        tracing::info!(
            address = %self.address,
            url = %self.hub.advertise,
            database = %self.hub.store.location(),
            kubeconfig = %self.admin_kubeconfig.display(),
            ca_pin = self.hub.identity.ca_pin(),
            ms = after.as_millis() as u64,
            "the hub is ready"
        );
    }

    fn spawn_tasks(&self, certificate: Arc<Certificate>, renewal: Renewal, left: Option<Resume>) {
        let shutdown = &self.hub.shutdown;
        let renewal = certificate.keep_fresh(Arc::clone(&self.hub), renewal);
        self.tasks.spawn(shutdown.clone().run_until_cancelled_owned(renewal));
        self.tasks.spawn(
            shutdown
                .clone()
                .run_until_cancelled_owned(sweep_tokens(Arc::clone(&self.hub))),
        );
        let namespaces = apiserver::remove_namespaces(Arc::clone(&self.hub));
        self.tasks.spawn(shutdown.clone().run_until_cancelled_owned(namespaces));
        let garbage = apiserver::collect_garbage(Arc::clone(&self.hub));
        self.tasks.spawn(shutdown.clone().run_until_cancelled_owned(garbage));
        let seal = exchange_seal_key::run(self.hub.store.clone(), self.hub.identity.directory().to_owned());
        self.tasks.spawn(shutdown.clone().run_until_cancelled_owned(seal));
        let events = apiserver::expire_events(Arc::clone(&self.hub));
        self.tasks.spawn(shutdown.clone().run_until_cancelled_owned(events));
        self.tasks
            .spawn(controllers::run(Arc::clone(&self.hub.replica), left, shutdown.clone()));
        self.tasks.close();
    }

    fn serve(&mut self, listener: TcpListener, tls: Arc<rustls::ServerConfig>, threads: Arc<ApiThreads>) {
        let hub = Arc::clone(&self.hub);
        let server = Server {
            listener,
            tls: Some(TlsAcceptor::from(tls)),
            router: routes::router(&self.hub),
            max_connections: self.hub.config.max_connections,
            patience: self.hub.config.patience,
            count: Box::new(move || hub.metrics.connection()),
            refusals: Arc::clone(&self.hub.refusals),
            yielding: Some(Yielding {
                gives_way: routes::gives_way,
                threads,
            }),
        };
        self.servers.push(tokio::spawn(
            server.serve(self.hub.shutdown.clone(), self.hub.config.drain),
        ));
    }

    fn serve_metrics(&mut self, listener: TcpListener) {
        let hub = Arc::clone(&self.hub);
        let server = Server {
            listener,
            tls: None,
            router: routes::metrics_router(&self.hub),
            max_connections: METRICS_CONNECTIONS,
            patience: self.hub.config.patience,
            count: Box::new(move || hub.metrics.connection()),
            refusals: Arc::clone(&self.hub.refusals),
            yielding: None,
        };
        self.servers.push(tokio::spawn(
            server.serve(self.hub.shutdown.clone(), self.hub.config.drain),
        ));
    }

    /// Accepts nothing more, ends watches, waits for requests, stops the controllers, and closes the database.
    pub async fn stop(self) {
        self.hub.shutdown.cancel();
        self.hub.replica.memory.connections.close(self.hub.config.drain).await;
        for server in self.servers {
            if let Err(error) = server.await {
                tracing::error!(%error, "a server ended badly");
            }
        }
        self.tasks.wait().await;
        self.access_end.cancel();
        if let Err(error) = resume::leave(&self.hub.replica).await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the next start looks at everything"
            );
        }
        self.hub.store.close().await;
        tracing::info!("stopped");
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, HubError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| HubError::Listen { address, source })
}

fn local_address(listener: &TcpListener, address: SocketAddr) -> Result<SocketAddr, HubError> {
    listener
        .local_addr()
        .map_err(|source| HubError::Listen { address, source })
}

fn server_names(config: &Config, address: SocketAddr, advertise: &Advertise) -> ServerNames {
    let listened = (!address.ip().is_unspecified()).then(|| address.ip().to_string());
    ServerNames::new(
        config
            .tls_san
            .iter()
            .cloned()
            .chain([advertise.host().to_owned()])
            .chain(listened),
    )
}

/// A certificate of another authority may be unsuitable. The hub serves it and warns.
fn warn_of_certificate(key: &CertifiedKey, advertise: &Advertise, now: Timestamp) {
    if !is_valid_for(key, advertise.host()) {
        tracing::warn!(
            "the certificate of --tls-cert is not valid for {}, this hub's address for agents and people",
            advertise.host()
        );
    }
    if end_of(key).is_some_and(|end| end <= now.as_second()) {
        tracing::error!("the certificate of --tls-cert has ended; clients refuse it until it is renewed");
    }
}

/// The listener accepts requests from everywhere, but the address for agents and people names only this machine.
fn unreachable_warning(address: SocketAddr, advertise: &Advertise) -> String {
    format!(
        "listening on {address}, which is every address of this machine, but the advertised address is {advertise}, which \
         only this machine reaches; give --advertise https://HOST:{} (FARWATER_ADVERTISE) with a name that agents and \
         users can reach",
        address.port()
    )
}

async fn sweep_tokens(hub: Arc<Hub>) {
    loop {
        sleep(TOKEN_SWEEP).await;
        match hub.access.expire_tokens(Timestamp::now()).await {
            Ok(count) => tracing::debug!(count, "forgot expired tokens"),
            Err(error) => tracing::warn!(
                error = &error as &dyn std::error::Error,
                "expired tokens can't be forgotten"
            ),
        }
    }
}

#[cfg(test)]
mod tests;
