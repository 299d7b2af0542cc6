//! Requests over http and https, limited in time and size, and careful about which hosts get credentials.
//!
//! A [`Site`] is one host from a source's spec. Any other host that an answer names is a link: it gets no credentials
//! unless that was requested, and may not be nearer to the hub than the site itself. No link may lead to the hub's own
//! machine.

mod answer;
mod way;

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use farwater_bundle::path::escape;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tokio::{sync::OnceCell, time::Instant};
use url::Url;
use zeroize::Zeroizing;

use self::way::Way;
use crate::{
    access::Access,
    credentials::Proxy,
    fetch_error::{FetchError, FetchReason},
    links::{self, Hosts, Links, Reached, Refused, ResolveError},
};
use answer::{MAX_EVIDENCE, MAX_REPLY, classify};

pub(crate) use answer::Answer;

/// Most redirects for one answer: a download has one or two.
const MAX_REDIRECTS: usize = 5;
/// Limit for connecting to a host; the rest of a step's time is for the answer.
const CONNECT: Duration = Duration::from_secs(10);
const USER_AGENT: &str = concat!("farwater/", env!("CARGO_PKG_VERSION"));

type HttpClient = Client<HttpsConnector<Way>, Full<Bytes>>;

/// HTTP access of the hub, with its rules for networks. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Web(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    links: Links,
    hosts: Hosts,
    /// The machine's authorities, read on first use.
    roots: OnceLock<Vec<CertificateDer<'static>>>,
}

impl Web {
    pub fn new(links: Links) -> Self {
        Self(Arc::new(Inner {
            links,
            hosts: Hosts::default(),
            roots: OnceLock::new(),
        }))
    }

    /// A host from a source's spec.
    pub fn site(&self, stated: &Url, access: Access) -> Result<Site, FetchError> {
        self.make_site(stated, access, Route::default())
    }

    /// A host that only a link names, so it may not be in a private network.
    pub fn linked_site(&self, linked: &Url) -> Result<Site, FetchError> {
        self.make_site(
            linked,
            Access::default(),
            Route {
                links: Some(self.0.links.clone()),
                proxy: None,
            },
        )
    }

    /// A host stated by a user with fewer rights than the hub: like a link, it may not be in a private network.
    pub fn guarded_site(&self, stated: &Url, access: Access) -> Result<Site, FetchError> {
        self.make_site(
            stated,
            access,
            Route {
                links: Some(self.0.links.clone()),
                proxy: None,
            },
        )
    }

