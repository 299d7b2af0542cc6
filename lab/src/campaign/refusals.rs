//! Answers that a hub sends before it has read a request's body, over HTTP/1.1 and HTTP/2, to common clients. All of
//! them must arrive.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
    sync::Arc,
};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use farwater_testkit::{Hub, temporary_folder};
use futures::{StreamExt as _, stream};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::Round;

/// Number of requests for each client, protocol and refusal.
const EACH: usize = 500;
/// Number of concurrent requests of one client.
const AT_ONCE: usize = 8;
/// Number of concurrent requests with a body of several MiB. More of one user's bodies find no room, and are told to
/// come again (503).
const LONG_AT_ONCE: usize = 2;

const GO: &str = include_str!("refusals/client.go");
const PYTHON: &str = include_str!("refusals/client.py");

/// A request that the hub can answer without its body.
#[derive(Clone, Serialize)]
struct Refusal {
    method: &'static str,
    path: &'static str,
    content_type: &'static str,
    token: String,
    bytes: usize,
    code: u16,
}

/// Results of one client's requests for one refusal.
#[derive(Default, Serialize, Deserialize)]
struct Seen {
    answered: usize,
    /// Some errors of the failed requests.
    errors: Vec<String>,
}

impl Refusal {
    fn at_once(&self) -> usize {
        if self.bytes > 2 << 20 { LONG_AT_ONCE } else { AT_ONCE }
    }
}

fn refusals(token: &str) -> Vec<Refusal> {
    let refusal = |method, path, content_type, token: &str, bytes, code| Refusal {
        method,
        path,
        content_type,
        token: token.to_owned(),
        bytes,
        code,
    };
    let json = "application/json";
    vec![
        // At the paths of the API, the agents, the webhooks and the page.
        refusal("POST", "/api/v1/namespaces", json, "wrong", 1 << 20, 401),
        refusal("POST", "/api/v1/boats", json, token, 1 << 20, 404),
        refusal("POST", "/healthz", json, "", 1 << 20, 405),
        refusal("POST", "/api/v1/namespaces", json, token, (3 << 20) + (1 << 19), 413),
        refusal("POST", "/api/v1/namespaces", "text/plain", token, 1 << 20, 415),
        refusal("POST", "/agent/v1/join", json, "", 1 << 20, 401),
        refusal("POST", "/hook/none", json, "", 1 << 20, 403),
        refusal("POST", "/ui/", json, "", 1 << 20, 405),
    ]
}

/// Counts requests.
pub async fn round(seed: u64) -> Result<Round> {
    let dir = temporary_folder("farwater-refusals-")?;
    let mut hub = Hub::start(dir.path()).await?;
    hub.tolerate("");
    let token = hub.token()?;
    let authority = dir.path().join("keys/ca.crt");
    let scripts = temporary_folder("farwater-clients-")?;
    let go = scripts.path().join("client");
    fs::write(scripts.path().join("client.go"), GO)?;
    fs::write(scripts.path().join("client.py"), PYTHON)?;
    let mut build = Command::new("go");
    build
        .current_dir(scripts.path())
        .env("GOWORK", "off")
        .args(["build", "-o", "client", "client.go"]);
    printed(&mut build).context("build the client in Go")?;

    let (mut count, mut failures, mut figures) = (0, Vec::new(), Vec::new());
    for refusal in refusals(&token) {
        let target = Target {
            port: hub.port(),
            authority: &authority,
            dir: scripts.path(),
            refusal: &refusal,
        };
        for (client, http2) in [
            ("curl", false),
            ("curl", true),
            ("Python", false),
            ("Go", false),
            ("Go", true),
            ("hyper", false),
            ("hyper", true),
        ] {
            let seen = match client {
                "curl" => target.curl(http2).await?,
                "hyper" => target.hyper(http2).await?,
                "Go" => target.program(Command::new(&go), http2)?,
                _ => {
                    let mut python = Command::new("python3");
                    python.arg(scripts.path().join("client.py"));
                    target.program(python, http2)?
                }
            };
            count += EACH as u64;
            let protocol = if http2 { "HTTP/2" } else { "HTTP/1.1" };
            let (path, code) = (refusal.path, refusal.code);
            eprintln!(
                "{code} at {path}, {client} over {protocol}: {} of {EACH} answered",
                seen.answered
            );
            figures.push(
                json!({"code": code, "path": path, "client": client, "protocol": protocol, "answered": seen.answered}),
            );
            if seen.answered < EACH {
                let lost = EACH - seen.answered;
                failures.push(format!(
                    "{code} at {path}, {client} over {protocol}: {lost} lost: {}",
                    seen.errors.join("; ")
                ));
            }
        }
    }
    Ok(Round {
        count,
        failures,
        figures: json!({"seed": seed, "each": EACH, "clients": figures}),
    })
}

