//! HashiCorp Vault's server, built from its Go module: `tests/vault`.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::{
    Process, Tools,
    authority::Authority,
    ports,
    process::{bare_command, wait_ready},
    temporary_folder,
};

const READY: Duration = Duration::from_secs(60);

/// A running, unsealed server. Ends when dropped.
pub struct Vault {
    folder: tempfile::TempDir,
    authority: Authority,
    ports: [u16; 2],
    process: Option<Process>,
    token: String,
}

impl Vault {
    /// Needs the tools of [`Tools::find_vault`].
    pub async fn start() -> Result<Self> {
        let folder = temporary_folder("farwater-vault-")?;
        let authority = Authority::new("authority of a test's Vault")?;
        let pair = authority.issue(&["127.0.0.1"], 24)?;
        fs::write(folder.path().join("tls.crt"), pair.certificate)?;
        fs::write(folder.path().join("tls.key"), pair.key)?;
        fs::write(folder.path().join("ca.crt"), authority.pem())?;
        let ports = [ports::free()?, ports::free()?];
        let mut vault = Self {
            folder,
            authority,
            ports,
            process: None,
            token: String::new(),
        };
        vault.restart().await?;
        let audit = vault.audit_path();
        vault
            .put(
                "sys/audit/file",
                &serde_json::json!({"type": "file", "options": {"file_path": audit}}),
            )
            .await?;
        Ok(vault)
    }

    /// URL for clients.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.ports[1])
    }

    /// PEM file with the authority of its certificate.
    pub fn ca_file(&self) -> PathBuf {
        self.folder.path().join("ca.crt")
    }

    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The root token.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Kills it, as in a power failure.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Restarts it with its stored data at the same address.
    pub async fn restart(&mut self) -> Result<()> {
        self.kill();
        let place = self.folder.path();
        let [http, https] = self.ports.map(|port| format!("127.0.0.1:{port}"));
        let mut command = bare_command(Tools::find_vault()?.vault());
        command.args(["-http", &http, "-https", &https, "-data"]).arg(place);
        command
            .arg("-cert")
            .arg(place.join("tls.crt"))
            .arg("-key")
            .arg(place.join("tls.key"));
        let log = place.join("vault.log");
        fs::write(&log, "")?;
        let mut process = Process::spawn("vault", command, &log)?;
        let probe = || async {
            TcpStream::connect(http.as_str()).await?;
            Ok(())
        };
        wait_ready(&mut [&mut process], READY, probe)
            .await
            .context("start Vault")?;
        let said = process
            .output()
            .lines()
            .find_map(|line| serde_json::from_str::<Value>(line).ok());
        self.token = said
            .and_then(|said| said["token"].as_str().map(str::to_owned))
            .context("Vault has told no token")?;
        self.process = Some(process);
        Ok(())
    }

    /// Writes as root.
    pub async fn put(&self, path: &str, body: &Value) -> Result<Value> {
        self.ask(Method::POST, path, Some(body)).await
    }

    pub async fn delete(&self, path: &str) -> Result<Value> {
        self.ask(Method::DELETE, path, None).await
    }

    pub async fn get(&self, path: &str) -> Result<Value> {
        self.ask(Method::GET, path, None).await
    }

    async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        let stream = TcpStream::connect(("127.0.0.1", self.ports[0])).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let body = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let request = Request::builder()
            .method(method)
            .uri(format!("/v1/{path}"))
            .header("host", "vault");
        let request = request.header("x-vault-token", &self.token).body(Full::new(body))?;
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        if !status.is_success() {
            bail!("{path}: {status} {}", String::from_utf8_lossy(&body));
        }
        Ok(serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    /// Paths of all requests since its first start, in order.
    pub fn requests(&self) -> Vec<String> {
        let log = fs::read_to_string(self.audit_path()).unwrap_or_default();
        let entries = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let entries = entries.filter(|entry| entry["type"] == "request");
        entries
            .filter_map(|entry| entry["request"]["path"].as_str().map(str::to_owned))
            .collect()
    }

    fn audit_path(&self) -> PathBuf {
        self.folder.path().join("audit.log")
    }
}