    /// The addresses of such a host, for protocols other than HTTP. Err: the reason why there are none, and the
    /// evidence.
    pub async fn guarded_addresses(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, (FetchReason, String)> {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        links::resolve(&self.0.links, host, port)
            .await
            .map_err(|error| match error {
                ResolveError::Refused(refused) => (FetchReason::LinkRefused, refused.to_string()),
                error => (FetchReason::HostUnknown, error.to_string()),
            })
    }

    /// Where links of a host may lead.
    pub(crate) async fn links_of(&self, host: &str) -> Links {
        self.0.links.of_host(host, &self.0.hosts.reached(host)).await
    }

    /// The distance of a host, as far as it is known.
    pub(crate) fn reached(&self, host: &str) -> Reached {
        self.0.hosts.reached(host)
    }

    pub(crate) fn links(&self) -> &Links {
        &self.0.links
    }

    pub(crate) fn make_site(&self, stated: &Url, access: Access, route: Route<'_>) -> Result<Site, FetchError> {
        let fail = |reason, evidence: String| FetchError::new("connect to", stated, reason, evidence);
        if !matches!(stated.scheme(), "http" | "https") || stated.host_str().is_none() {
            return Err(fail(
                FetchReason::Unexpected,
                "it is no http or https address".to_owned(),
            ));
        }
        if access.has_login() && stated.scheme() == "http" && !is_loopback(stated) {
            return Err(fail(FetchReason::ClearText, String::new()));
        }

        let untrusted = |why| fail(FetchReason::Untrusted, why);
        let tls = self.tls(&access).map_err(untrusted)?;
        let Route { links: own, proxy } = route;
        let near = own.clone().unwrap_or_else(|| self.0.links.of_stated());
        let proxied = match proxy {
            None => None,
            Some(proxy) => {
                let tls = self.tls(&Access::trusting(proxy.ca.as_deref())).map_err(untrusted)?;
                Some(
                    Way::through(proxy, self.0.links.of_stated(), tls)
                        .map_err(|error| fail(FetchReason::ProxyRefused, error.to_string()))?,
                )
            }
        };

        let reached = self.reached(stated.host_str().unwrap_or_default());
        let client = client(
            &tls,
            proxied
                .clone()
                .unwrap_or_else(|| Way::direct(near.clone(), reached.clone())),
        );
        let tls_abroad = match access.identity {
            Some(_) => self.tls(&Access::trusting(access.ca.as_deref())).map_err(untrusted)?,
            None => tls,
        };
        Ok(Site {
            stated: stated.clone(),
            access: Arc::new(access),
            passes_credentials: false,
            client,
            near,
            own,
            reached,
            tls_abroad,
            proxied,
            links: self.0.links.clone(),
            foreign: OnceCell::new(),
        })
    }

    fn tls(&self, access: &Access) -> Result<rustls::ClientConfig, String> {
        let mut roots = rustls::RootCertStore::empty();
        let own = self
            .0
            .roots
            .get_or_init(|| rustls_native_certs::load_native_certs().certs);
        roots.add_parsable_certificates(own.iter().cloned());
        if let Some(pem) = &access.ca {
            for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                let certificate = certificate.map_err(|error| format!("ca.crt: {error}"))?;
                roots.add(certificate).map_err(|error| format!("ca.crt: {error}"))?;
            }
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots);
        let Some(identity) = &access.identity else {
            return Ok(builder.with_no_client_auth());
        };
        let chain = CertificateDer::pem_slice_iter(identity.certificate.as_bytes()).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| format!("tls.crt: {error}"))?;
        // The error of a key must not quote it.
        let key = PrivateKeyDer::from_pem_slice(&identity.key).map_err(|_| "tls.key is no PEM key".to_owned())?;
        builder
            .with_client_auth_cert(chain, key)
            .map_err(|error| format!("tls.crt and tls.key: {error}"))
    }
}

fn client(tls: &rustls::ClientConfig, way: Way) -> HttpClient {
    let https = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(tls.clone())
        .https_or_http();
    Client::builder(TokioExecutor::new()).build(https.enable_all_versions().wrap_connector(way))
}

/// How a host is reached.
#[derive(Clone, Default)]
pub(crate) struct Route<'a> {
    /// Where it may be, if only a link names it.
    pub links: Option<Links>,
    pub proxy: Option<&'a Proxy>,
}

/// A host, with everything for requests to it.
pub struct Site {
    stated: Url,
    access: Arc<Access>,
    passes_credentials: bool,
    client: HttpClient,
    /// Where the stated host may be.
    near: Links,
    /// The same, if only a link names it.
    own: Option<Links>,
    /// The observed distance of the stated host.
    reached: Reached,
    /// For other hosts, without a client certificate.
    tls_abroad: rustls::ClientConfig,
    /// Connections to all hosts, if a proxy is used.
    proxied: Option<Way>,
    links: Links,
    foreign: OnceCell<Foreign>,
}

/// For hosts that the stated one links to.
struct Foreign {
    client: HttpClient,
    links: Links,
}

/// One step of a fetch, with its deadline.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub what: &'static str,
    deadline: Instant,
    seconds: u64,
}

impl Step {
    pub fn new(what: &'static str, timeout: Duration) -> Self {
        Self {
            what,
            deadline: Instant::now() + timeout,
            seconds: timeout.as_secs(),
        }
    }

    /// Another step within the same deadline.
    pub(crate) fn then(self, what: &'static str) -> Self {
        Self { what, ..self }
    }

