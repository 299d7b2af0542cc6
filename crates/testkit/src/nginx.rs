//! nginx with its own certificate. In front of a hub it uses HTTP/1.1 on both sides, like an ingress, and optionally
//! passes WebSockets on. Or it serves files as fast as it can.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use farwater_api::protocol::CONNECTION_PATH;

use crate::{
    Process,
    authority::Pair,
    packages::{self, Package},
    ports,
    process::{bare_command, wait_ready},
    temporary_folder,
};

pub const NGINX: Package = Package {
    program: "/usr/sbin/nginx",
    debian: "nginx",
};
const READY: Duration = Duration::from_secs(30);

/// How it handles WebSockets in front of a hub.
#[derive(Clone, Copy, Debug)]
pub enum WebSockets {
    /// WebSockets without data from the hub for this time are closed. Other requests have nginx's own limit of 60 s.
    Passed(Duration),
    Refused,
}

/// A running server. Ends when dropped.
#[derive(Debug)]
pub struct Nginx {
    port: u16,
    process: Process,
    folder: tempfile::TempDir,
}

impl Nginx {
    /// Starts it in front of the hub at this port of the machine.
    pub async fn start(hub: u16, certificate: &Pair, websockets: WebSockets) -> Result<Self> {
        Self::serve(certificate, &before_hub(hub, websockets)).await
    }

    /// Starts it with the files of a folder.
    pub async fn of_folder(folder: &Path, certificate: &Pair) -> Result<Self> {
        Self::serve(certificate, &of_files(folder)).await
    }

    /// `server`: configuration of its only server, without `listen`.
    async fn serve(certificate: &Pair, server: &str) -> Result<Self> {
        packages::require(&[NGINX])?;
        let folder = temporary_folder("farwater-nginx-")?;
        let port = ports::free()?;
        let write = |name: &str, text: &str| -> Result<PathBuf> {
            let path = folder.path().join(name);
            fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
            Ok(path)
        };
        write("tls.crt", &certificate.certificate)?;
        write("tls.key", &certificate.key)?;
        let config = write("nginx.conf", &configuration(port, server))?;
        let mut command = bare_command(NGINX.program);
        // nginx opens this log before it reads its configuration.
        command
            .arg("-p")
            .arg(folder.path())
            .arg("-c")
            .arg(config)
            .args(["-e", "stderr"]);
        let mut process = Process::spawn("nginx", command, &folder.path().join("nginx.log"))?;
        let probe = || async {
            tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
            Ok(())
        };
        wait_ready(&mut [&mut process], READY, probe)
            .await
            .context("start nginx")?;
        Ok(Self { port, process, folder })
    }

    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// One line for each completed request, in front of a hub.
    pub fn access_log(&self) -> String {
        fs::read_to_string(self.folder.path().join("access.log")).unwrap_or_default()
    }

    pub fn tail(&self) -> String {
        format!("{}\n{}", self.access_log(), self.process.tail())
    }
}

fn before_hub(hub: u16, websockets: WebSockets) -> String {
    let location = |path: &str, more: &str| {
        format!(
            "
    location {path} {{
      proxy_pass https://127.0.0.1:{hub};
      proxy_http_version 1.1;
      proxy_set_header Host $host;
      {more}
    }}"
        )
    };
    let connections = match websockets {
        WebSockets::Passed(silence) => {
            let upgrade = "proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade;";
            location(
                CONNECTION_PATH,
                &format!("{upgrade} proxy_read_timeout {}s;", silence.as_secs()),
            )
        }
        WebSockets::Refused => String::new(),
    };
    format!("access_log access.log;{connections}{}", location("/", ""))
}

fn of_files(folder: &Path) -> String {
    format!(
        "access_log off;
    root {};
    default_type application/octet-stream;
    sendfile on; tcp_nopush on; keepalive_requests 100000000; keepalive_timeout 600s;
    open_file_cache max=10000; open_file_cache_valid 600s;",
        folder.display()
    )
}

fn configuration(port: u16, server: &str) -> String {
    // As a single process of the current user, so that nothing of it survives that process and no other user is needed.
    format!(
        "daemon off; master_process off; pid nginx.pid; error_log stderr warn;
events {{ worker_connections 256; }}
http {{
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  map $http_upgrade $connection_upgrade {{ default upgrade; '' close; }}
  server {{
    listen 127.0.0.1:{port} ssl;
    ssl_certificate tls.crt;
    ssl_certificate_key tls.key;
    {server}
  }}
}}
"
    )
}
