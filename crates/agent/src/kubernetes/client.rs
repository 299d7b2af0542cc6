//! HTTP connections to the API server.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response, Uri, header, request, uri::Scheme};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::Client as HttpClient,
    rt::{TokioExecutor, TokioTimer},
};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::sync::Semaphore;

use super::{
    ApiError, As, ConnectError,
    credentials::Credentials,
    kubeconfig::{Access, Cluster},
    tls,
};
use crate::{
    hub::chain,
    limits::Limits,
    proxy::{Connector, Proxy, SettingError},
};

const USER_AGENT: &str = concat!("farwater-agent/", env!("CARGO_PKG_VERSION"));

/// Address of the API server, how it is verified, and the agent's credentials.
pub struct Server {
    /// Without a trailing slash.
    base: String,
    /// The kubeconfig's proxy. Those of the environment are only for the hub.
    proxy: Option<Proxy>,
    tls: ClientConfig,
    name: Option<ServerName<'static>>,
    credentials: Credentials,
    limits: Arc<Limits>,
}

impl Server {
    pub fn new(access: &Access, limits: Arc<Limits>) -> Result<Self, ConnectError> {
        let Access { cluster, user } = access;
        Ok(Self {
            base: base_of(&cluster.server).ok_or(ConnectError::Address)?,
            proxy: proxy_of(cluster)?,
            credentials: Credentials::new(user)?,
            name: tls::server_name(cluster)?,
            tls: tls::client_config(cluster, user)?,
            limits,
        })
    }

    /// Reads the credentials again. Returns whether they have changed.
    pub fn log_in_again(&self) -> bool {
        self.credentials.read_again()
    }

    fn request(&self, who: As<'_>, method: Method, path: &str, accept: &str) -> request::Builder {
        let request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        self.credentials.sign(
            who,
            request
                .header(header::ACCEPT, accept)
                .header(header::USER_AGENT, USER_AGENT),
        )
    }
}

/// `https://HOST[:PORT][/PATH]`, or the same without TLS.
fn base_of(server: &str) -> Option<String> {
    let uri: Uri = server.parse().ok()?;
    let is_http = uri
        .scheme()
        .is_some_and(|scheme| *scheme == Scheme::HTTPS || *scheme == Scheme::HTTP);
    let is_bare = uri
        .authority()
        .is_some_and(|authority| !authority.as_str().contains('@'))
        && uri.query().is_none();
    (is_http && is_bare).then(|| uri.to_string().trim_end_matches('/').to_owned())
}

fn proxy_of(cluster: &Cluster) -> Result<Option<Proxy>, SettingError> {
    let Some(url) = &cluster.proxy_url else { return Ok(None) };
    let proxy = Proxy::parse("proxy-url of the kubeconfig", url.expose())?;
    if proxy.is_encrypted() {
        return Err(proxy.unsupported("a proxy with https:// is supported for the hub alone"));
    }
    Ok(Some(proxy))
}

/// One connection if the server speaks HTTP/2, otherwise one per concurrent request.
#[derive(Clone)]
pub struct Client {
    http: HttpClient<HttpsConnector<Connector>, Full<Bytes>>,
    server: Arc<Server>,
    /// Held while a watch is opened.
    pub opening: Arc<Semaphore>,
}

impl Client {
    pub fn new(server: &Arc<Server>) -> Self {
        let proxy = server.proxy.clone().map(|proxy| (proxy, server.tls.clone()));
        let mut https = HttpsConnectorBuilder::new()
            .with_tls_config(server.tls.clone())
            .https_or_http();
        if let Some(name) = &server.name {
            https = https.with_server_name_resolver(FixedServerNameResolver::new(name.clone()));
        }
        let http = HttpClient::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            // A connection with only watches counts as idle; closing it would make the next watch open another one.
            .pool_idle_timeout(None)
            // Without keep-alive, a watch on a connection that died silently would wait for ever.
            .http2_keep_alive_interval(Duration::from_secs(30))
            .http2_keep_alive_timeout(Duration::from_secs(20))
            .http2_keep_alive_while_idle(true)
            .build(https.enable_all_versions().wrap_connector(Connector::new(proxy)));
        Self {
            http,
            server: Arc::clone(server),
            opening: Arc::new(Semaphore::new(1)),
        }
    }

