//! Connections to a server: direct, or through the HTTP proxy that the environment or a kubeconfig names.
//!
//! hyper-util's own tunnel only reports "unsuccessful", but people need the proxy's message, so `CONNECT` is sent with
//! hyper here. hyper-util decides which hosts are reached without the proxy.

use std::{
    fmt,
    net::IpAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderValue, Request, StatusCode, Uri, header, uri::Scheme};
use http_body_util::Empty;
use hyper::{
    client::conn::http1,
    rt::{Read, ReadBufCursor, Write},
    upgrade::Upgraded,
};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::{
    client::{
        legacy::connect::{Connected, Connection, HttpConnector},
        proxy::matcher::Matcher,
    },
    rt::TokioIo,
};
use rustls::ClientConfig;
use tokio::{net::TcpStream, time::timeout};
use tokio_util::task::AbortOnDropHandle;
use tower::Service;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// A proxy resolves the name and connects before it answers.
const PROXY_PATIENCE: Duration = Duration::from_secs(25);
const HEAD_BYTES: usize = 16 << 10;

/// A configured proxy. Printed without its credentials.
#[derive(Clone)]
pub struct Proxy {
    uri: Uri,
    authorization: Option<HeaderValue>,
    /// The variable or field that names it.
    named_by: &'static str,
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authority = self.uri.authority().map_or("", |authority| authority.as_str());
        write!(f, "{}://{authority}", self.uri.scheme_str().unwrap_or("http"))
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({self})")
    }
}

/// An invalid value. It is not repeated, because it may contain a password.
#[derive(Debug, thiserror::Error)]
#[error("read {named_by}: {problem}; want http://[USER:PASSWORD@]HOST:PORT")]
pub struct SettingError {
    named_by: &'static str,
    problem: &'static str,
}

#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    #[error("reach the proxy {0}")]
    Unreachable(Proxy, #[source] BoxError),
    #[error("the proxy {0} gave no answer within 25 s")]
    Silent(Proxy),
    #[error("the proxy {0} broke off")]
    Broken(Proxy, #[source] hyper::Error),
    #[error(
        "the proxy {0} wants credentials (407): give them in {name} as http://USER:PASSWORD@HOST:PORT, with % escapes",
        name = .0.named_by
    )]
    CredentialsMissing(Proxy),
    #[error("the proxy {0} refuses the credentials in {name} (407)", name = .0.named_by)]
    CredentialsWrong(Proxy),
    #[error(
        "the proxy {0} refuses to connect to {1} (403): have CONNECT to this host and port allowed there, or name the host in \
         NO_PROXY if it is reached without the proxy"
    )]
    Forbidden(Proxy, String),
    #[error("the proxy {0} can't connect to {1}: it answered {2}")]
    Refused(Proxy, String, StatusCode),
}

impl Proxy {
    /// The proxy for requests to `target`, by the rules that Go programs and curl share: `HTTPS_PROXY` or
    /// `https_proxy`, unless `NO_PROXY` or `no_proxy` names the host; never for this machine itself. None: connect
    /// directly.
    pub fn of_environment(
        target: &Uri,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, SettingError> {
        let first = |names: [&'static str; 2]| {
            names
                .into_iter()
                .find_map(|name| Some((name, variable(name).filter(|value| !value.is_empty())?)))
        };
        let Some((named_by, value)) = first(["HTTPS_PROXY", "https_proxy"]) else {
            return Ok(None);
        };
        let proxy = Self::parse(named_by, &value)?;
        let exceptions = first(["NO_PROXY", "no_proxy"])
            .map(|(_, list)| list)
            .unwrap_or_default();
        Ok((!goes_straight(target, &exceptions)).then_some(proxy))
    }

    pub fn parse(named_by: &'static str, text: &str) -> Result<Self, SettingError> {
        let wrong = |problem| SettingError { named_by, problem };
        let text = if text.contains("://") {
            text.to_owned()
        } else {
            format!("http://{text}")
        };
        let given: Uri = text.parse().map_err(|_| wrong("it is no URL"))?;
        if given
            .scheme()
            .is_none_or(|scheme| *scheme != Scheme::HTTP && *scheme != Scheme::HTTPS)
        {
            return Err(wrong("only proxies that speak HTTP are supported"));
        }
        if !matches!(given.path(), "" | "/") || given.query().is_some() {
            return Err(wrong("a proxy's URL has no path"));
        }
        if given.host().is_none_or(str::is_empty) {
            return Err(wrong("it names no host"));
        }
        let place = given.authority().map_or("", |authority| {
            authority.as_str().rsplit('@').next().unwrap_or_default()
        });
        if given.host() != Some(place) && given.port_u16().is_none() {
            return Err(wrong("its port is no number"));
        }
        // Splits credentials from the address, and decodes them.
        let intercept = Matcher::builder()
            .all(text)
            .build()
            .intercept(&Uri::from_static("https://hub"));
        let intercept = intercept.ok_or_else(|| wrong("it is no URL"))?;
        Ok(Self {
            uri: intercept.uri().clone(),
            authorization: intercept.basic_auth().cloned(),
            named_by,
        })
    }

    /// Whether the connection to the proxy itself uses TLS.
    pub fn is_encrypted(&self) -> bool {
        self.uri.scheme() == Some(&Scheme::HTTPS)
    }

    /// The error for a proxy that can't be used here.
    pub fn unsupported(&self, problem: &'static str) -> SettingError {
        SettingError {
            named_by: self.named_by,
            problem,
        }
    }
}

fn goes_straight(target: &Uri, exceptions: &str) -> bool {
    let host = target.host().unwrap_or_default();
    let address: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    // As in Go: a proxy on another host would reach itself at these addresses.
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    let port = target.port_u16().unwrap_or(443);
    let list: Vec<String> = exceptions
        .split(',')
        .filter_map(|entry| without_port(entry.trim(), port))
        .collect();
    Matcher::builder()
        .all("http://proxy")
        .no(list.join(","))
        .build()
        .intercept(target)
        .is_none()
}

/// An entry of `NO_PROXY` for requests to this port, in hyper-util's form. None: it is for another port.
fn without_port(entry: &str, port: u16) -> Option<String> {
    let (host, of_port) = match entry.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, rest)) => (address, rest.strip_prefix(':')),
        // More than one colon is an IPv6 address or network.
        None if entry.matches(':').count() == 1 => entry.split_once(':').map(|(host, port)| (host, Some(port)))?,
        None => (entry, None),
    };
    if of_port.is_some_and(|of_port| of_port.parse() != Ok(port)) {
        return None;
    }
    Some(
        host.strip_prefix("*.")
            .map_or_else(|| host.to_owned(), |domain| format!(".{domain}")),
    )
}