/// The server and the paths of the requests.
struct Target<'a> {
    port: u16,
    authority: &'a Path,
    dir: &'a Path,
    refusal: &'a Refusal,
}

impl Target<'_> {
    fn address(&self) -> String {
        format!("https://127.0.0.1:{}{}", self.port, self.refusal.path)
    }

    /// Starts a process for each request, as scripts do.
    async fn curl(&self, http2: bool) -> Result<Seen> {
        let body = self.dir.join("body");
        fs::write(&body, vec![b'x'; self.refusal.bytes])?;
        let outputs = stream::iter(0..EACH).map(|_| {
            let mut curl = tokio::process::Command::new("curl");
            curl.args([
                "--silent",
                "--show-error",
                "--output",
                "/dev/null",
                "--write-out",
                "%{http_code}",
            ])
            .arg(if http2 { "--http2" } else { "--http1.1" })
            .args(["--request", self.refusal.method, "--header", "expect:"])
            .arg("--cacert")
            .arg(self.authority)
            .args(["--header", &format!("content-type: {}", self.refusal.content_type)])
            .args(["--header", &format!("authorization: Bearer {}", self.refusal.token)])
            .arg("--data-binary")
            .arg(format!("@{}", body.display()))
            .arg(self.address());
            async move { curl.output().await.context("start curl: it must be on the PATH") }
        });
        let mut outputs = outputs.buffer_unordered(self.refusal.at_once());
        let mut seen = Seen::default();
        while let Some(output) = outputs.next().await {
            let output = output?;
            let is_answered = output.status.success() && output.stdout == self.refusal.code.to_string().as_bytes();
            seen.note(is_answered, || format!("{output:?}"));
        }
        Ok(seen)
    }

    /// Starts a program that reads its requests from its first argument and prints their results.
    fn program(&self, mut program: Command, http2: bool) -> Result<Seen> {
        let plan = json!({
            "address": self.address(), "authority": self.authority, "http2": http2, "count": EACH, "atOnce": self.refusal.at_once(),
            "method": self.refusal.method, "contentType": self.refusal.content_type, "token": self.refusal.token,
            "bytes": self.refusal.bytes, "code": self.refusal.code,
        });
        let output = printed(program.arg(plan.to_string()))?;
        serde_json::from_slice(&output.stdout).context("read the client's results")
    }

    async fn hyper(&self, http2: bool) -> Result<Seen> {
        let authority = fs::read(self.authority).context("read the hub's authority")?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&authority).context("read the hub's authority")?)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![if http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
        let tls = TlsConnector::from(Arc::new(tls));
        let answers = stream::iter(0..EACH)
            .map(|_| self.ask(&tls, http2))
            .buffer_unordered(self.refusal.at_once());
        let mut seen = Seen::default();
        let mut answers = std::pin::pin!(answers);
        while let Some(answer) = answers.next().await {
            let is_answered = answer.as_ref().is_ok_and(|code| *code == self.refusal.code);
            seen.note(is_answered, || format!("{answer:?}"));
        }
        Ok(seen)
    }

    /// Status code of a complete answer.
    async fn ask(&self, tls: &TlsConnector, http2: bool) -> Result<u16> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        let io = TokioIo::new(tls.connect(ServerName::try_from("127.0.0.1")?, stream).await?);
        let body = Full::new(Bytes::from(vec![b'x'; self.refusal.bytes]));
        let uri = if http2 {
            self.address()
        } else {
            self.refusal.path.to_owned()
        };
        let request = Request::builder()
            .method(self.refusal.method)
            .uri(uri)
            .header("host", "127.0.0.1")
            .header("content-type", self.refusal.content_type)
            .header("authorization", format!("Bearer {}", self.refusal.token))
            .body(body)?;
        let answer = if http2 {
            let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
            tokio::spawn(connection);
            sender.send_request(request).await?
        } else {
            let (mut sender, connection) = http1::handshake(io).await?;
            tokio::spawn(connection);
            sender.send_request(request).await?
        };
        let code: StatusCode = answer.status();
        answer.into_body().collect().await?;
        Ok(code.as_u16())
    }
}

impl Seen {
    fn note(&mut self, is_answered: bool, error: impl FnOnce() -> String) {
        if is_answered {
            self.answered += 1;
        } else if self.errors.len() < 3 {
            self.errors.push(error());
        }
    }
}

fn printed(command: &mut Command) -> Result<Output> {
    let output = command
        .output()
        .with_context(|| format!("start {:?}", command.get_program()))?;
    if !output.status.success() {
        bail!(
            "{:?}: {}: {}",
            command.get_program(),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    ensure!(
        !output.stdout.is_empty() || output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(output)
}