    pub(crate) async fn bound<T>(&self, url: &Url, work: impl Future<Output = T>) -> Result<T, FetchError> {
        let late = |_| FetchError::new(self.what, url, FetchReason::Timeout(self.seconds), String::new());
        tokio::time::timeout_at(self.deadline, work).await.map_err(late)
    }
}

/// A request.
#[derive(Clone, Debug)]
pub struct Ask {
    pub method: Method,
    pub url: Url,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub sign: Sign,
}

/// The `Authorization` header, which is only sent to the stated host.
#[derive(Clone)]
pub enum Sign {
    Nothing,
    /// The login in the source's Secret.
    Login,
    Header(Zeroizing<String>),
}

impl std::fmt::Debug for Sign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Nothing => "Nothing",
            Self::Login => "Login",
            Self::Header(_) => "Header(…)",
        })
    }
}

impl Ask {
    pub fn get(url: Url) -> Self {
        Self {
            method: Method::GET,
            url,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            sign: Sign::Login,
        }
    }

    pub fn post(url: Url, body: impl Into<Bytes>) -> Self {
        Self {
            method: Method::POST,
            body: body.into(),
            ..Self::get(url)
        }
    }

    pub fn header(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.append(name, value);
        }
        self
    }

    pub fn sign(mut self, sign: Sign) -> Self {
        self.sign = sign;
        self
    }
}

/// A host's reply to a message.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: StatusCode,
    /// The pause that the host asks for. None: it asks for none.
    pub retry_after: Option<Duration>,
    /// Empty if it is too long.
    pub body: Vec<u8>,
}

impl Site {
    /// Also sends credentials to other hosts that an index names.
    pub fn passing_credentials(mut self, passes: bool) -> Self {
        self.passes_credentials = passes;
        self
    }

    pub fn url(&self) -> &Url {
        &self.stated
    }

    /// Another host that this one links to. It gets no credentials.
    pub(crate) async fn lead_to(&self, web: &Web, to: &Url) -> Result<Self, FetchError> {
        let (_, links) = self.ways_to(to).await;
        web.make_site(
            to,
            Access::default(),
            Route {
                links: Some(links.clone()),
                proxy: None,
            },
        )
    }

    pub(crate) fn access(&self) -> &Access {
        &self.access
    }

    pub(crate) fn is_stated(&self, url: &Url) -> bool {
        url.origin() == self.stated.origin()
    }

