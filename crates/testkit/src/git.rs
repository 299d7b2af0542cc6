//! A real Git server: `git http-backend` behind HTTP or HTTPS on loopback, with authentication, counters and faults.
//!
//! ```text
//! let server = GitServer::start().await?;
//! let repository = server.create("infra")?;
//! repository.commit("main", &[("apps/web/a.yaml", "kind: …")])?;
//! println!("git clone {}", server.url("infra"));
//! ```

mod backend;
mod repository;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};
use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

pub use self::repository::Repository;
use crate::{
    authority::{Authority, Pair},
    lfs::Lfs,
    ports,
};

/// Credentials that a request must have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Auth {
    #[default]
    Anonymous,
    Basic {
        username: String,
        password: String,
    },
    Bearer(String),
}

/// Fault of every request, until it is changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    #[default]
    None,
    /// Delays the answer.
    Delay(Duration),
    /// Answers only with this status.
    Status(u16),
    /// Redirects to this address.
    Redirect(String),
    /// Accepts the request and never answers.
    Stall,
    /// Starts to send the pack and never finishes.
    StallPack,
    /// Sends the answer in pieces of so many bytes, with a pause after each.
    Slow { bytes: usize, pause: Duration },
    /// Closes the connection after so many bytes of the answer.
    Cut(usize),
}

/// Counts of requests since the server was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All requests, including refused ones.
    pub requests: usize,
    /// Requests for references: `git ls-remote`, and the first request of a fetch.
    pub ls_refs: usize,
    /// Requests for objects.
    pub fetches: usize,
    pub unauthorized: usize,
    /// Maximum number of concurrent requests.
    pub most_at_once: usize,
    /// Maximum number of concurrent requests for one repository.
    pub most_of_one: usize,
}

/// A server for all repositories in a temporary folder. Ends when dropped.
pub struct GitServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    tls: Option<Tls>,
    running: Option<Running>,
}

struct Shared {
    root: tempfile::TempDir,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    auth: Auth,
    fault: Fault,
    counts: Counts,
    /// Number of running requests by repository.
    under_way: BTreeMap<String, usize>,
    lfs: Lfs,
    /// The `authorization` header of each request.
    authorizations: Vec<String>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone)]
struct Tls {
    acceptor: TlsAcceptor,
    authority: Arc<Authority>,
}

struct Running {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
        self.task.abort();
    }
}

impl GitServer {
    /// Starts a server over HTTP, without authentication.
    pub async fn start() -> Result<Self> {
        Self::start_with([127, 0, 0, 1].into(), None).await
    }

    /// Starts a server at another address of this machine, which a node can reach.
    pub async fn start_at(address: IpAddr) -> Result<Self> {
        Self::start_with(address, None).await
    }

    /// Starts a server over HTTPS, with its own certificate authority ([`GitServer::ca`]).
    pub async fn start_tls() -> Result<Self> {
        Self::start_with([127, 0, 0, 1].into(), Some(Tls::make()?)).await
    }

    /// Uses an expired certificate from now on, or a valid one, of the same authority.
    pub async fn set_expired(&mut self, is_expired: bool) -> Result<()> {
        if let Some(tls) = &mut self.tls {
            let pair = if is_expired {
                tls.authority.issue_expired(&NAMES)?
            } else {
                tls.authority.issue(&NAMES, 24)?
            };
            tls.acceptor = acceptor(&pair)?;
            self.stop().await;
            self.resume().await?;
        }
        Ok(())
    }

    async fn start_with(address: IpAddr, tls: Option<Tls>) -> Result<Self> {
        let root = crate::temporary_folder("farwater-git-server-")?;
        let shared = Arc::new(Shared {
            root,
            state: Mutex::default(),
        });
        let mut server = Self {
            shared,
            address: (address, 0).into(),
            tls,
            running: None,
        };
        server.resume().await?;
        Ok(server)
    }

