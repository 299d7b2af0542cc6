//! Opens connections: to the host itself, or through an HTTP proxy.

use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{HeaderValue, Uri};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::{
    client::legacy::connect::{HttpConnector, proxy::Tunnel},
    rt::TokioIo,
};
use tokio::net::TcpStream;

use super::CONNECT;
use crate::{
    credentials::{Proxy, basic},
    links::{Links, Reached, Resolver},
};

type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;
type Error = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone)]
pub(super) enum Way {
    Direct(HttpConnector<Resolver>, Reached),
    /// The proxy resolves names.
    Proxy(Box<Tunnel<HttpsConnector<HttpConnector<Resolver>>>>),
}

impl Way {
    /// `links`: where names may lead. `reached` records the addresses of connections.
    pub fn direct(links: Links, reached: Reached) -> Self {
        Self::Direct(connector(links), reached)
    }

    /// `links`: where the proxy may be. `tls`: for the connection to the proxy itself.
    pub fn through(proxy: &Proxy, links: Links, tls: rustls::ClientConfig) -> Result<Self, Error> {
        let https = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1();
        let (scheme, host, port) = (
            proxy.address.scheme.as_str(),
            proxy.address.bracketed(),
            proxy.address.port(),
        );
        let place: Uri = format!("{scheme}://{host}:{port}").parse()?;
        let mut tunnel = Tunnel::new(place, https.wrap_connector(connector(links)));
        if let Some((username, password)) = &proxy.login {
            tunnel = tunnel.with_auth(HeaderValue::from_str(&basic(username, password))?);
        }
        Ok(Self::Proxy(Box::new(tunnel)))
    }
}

fn connector(links: Links) -> HttpConnector<Resolver> {
    let mut http = HttpConnector::new_with_resolver(Resolver(links));
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT));
    http
}

impl tower::Service<Uri> for Way {
    type Response = Stream;
    type Error = Error;
    type Future = BoxFuture<'static, Result<Stream, Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        match self {
            Self::Direct(connector, _) => connector.poll_ready(context).map_err(Into::into),
            Self::Proxy(tunnel) => tunnel.poll_ready(context).map_err(Into::into),
        }
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        match self {
            Self::Direct(connector, reached) => {
                let (connecting, reached) = (connector.call(to), reached.clone());
                Box::pin(async move {
                    let stream = connecting.await?;
                    reached.note(stream.inner().peer_addr()?.ip());
                    Ok(MaybeHttpsStream::Http(stream))
                })
            }
            Self::Proxy(tunnel) => {
                let connecting = tunnel.call(to);
                Box::pin(async move { Ok(connecting.await?) })
            }
        }
    }
}
