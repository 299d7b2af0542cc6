//! A fake of the part of a Git host's API that issues tokens to apps, like GitHub's. It verifies the request's
//! signature.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};
use serde::Deserialize;
use serde_json::json;
use tokio::{net::TcpListener, task::AbortHandle};

use crate::process::bare_command;

pub const APP: &str = "4711";
pub const INSTALLATION: &str = "815";

/// Ends when dropped.
pub struct AppApi {
    address: SocketAddr,
    key: String,
    state: Arc<Mutex<State>>,
    task: AbortHandle,
}

struct State {
    public_key: String,
    life: Duration,
    given: usize,
    refused: Vec<String>,
    /// Answer to send instead. None: the usual one.
    status: Option<u16>,
}

impl Drop for AppApi {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Deserialize)]
struct Claims {
    iat: i64,
    exp: i64,
    iss: String,
}

impl AppApi {
    pub async fn start() -> Result<Self> {
        let key = openssl(&["genrsa", "-traditional", "2048"], b"")?;
        let public_key = openssl(&["rsa", "-pubout"], key.as_bytes())?;
        let life = Duration::from_secs(3600);
        let state = State {
            public_key,
            life,
            given: 0,
            refused: Vec::new(),
            status: None,
        };
        let state = Arc::new(Mutex::new(state));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(serve(listener, Arc::clone(&state))).abort_handle();
        Ok(Self {
            address,
            key,
            state,
            task,
        })
    }

    pub fn url(&self) -> String {
        format!("http://{}/api/v3", self.address)
    }

    /// PEM of the app's private key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The `n`th issued token, counted from 1.
    pub fn token(n: usize) -> String {
        format!("ghs_{n:036}")
    }

    /// Number of issued tokens.
    pub fn given(&self) -> usize {
        self.state().given
    }

    /// Reasons why requests were refused.
    pub fn refused(&self) -> Vec<String> {
        self.state().refused.clone()
    }

    pub fn set_life(&self, life: Duration) {
        self.state().life = life;
    }

    pub fn set_status(&self, status: Option<u16>) {
        self.state().status = status;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn serve(listener: TcpListener, state: Arc<Mutex<State>>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let state = Arc::clone(&state);
        connections.spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                let answer = answer(&mut state, &request);
                async move { Ok::<_, hyper::Error>(answer) }
            });
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

fn answer(state: &mut State, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let (status, body) = match (state.status, check(state, request)) {
        (Some(status), _) => (
            StatusCode::from_u16(status).unwrap_or_default(),
            json!({"message": "fault"}),
        ),
        (None, Err(why)) => {
            state.refused.push(why.clone());
            (StatusCode::UNAUTHORIZED, json!({"message": why}))
        }
        (None, Ok(())) => {
            state.given += 1;
            let end = jiff::Timestamp::now() + jiff::SignedDuration::try_from(state.life).unwrap_or_default();
            let end = end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            (
                StatusCode::CREATED,
                json!({"token": AppApi::token(state.given), "expires_at": end}),
            )
        }
    };
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    *response.status_mut() = status;
    response
}

fn check(state: &State, request: &Request<Incoming>) -> Result<(), String> {
    let path = format!("/api/v3/app/installations/{INSTALLATION}/access_tokens");
    if request.method() != http::Method::POST || request.uri().path() != path {
        return Err(format!("{} {}", request.method(), request.uri()));
    }
    let header = |name: &str| {
        request
            .headers()
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    };
    if header("user-agent").is_empty() || !header("accept").contains("json") {
        return Err("no user agent, or no json".to_owned());
    }
    let token = header("authorization")
        .strip_prefix("Bearer ")
        .ok_or("no bearer token")?;
    let key = DecodingKey::from_rsa_pem(state.public_key.as_bytes()).map_err(|error| error.to_string())?;
    let mut rules = Validation::new(Algorithm::RS256);
    rules.leeway = 0;
    rules.set_required_spec_claims(&["exp", "iss"]);
    rules.set_issuer(&[APP]);
    let claims = decode::<Claims>(token, &key, &rules)
        .map_err(|error| error.to_string())?
        .claims;
    let now = jiff::Timestamp::now().as_second();
    match claims {
        Claims { iat, .. } if iat > now => Err("it was signed in the future".to_owned()),
        Claims { exp, .. } if exp > now + 600 => Err("it is valid for more than ten minutes".to_owned()),
        Claims { iss, .. } if iss != APP => Err(format!("issued by {iss}")),
        Claims { .. } => Ok(()),
    }
}

fn openssl(args: &[&str], input: &[u8]) -> Result<String> {
    use std::{
        io::Write as _,
        process::{Command, Stdio},
    };
    crate::packages::require(&[crate::packages::Package {
        program: "openssl",
        debian: "openssl",
    }])?;
    let mut command: Command = bare_command("openssl");
    let mut child = command
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("run openssl")?;
    child.stdin.take().context("no pipe")?.write_all(input)?;
    let output = child.wait_with_output()?;
    anyhow::ensure!(output.status.success(), "openssl {}: {}", args.join(" "), output.status);
    Ok(String::from_utf8(output.stdout)?)
}
