//! A token service as the distribution project specifies it. It issues signed tokens for a name and password, or for
//! anonymous users.

use std::{
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use aws_lc_rs::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair},
};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::AbortHandle};

pub(super) struct Tokens {
    signer: Arc<Signer>,
    address: SocketAddr,
    task: AbortHandle,
}

struct Signer {
    key: EcdsaKeyPair,
    certificate: rcgen::Certificate,
    login: (&'static str, &'static str),
}

impl Drop for Tokens {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Tokens {
    pub async fn start(login: (&'static str, &'static str)) -> Result<Self> {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        let certificate = rcgen::CertificateParams::new(vec!["tokens".to_owned()])?.self_signed(&pair)?;
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &pair.serialize_der())
            .map_err(|error| anyhow::anyhow!("read the key of tokens: {error}"))?;
        let signer = Arc::new(Signer {
            key,
            certificate,
            login,
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(serve(listener, Arc::clone(&signer))).abort_handle();
        Ok(Self { signer, address, task })
    }

    pub fn url(&self) -> String {
        format!("http://{}/token", self.address)
    }

    pub fn certificate(&self) -> String {
        self.signer.certificate.pem()
    }

    /// A token for all actions on a repository.
    pub fn of(&self, name: &str) -> Result<String> {
        self.signer
            .token(&json!([{"type": "repository", "name": name, "actions": ["pull", "push", "delete"]}]))
    }
}

impl Signer {
    fn token(&self, access: &Value) -> Result<String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let head = json!({"alg": "ES256", "typ": "JWT", "x5c": [STANDARD.encode(self.certificate.der())]});
        let claims = json!({
            "iss": "test", "sub": "", "aud": "test", "iat": now, "nbf": now - 60, "exp": now + 300, "jti": now.to_string(),
            "access": access,
        });
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", part(&head), part(&claims));
        let signature = self
            .key
            .sign(&SystemRandom::new(), message.as_bytes())
            .ok()
            .context("sign a token")?;
        Ok(format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref())))
    }

    fn answer(&self, request: &Request<Incoming>) -> Result<(StatusCode, String)> {
        let wanted = format!(
            "Basic {}",
            STANDARD.encode(format!("{}:{}", self.login.0, self.login.1))
        );
        let given = request
            .headers()
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok());
        if given.is_some_and(|given| given != wanted) {
            return Ok((StatusCode::UNAUTHORIZED, "{}".to_owned()));
        }
        // `scope=repository:NAME:pull,push`, possibly percent-encoded.
        let query = request
            .uri()
            .query()
            .unwrap_or_default()
            .replace("%3A", ":")
            .replace("%2C", ",")
            .replace("%2F", "/");
        let scope = query
            .split('&')
            .find_map(|pair| pair.strip_prefix("scope=repository:"))
            .unwrap_or_default();
        let name = scope.split(':').next().unwrap_or_default();
        let actions = if given.is_some() {
            vec!["pull", "push"]
        } else {
            Vec::new()
        };
        let access = json!([{"type": "repository", "name": name, "actions": actions}]);
        Ok((StatusCode::OK, json!({"token": self.token(&access)?}).to_string()))
    }
}

async fn serve(listener: TcpListener, signer: Arc<Signer>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let signer = Arc::clone(&signer);
        connections.spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let answer = signer.answer(&request);
                async move {
                    let (status, text) =
                        answer.unwrap_or_else(|error| (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")));
                    let mut response = Response::new(Full::new(Bytes::from(text)));
                    *response.status_mut() = status;
                    Ok::<_, Infallible>(response)
                }
            });
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}