    /// Sends a request and follows redirects. Any status is a success.
    pub(crate) async fn send(&self, step: Step, ask: Ask) -> Result<Answer, FetchError> {
        let mut url = ask.url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let response = step.bound(&ask.url, self.send_once(step, &ask, &url)).await??;
            let (parts, body) = response.into_parts();
            let is_redirect = matches!(parts.status.as_u16(), 301 | 302 | 303 | 307 | 308);
            let Some(to) = parts.headers.get(header::LOCATION).filter(|_| is_redirect) else {
                return Ok(Answer {
                    status: parts.status,
                    headers: parts.headers,
                    body,
                    url: ask.url,
                    step,
                });
            };
            let next = to.to_str().ok().and_then(|to| url.join(to).ok());
            let next =
                next.filter(|next| next.scheme() == "https" || (next.scheme() == "http" && url.scheme() == "http"));
            url = next.ok_or_else(|| FetchError::new(step.what, &ask.url, FetchReason::Redirected, String::new()))?;
        }
        Err(FetchError::new(
            step.what,
            &ask.url,
            FetchReason::Redirected,
            format!("{MAX_REDIRECTS} times"),
        ))
    }

    /// The same without redirects: a request's own headers are for one host only.
    pub(crate) async fn send_unredirected(&self, step: Step, ask: Ask) -> Result<Answer, FetchError> {
        let response = step.bound(&ask.url, self.send_once(step, &ask, &ask.url)).await??;
        let (parts, body) = response.into_parts();
        Ok(Answer {
            status: parts.status,
            headers: parts.headers,
            body,
            url: ask.url,
            step,
        })
    }

    /// Sends a message without redirects, because another host may not read it. Any status is a success.
    pub async fn deliver(&self, step: Step, ask: Ask) -> Result<Reply, FetchError> {
        let answer = self.send_unredirected(step, ask).await?;
        let status = answer.status;
        let seconds = answer
            .header(header::RETRY_AFTER)
            .and_then(|text| text.trim().parse().ok());
        let body = match answer.bytes(MAX_REPLY).await {
            Err(error) if matches!(error.reason, FetchReason::TooLarge { .. }) => Vec::new(),
            body => body?,
        };
        Ok(Reply {
            status,
            retry_after: seconds.map(Duration::from_secs),
            body,
        })
    }

    async fn send_once(&self, step: Step, ask: &Ask, url: &Url) -> Result<Response<Incoming>, FetchError> {
        let fail = |reason, evidence: String| FetchError::new(step.what, &ask.url, reason, evidence);
        let is_stated = self.is_stated(url);
        let mut request = Request::new(Full::new(ask.body.clone()));
        *request.method_mut() = ask.method.clone();
        *request.uri_mut() = url
            .as_str()
            .parse()
            .map_err(|_| fail(FetchReason::Redirected, "an address that is none".to_owned()))?;
        *request.headers_mut() = ask.headers.clone();
        request
            .headers_mut()
            .insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));

        let signature = match &ask.sign {
            Sign::Nothing => None,
            Sign::Login if is_stated || (self.passes_credentials && url.scheme() == "https") => {
                self.access.login.as_ref().and_then(crate::access::Login::header)
            }
            Sign::Header(header) if is_stated => Some(header.clone()),
            Sign::Login | Sign::Header(_) => None,
        };
        if let Some(signature) = signature
            && let Ok(mut value) = HeaderValue::from_str(&signature)
        {
            value.set_sensitive(true);
            request.headers_mut().insert(header::AUTHORIZATION, value);
        }

        let (client, links) = self.ways_to(url).await;
        if let Some(refused) = refuse_written(links, url) {
            return Err(fail(FetchReason::LinkRefused, refused.to_string()));
        }
        client.request(request).await.map_err(|error| {
            let (reason, evidence) = classify(&error);
            fail(reason, self.evidence(&evidence))
        })
    }

    /// The client for a host, and where the host may be.
    async fn ways_to(&self, url: &Url) -> (&HttpClient, &Links) {
        if self.is_stated(url) {
            return (&self.client, &self.near);
        }
        let make = || async {
            let links = match &self.own {
                Some(links) => links.clone(),
                None => {
                    self.links
                        .of_host(self.stated.host_str().unwrap_or_default(), &self.reached)
                        .await
                }
            };
            // A proxy resolves names itself.
            let way = self
                .proxied
                .clone()
                .unwrap_or_else(|| Way::direct(links.clone(), Reached::default()));
            Foreign {
                client: client(&self.tls_abroad, way),
                links,
            }
        };
        let Foreign { client, links } = self.foreign.get_or_init(make).await;
        (client, links)
    }

    /// The observation in a form for a status.
    pub(crate) fn evidence(&self, text: &str) -> String {
        let text = self.access.redact(text.lines().next().unwrap_or_default());
        escape(text.chars().take(MAX_EVIDENCE).collect::<String>().as_bytes())
    }
}

/// Checks a literal address, which no resolver sees.
fn refuse_written(links: &Links, url: &Url) -> Option<Refused> {
    let address = match url.host() {
        Some(url::Host::Ipv4(address)) => IpAddr::V4(address),
        Some(url::Host::Ipv6(address)) => IpAddr::V6(address),
        _ => return None,
    };
    (!links.allows(address)).then(|| Refused {
        host: address.to_string(),
        address,
    })
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        Some(url::Host::Domain(name)) => name == "localhost",
        None => false,
    }
}