/// Opens connections, through a proxy if there is one.
#[derive(Clone)]
pub struct Connector {
    tcp: HttpConnector,
    proxy: Option<(Proxy, HttpsConnector<HttpConnector>)>,
}

impl Connector {
    /// `tls` is used only for a proxy that is reached by TLS.
    pub fn new(proxy: Option<(Proxy, ClientConfig)>) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        // Many small requests share a connection, so don't delay them.
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_PATIENCE));
        let proxy = proxy.map(|(proxy, tls)| {
            let builder = HttpsConnectorBuilder::new()
                .with_tls_config(tls)
                .https_or_http()
                .enable_http1();
            (proxy, builder.wrap_connector(tcp.clone()))
        });
        Self { tcp, proxy }
    }
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Stream, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // The connection to a proxy uses the same connector.
        self.tcp.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        match &mut self.proxy {
            None => {
                let connecting = self.tcp.call(target);
                Box::pin(async move { Ok(Stream::Straight(connecting.await?)) })
            }
            Some((proxy, connector)) => {
                let (proxy, connecting) = (proxy.clone(), connector.call(proxy.uri.clone()));
                Box::pin(async move {
                    match connecting.await {
                        Ok(stream) => Ok(Stream::Tunnelled(open_tunnel(stream, &target, proxy).await?)),
                        Err(source) => Err(ProxyError::Unreachable(proxy, source).into()),
                    }
                })
            }
        }
    }
}

/// Sends `CONNECT`, RFC 9110 section 9.3.6.
async fn open_tunnel(
    stream: MaybeHttpsStream<TokioIo<TcpStream>>,
    target: &Uri,
    proxy: Proxy,
) -> Result<Upgraded, ProxyError> {
    let usual = if target.scheme() == Some(&Scheme::HTTP) {
        80
    } else {
        443
    };
    let place = format!(
        "{}:{}",
        target.host().unwrap_or_default(),
        target.port_u16().unwrap_or(usual)
    );
    let broken = |source| ProxyError::Broken(proxy.clone(), source);
    let mut request = Request::connect(&place).header(header::HOST, &place);
    if let Some(credentials) = &proxy.authorization {
        request = request.header(header::PROXY_AUTHORIZATION, credentials);
    }
    let request = request
        .body(Empty::<Bytes>::new())
        .expect("host and port of a URL are a request's target");
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(HEAD_BYTES)
        .handshake(stream)
        .await
        .map_err(broken)?;
    // Ends with the upgrade, or when this future is dropped.
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection.with_upgrades()));
    let answer = timeout(PROXY_PATIENCE, sender.send_request(request)).await;
    let answer = answer.map_err(|_| ProxyError::Silent(proxy.clone()))?.map_err(broken)?;
    match answer.status() {
        status if status.is_success() => hyper::upgrade::on(answer).await.map_err(broken),
        StatusCode::PROXY_AUTHENTICATION_REQUIRED if proxy.authorization.is_none() => {
            Err(ProxyError::CredentialsMissing(proxy))
        }
        StatusCode::PROXY_AUTHENTICATION_REQUIRED => Err(ProxyError::CredentialsWrong(proxy)),
        StatusCode::FORBIDDEN => Err(ProxyError::Forbidden(proxy, place)),
        status => Err(ProxyError::Refused(proxy, place, status)),
    }
}

/// A connection to the server itself.
pub enum Stream {
    Straight(TokioIo<TcpStream>),
    Tunnelled(Upgraded),
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        match self {
            Self::Straight(stream) => stream.connected(),
            Self::Tunnelled(_) => Connected::new(),
        }
    }
}

impl Read for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Straight(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tunnelled(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl Write for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        match self.get_mut() {
            Self::Straight(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tunnelled(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Straight(stream) => Pin::new(stream).poll_flush(context),
            Self::Tunnelled(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Straight(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tunnelled(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
#[path = "proxy_tests.rs"]
mod tests;
