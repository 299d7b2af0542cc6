//! Command lines of the parts. The comments explain the flags, which are from `--help` of each part.

use std::{
    ffi::OsString,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use anyhow::{Context as _, Result, bail};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Node;
use rcgen::{KeyPair, PublicKeyData as _};
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use serde_json::json;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{ADMIN, AUDITED, Part, USERS, audit, bare_command, ports};
use crate::{Tools, process::within};

/// Where a plane's processes run and can be reached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Address of the API server.
    pub address: Ipv4Addr,
    /// Process whose network namespace they use. None: ours.
    pub network_of: Option<u32>,
}

impl Default for Place {
    fn default() -> Self {
        Self {
            address: Ipv4Addr::LOCALHOST,
            network_of: None,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Settings {
    tools: Tools,
    dir: PathBuf,
    place: Place,
    etcd: u16,
    etcd_peer: u16,
    pub(super) api: u16,
    controller_manager: u16,
    scheduler: u16,
    kwok: u16,
    kwok_node: u16,
    /// Tokens by user.
    pub(super) tokens: Vec<(String, String)>,
    audited: bool,
}

impl Settings {
    /// Chooses ports and writes the files that the parts read.
    pub(super) fn choose(tools: Tools, dir: &Path, place: Place, audited: bool) -> Result<Self> {
        let tokens = [ADMIN, AUDITED]
            .into_iter()
            .chain(USERS)
            .map(|user| (user.to_owned(), token()))
            .collect();
        let settings = Self::pick_ports(tools, dir, place, tokens, audited)?;
        let key = KeyPair::generate().context("make the service accounts' key")?;
        std::fs::write(settings.file("sa.key"), key.serialize_pem())?;
        std::fs::write(
            settings.file("sa.pub"),
            pem("PUBLIC KEY", &key.subject_public_key_info()),
        )?;
        let lines = settings.tokens.iter().map(|(user, token)| {
            let groups = if user == ADMIN || user == AUDITED {
                ",\"system:masters\""
            } else {
                ""
            };
            format!("{token},{user},{user}{groups}\n")
        });
        std::fs::write(settings.file("tokens.csv"), lines.collect::<String>())?;
        if audited {
            std::fs::write(settings.audit_policy(), audit::policy())?;
        }
        Ok(settings)
    }

    /// The same settings in an empty folder: objects, keys of service accounts, tokens of users. The ports differ, and
    /// the server creates its own certificate.
    pub(super) fn copy(&self, dir: &Path) -> Result<Self> {
        let kept = ["etcd", "sa.key", "sa.pub", "tokens.csv"].map(|name| self.file(name));
        let copied = bare_command("cp")
            .arg("-a")
            .args(kept)
            .arg(dir)
            .output()
            .context("run cp")?;
        if !copied.status.success() {
            bail!(
                "copy {}: {}",
                self.dir.display(),
                String::from_utf8_lossy(&copied.stderr)
            );
        }
        Self::pick_ports(self.tools.clone(), dir, self.place, self.tokens.clone(), false)
    }

    fn pick_ports(
        tools: Tools,
        dir: &Path,
        place: Place,
        tokens: Vec<(String, String)>,
        audited: bool,
    ) -> Result<Self> {
        Ok(Self {
            tools,
            dir: dir.to_owned(),
            place,
            etcd: ports::free()?,
            etcd_peer: ports::free()?,
            api: ports::free()?,
            controller_manager: ports::free()?,
            scheduler: ports::free()?,
            kwok: ports::free()?,
            kwok_node: ports::free()?,
            tokens,
            audited,
        })
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.file("kubeconfig")
    }

    /// With an IP address, because the certificate that the server creates is not valid for `localhost`.
    pub(super) fn url(&self) -> String {
        format!("https://{}:{}", self.place.address, self.api)
    }

    /// The server's own certificate, with the CA that signed it.
    pub(super) fn ca(&self) -> PathBuf {
        self.file("certs").join("apiserver.crt")
    }

    fn audit_policy(&self) -> PathBuf {
        self.file("audit.policy")
    }

    pub(super) fn audit_log(&self) -> PathBuf {
        self.file("audit.log")
    }

    pub(super) fn command(&self, part: Part) -> Command {
        let (mut command, flags) = match part {
            Part::Etcd => (self.tools.kubernetes("etcd"), self.etcd()),
            Part::ApiServer => (self.tools.kubernetes("kube-apiserver"), self.api_server()),
            Part::ControllerManager => (
                self.tools.kubernetes("kube-controller-manager"),
                self.controller_manager(),
            ),
            Part::Scheduler => (self.tools.kubernetes("kube-scheduler"), self.scheduler()),
            Part::Kwok => (bare_command(self.tools.kwok()), self.kwok()),
        };
        command.args(flags).current_dir(&self.dir).env("HOME", &self.dir);
        match self.place.network_of {
            Some(process) => within(process, &["--net"], &command),
            None => command,
        }
    }

    fn etcd(&self) -> Vec<OsString> {
        let client = format!("http://127.0.0.1:{}", self.etcd);
        let peer = format!("http://127.0.0.1:{}", self.etcd_peer);
        Flags::default()
            .path("--data-dir", self.file("etcd"))
            .text("--listen-client-urls", &client)
            .text("--advertise-client-urls", &client)
            .text("--listen-peer-urls", &peer)
            .text("--initial-advertise-peer-urls", &peer)
            .text("--initial-cluster", &format!("default={peer}"))
            // The data is thrown away, so don't wait for the disk.
            .switch("--unsafe-no-fsync")
            .text("--log-level", "error")
            .done()
    }

    fn api_server(&self) -> Vec<OsString> {
        let flags = Flags::default()
            .text("--etcd-servers", &format!("http://127.0.0.1:{}", self.etcd))
            .text("--bind-address", &self.place.address.to_string())
            .text("--advertise-address", &self.place.address.to_string())
            // For logs and exec: no DNS knows the node's name.
            .text("--kubelet-preferred-address-types", "InternalIP")
            .text("--secure-port", &self.api.to_string())
            .path("--cert-dir", self.file("certs"))
            .path("--service-account-key-file", self.file("sa.pub"))
            .path("--service-account-signing-key-file", self.file("sa.key"))
            .text("--service-account-issuer", "https://kubernetes.default.svc")
            .text("--authorization-mode", "RBAC")
            .path("--token-auth-file", self.file("tokens.csv"))
            // A /24 would be full after 253 Services.
            .text("--service-cluster-ip-range", "10.0.0.0/16");
        if !self.audited {
            return flags.done();
        }
        flags
            .path("--audit-policy-file", self.audit_policy())
            .path("--audit-log-path", self.audit_log())
            .done()
    }

    fn controller_manager(&self) -> Vec<OsString> {
        Flags::default()
            .path("--kubeconfig", self.kubeconfig())
            .path("--service-account-private-key-file", self.file("sa.key"))
            .path("--root-ca-file", self.ca())
            .text("--bind-address", "127.0.0.1")
            .text("--secure-port", &self.controller_manager.to_string())
            .switch("--leader-elect=false")
            .text("--controllers", "*,-nodeipam")
            // Nodes of kwok send no heartbeats. After the usual 50 s the nodes and their pods would count as lost.
            .text("--node-monitor-grace-period", "8760h")
            .done()
    }

    fn scheduler(&self) -> Vec<OsString> {
        Flags::default()
            .path("--kubeconfig", self.kubeconfig())
            .text("--bind-address", "127.0.0.1")
            .text("--secure-port", &self.scheduler.to_string())
            .switch("--leader-elect=false")
            .done()
    }

    fn kwok(&self) -> Vec<OsString> {
        let mut flags = Flags::default()
            .path("--kubeconfig", self.kubeconfig())
            // A test may play the kubelet of its own node.
            .text("--manage-nodes-with-annotation-selector", "kwok.x-k8s.io/node=fake")
            .text("--node-ip", "127.0.0.1")
            .text("--node-port", &self.kwok_node.to_string())
            // Without this, kwok listens on all addresses.
            .text("--server-address", &format!("127.0.0.1:{}", self.kwok))
            .text("--cidr", "10.244.0.0/16");
        for stage in self.tools.kwok_stages() {
            flags = flags.path("--config", stage);
        }
        flags.done()
    }

    /// Requests `/readyz` over TLS with the certificate that the server wrote, as a first client would.
    pub(super) async fn ready(&self) -> Result<()> {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(self.ca()).context("read the server's CA")? {
            roots.add(certificate?)?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let tcp = TcpStream::connect((self.place.address, self.api)).await?;
        let name = ServerName::from(std::net::IpAddr::from(self.place.address));
        let stream = TlsConnector::from(Arc::new(tls)).connect(name, tcp).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let request = http::Request::get("/readyz")
            .header("host", self.place.address.to_string())
            .body(Empty::<bytes::Bytes>::new())?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        connection.abort();
        if !status.is_success() {
            bail!("/readyz answered {status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(())
    }
}

/// Flags as pairs `NAME VALUE`.
#[derive(Default)]
struct Flags(Vec<OsString>);

impl Flags {
    fn text(mut self, name: &str, value: &str) -> Self {
        self.0.extend([name.into(), value.into()]);
        self
    }

    fn path(mut self, name: &str, value: PathBuf) -> Self {
        self.0.extend([name.into(), value.into()]);
        self
    }

    fn switch(mut self, name: &str) -> Self {
        self.0.push(name.into());
        self
    }

    fn done(self) -> Vec<OsString> {
        self.0
    }
}

/// A very large node, so that tests never wait for capacity.
pub(super) fn node(name: &str) -> Result<Node> {
    let room = json!({"cpu": "64", "memory": "256Gi", "pods": "1000"});
    let node = json!({
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "type": "kwok"},
        },
        "status": {"allocatable": room, "capacity": room},
    });
    serde_json::from_value(node).context("build a node")
}

fn token() -> String {
    hex::encode(rand::random::<[u8; 16]>())
}

fn pem(label: &str, der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<_> = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}
