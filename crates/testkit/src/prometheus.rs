//! A Prometheus server that scrapes test servers, and promtool, from Debian's package.

use std::{
    fs,
    io::Write as _,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::Value;

use crate::{
    Process,
    packages::{self, Package},
    ports,
    process::{bare_command, wait_ready},
    temporary_folder,
};

pub const PROMETHEUS: [Package; 2] = [
    Package {
        program: "prometheus",
        debian: "prometheus",
    },
    Package {
        program: "promtool",
        debian: "prometheus",
    },
];

const READY: Duration = Duration::from_secs(30);

/// A running server. When dropped, it ends and its data is removed.
#[derive(Debug)]
pub struct Prometheus {
    port: u16,
    _process: Process,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    /// Starts a server with this configuration, in YAML.
    pub async fn start(configuration: &str) -> Result<Self> {
        packages::require(&PROMETHEUS)?;
        let folder = temporary_folder("farwater-prometheus-")?;
        let file = folder.path().join("prometheus.yml");
        fs::write(&file, configuration).context("write Prometheus' configuration")?;
        let port = ports::free()?;
        let mut command = bare_command("prometheus");
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let mut process = Process::spawn("Prometheus", command, &folder.path().join("prometheus.log"))?;
        let probe = || async { get(&format!("http://127.0.0.1:{port}/-/ready")).await.map(drop) };
        wait_ready(&mut [&mut process], READY, probe)
            .await
            .context("start Prometheus")?;
        Ok(Self {
            port,
            _process: process,
            _folder: folder,
        })
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Result of an instant query: the series of a vector or matrix.
    pub async fn query(&self, expression: &str) -> Result<Vec<Value>> {
        let data = self.ask(&format!("/api/v1/query?query={}", escape(expression))).await;
        let data = data.with_context(|| format!("query {expression}"))?;
        let result = data["result"].as_array().cloned();
        result.with_context(|| format!("query {expression}: {data}"))
    }

    /// An answer of its API: the value of `data`.
    pub async fn ask(&self, path: &str) -> Result<Value> {
        let text = get(&format!("{}{path}", self.url())).await?;
        let mut answer: Value = serde_json::from_str(&text).with_context(|| format!("read {text:?}"))?;
        ensure!(answer["status"] == "success", "{answer}");
        Ok(answer["data"].take())
    }
}

/// Body of an answer over plain HTTP. A status other than 200 is an error with the body.
pub async fn get(url: &str) -> Result<String> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<bytes::Bytes>>();
    let answer = client.get(url.parse()?).await.with_context(|| format!("ask {url}"))?;
    let status = answer.status();
    let body = answer.into_body().collect().await?.to_bytes();
    let text = String::from_utf8(body.to_vec())?;
    ensure!(status == 200, "{url} answered {status}: {text}");
    Ok(text)
}

fn escape(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(byte).collect()
}

/// Runs promtool with this standard input. If promtool finds problems, its output is the error.
pub fn promtool(arguments: &[&str], input: &str) -> Result<String> {
    packages::require(&PROMETHEUS)?;
    let mut command: Command = bare_command("promtool");
    command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().context("start promtool")?;
    child
        .stdin
        .take()
        .context("promtool has a standard input")?
        .write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, complained) = (text(&output.stdout), text(&output.stderr));
    if !output.status.success() {
        bail!(
            "promtool {}: {}\n{said}{complained}",
            arguments.join(" "),
            output.status
        );
    }
    Ok(said)
}
