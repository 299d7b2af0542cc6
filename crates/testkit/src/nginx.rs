//! nginx in front of a hub, with a certificate of its own: HTTP/1.1 to it and from it, as an ingress is set up, and WebSockets passed
//! on where that was asked for. Or nginx with files, to compare with.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};

use crate::{
    Process,
    authority::Pair,
    packages::{self, Package},
    ports,
    process::{bare_command, wait_ready},
    temporary_folder,
};

pub const NGINX: Package = Package { program: "/usr/sbin/nginx", debian: "nginx" };
const READY: Duration = Duration::from_secs(30);

/// A running server. Dropped, it ends.
#[derive(Debug)]
pub struct Nginx {
    port: u16,
    process: Process,
    folder: tempfile::TempDir,
}

impl Nginx {
    /// In front of the hub at this port of the machine.
    pub async fn start(hub: u16, certificate: &Pair, passes_websockets: bool) -> Result<Self> {
        Self::launch(certificate, &in_front_of(hub, passes_websockets)).await
    }

    /// Sends the files of a folder by the kernel, as it sends them fastest.
    pub async fn serve(files: &Path, certificate: &Pair) -> Result<Self> {
        let location =
            format!("root {}; sendfile on; tcp_nopush on; open_file_cache max=20000; access_log off;", files.display());
        Self::launch(certificate, &location).await
    }

    /// `location`: what is said of all paths.
    async fn launch(certificate: &Pair, location: &str) -> Result<Self> {
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
        let config = write("nginx.conf", &configuration(port, location))?;
        let mut command = bare_command(NGINX.program);
        // It opens this log before it reads where its own one is.
        command.arg("-p").arg(folder.path()).arg("-c").arg(config).args(["-e", "stderr"]);
        let mut process = Process::spawn("nginx", command, &folder.path().join("nginx.log"))?;
        let probe = || async {
            tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
            Ok(())
        };
        wait_ready(&mut [&mut process], READY, probe).await.context("start nginx")?;
        Ok(Self { port, process, folder })
    }

    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Of its one process.
    pub fn process(&self) -> u32 {
        self.process.id()
    }

    /// One line for each request that has ended.
    pub fn access_log(&self) -> String {
        fs::read_to_string(self.folder.path().join("access.log")).unwrap_or_default()
    }

    pub fn tail(&self) -> String {
        format!("{}\n{}", self.access_log(), self.process.tail())
    }
}

fn in_front_of(hub: u16, passes_websockets: bool) -> String {
    let websockets = if passes_websockets {
        "proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade;"
    } else {
        ""
    };
    format!("proxy_pass https://127.0.0.1:{hub}; proxy_http_version 1.1; proxy_set_header Host $host; {websockets}")
}

fn configuration(port: u16, location: &str) -> String {
    // As one process of whoever started it: nothing of it outlives that, and it needs no other user.
    format!(
        "daemon off; master_process off; pid nginx.pid; error_log stderr warn;
events {{ worker_connections 256; }}
http {{
  access_log access.log;
  keepalive_requests 1000000;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  map $http_upgrade $connection_upgrade {{ default upgrade; '' close; }}
  server {{
    listen 127.0.0.1:{port} ssl;
    ssl_certificate tls.crt;
    ssl_certificate_key tls.key;
    location / {{ {location} }}
  }}
}}
"
    )
}