    /// Listens again on the same port.
    pub async fn resume(&mut self) -> Result<()> {
        let listener = ports::listen(self.address).await?;
        self.address = listener.local_addr()?;
        let stop = CancellationToken::new();
        let task = tokio::spawn(accept(listener, self.shared.clone(), self.tls.clone(), stop.clone()));
        self.running = Some(Running { stop, task });
        Ok(())
    }

    /// Stops listening and closes every connection. The port and the repositories stay.
    pub async fn stop(&mut self) {
        if let Some(mut running) = self.running.take() {
            running.stop.cancel();
            let _ = (&mut running.task).await;
        }
    }

    /// Creates an empty bare repository.
    pub fn create(&self, name: &str) -> Result<Repository> {
        Repository::create(&self.root().join(format!("{name}.git")))
    }

    pub fn url(&self, name: &str) -> String {
        format!("{}/{name}.git", self.origin())
    }

    /// `http://127.0.0.1:PORT`.
    pub fn origin(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Folder of the repositories.
    pub fn root(&self) -> &Path {
        self.shared.root.path()
    }

    /// PEM of an HTTPS server's authority.
    pub fn ca(&self) -> Option<&str> {
        self.tls.as_ref().map(|tls| tls.authority.pem())
    }

    pub fn set_auth(&self, auth: Auth) {
        self.shared.state().auth = auth;
    }

    pub fn set_fault(&self, fault: Fault) {
        self.shared.state().fault = fault;
    }

    pub fn counts(&self) -> Counts {
        self.shared.state().counts
    }

    /// Resets the counts of concurrent requests.
    pub fn forget_most(&self) {
        let counts = &mut self.shared.state().counts;
        (counts.most_at_once, counts.most_of_one) = (0, 0);
    }

    /// The different `authorization` headers of requests.
    pub fn authorizations(&self) -> Vec<String> {
        let mut seen = self.shared.state().authorizations.clone();
        seen.sort();
        seen.dedup();
        seen
    }

    /// Git LFS objects of its repositories.
    pub fn lfs<T>(&self, change: impl FnOnce(&mut Lfs) -> T) -> T {
        change(&mut self.shared.state().lfs)
    }
}

const NAMES: [&str; 2] = ["127.0.0.1", "localhost"];

impl Tls {
    fn make() -> Result<Self> {
        let authority = Authority::new("farwater test authority")?;
        Ok(Self {
            acceptor: acceptor(&authority.issue(&NAMES, 24)?)?,
            authority: Arc::new(authority),
        })
    }
}

fn acceptor(pair: &Pair) -> Result<TlsAcceptor> {
    let chain = vec![CertificateDer::from_pem_slice(pair.certificate.as_bytes()).context("read a certificate")?];
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).context("read a key")?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, tls: Option<Tls>, stop: CancellationToken) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let stream = tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(_) => continue,
            },
        };
        // As usual for web servers. Otherwise the end of an answer would wait 40 ms for the client's delayed
        // acknowledgement.
        let _ = stream.set_nodelay(true);
        let (shared, tls) = (shared.clone(), tls.clone());
        let origin = format!(
            "{}://{}",
            if tls.is_some() { "https" } else { "http" },
            stream.local_addr().map_or_else(|_| String::new(), |a| a.to_string())
        );
        connections.spawn(async move {
            let service =
                hyper::service::service_fn(move |request| backend::answer(shared.clone(), origin.clone(), request));
            let http = hyper::server::conn::http1::Builder::new();
            // Ignore a client that closes its connection.
            match tls {
                Some(tls) => {
                    if let Ok(stream) = tls.acceptor.accept(stream).await {
                        let _ = http.serve_connection(TokioIo::new(stream), service).await;
                    }
                }
                None => {
                    let _ = http.serve_connection(TokioIo::new(stream), service).await;
                }
            }
        });
    }
    connections.shutdown().await;
}