    /// Sends a request. Any response is a success.
    pub async fn send(
        &self,
        who: As<'_>,
        method: Method,
        path: &str,
        accept: &str,
        body: Option<(&str, Vec<u8>)>,
    ) -> Result<Response<Incoming>, ApiError> {
        // All requests for services pass through here, so the limits are checked here.
        if let Some(account) = who {
            self.server.limits.check(account, &method, path)?;
        }
        let request = self.server.request(who, method, path, accept);
        let request = match body {
            Some((kind, bytes)) => request
                .header(header::CONTENT_TYPE, kind)
                .body(Full::new(Bytes::from(bytes))),
            None => request.body(Full::default()),
        };
        self.http
            .request(request.map_err(|e| ApiError::Unusable(e.to_string()))?)
            .await
            .map_err(|e| ApiError::Lost(chain(&e)))
    }
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use farwater_testkit::{authority::Authority, https::Https};
    use serde_json::Value;

    use super::*;
    use crate::kubernetes::{Kubernetes, kubeconfig::User};

    fn access(cluster: Cluster) -> Access {
        Access {
            cluster,
            user: User::default(),
        }
    }

    #[test]
    fn requests_go_below_the_servers_path() {
        let uri = |server: &str| {
            let access = access(Cluster {
                server: server.to_owned(),
                ..Cluster::default()
            });
            let server = Server::new(&access, Arc::default()).map_err(|error| error.to_string())?;
            let request = server.request(None, Method::GET, "/version?timeout=1s", "*/*").body(());
            Ok::<_, String>(request.unwrap().uri().to_string())
        };
        assert_eq!(
            uri("http://10.0.0.1:6443").unwrap(),
            "http://10.0.0.1:6443/version?timeout=1s"
        );
        assert_eq!(uri("http://[fd00::1]/").unwrap(), "http://[fd00::1]/version?timeout=1s");
        assert_eq!(
            uri("http://a/k8s/clusters/c-1/").unwrap(),
            "http://a/k8s/clusters/c-1/version?timeout=1s"
        );
        for wrong in [
            "",
            "10.0.0.1:6443",
            "/a",
            "ftp://a",
            "http://me:canary@a",
            "http://a?b",
            "http://a b",
        ] {
            let error = uri(wrong).unwrap_err();
            assert!(
                error.contains("want https://HOST") && !error.contains("canary"),
                "{wrong}: {error}"
            );
        }
    }

    async fn ask(cluster: Cluster) -> Result<Value, ApiError> {
        Kubernetes::new(&access(cluster), Arc::default())
            .unwrap()
            .get(None, "/version", false)
            .await
    }

    #[tokio::test]
    async fn a_server_is_known_by_its_authority_and_its_name() {
        let server = Https::start(|_| b"{}".to_vec()).await.unwrap();
        let trusting = |authority: &str| Cluster {
            server: server.url(),
            certificate_authority_data: Some(STANDARD.encode(authority)),
            ..Cluster::default()
        };
        let named = |name: &str| Cluster {
            tls_server_name: Some(name.to_owned()),
            ..trusting(server.authority())
        };
        let refused = async |cluster: Cluster| {
            let error = ask(cluster).await.unwrap_err().to_string();
            assert!(
                error.contains("can't be reached: ") && error.contains("certificate"),
                "{error}"
            );
        };
        ask(trusting(server.authority())).await.unwrap();
        ask(named("127.0.0.1")).await.unwrap();
        refused(named("api.example")).await;
        let stranger = Authority::new("stranger").unwrap();
        refused(trusting(stranger.pem())).await;
        let unverified = Cluster {
            insecure_skip_tls_verify: true,
            ..trusting(stranger.pem())
        };
        ask(unverified).await.unwrap();
    }
}
