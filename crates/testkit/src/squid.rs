//! squid as an HTTP proxy: open, with credentials, over TLS, or intercepting TLS as in some companies.
//!
//! It resolves names from its own list, so that a server can be reached only through it.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    Process,
    authority::Pair,
    packages::{self, Package},
    ports,
    process::{bare_command, wait_ready},
    temporary_folder,
};

/// The build of squid that can intercept TLS, and the program that runs it as its user.
pub const SQUID: [Package; 2] = [
    Package {
        program: "/usr/lib/squid/security_file_certgen",
        debian: "squid-openssl",
    },
    Package {
        program: "runuser",
        debian: "util-linux",
    },
];
const CERTGEN: &str = "/usr/lib/squid/security_file_certgen";
/// Debian's user for squid, which refuses to run as root.
const USER: &str = "proxy";
const READY: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Names that only squid resolves, to 127.0.0.1.
    pub names: Vec<String>,
    /// User and password that it requires.
    pub credentials: Option<(String, String)>,
    /// Hosts that it refuses to connect to.
    pub forbidden: Vec<String>,
    /// Serves TLS itself, with this certificate.
    pub tls: Option<Pair>,
    /// Intercepts TLS: issues certificates with this authority, and trusts servers of the other one (PEM).
    pub intercept: Option<(Pair, String)>,
}

/// A running proxy. Ends when dropped.
#[derive(Debug)]
pub struct Squid {
    port: u16,
    process: Process,
    folder: tempfile::TempDir,
}

impl Squid {
    pub async fn start(options: &Options) -> Result<Self> {
        packages::require(&SQUID)?;
        let folder = temporary_folder("farwater-squid-")?;
        let place = folder.path();
        // squid's user writes to this folder too, and reads our files.
        fs::set_permissions(place, fs::Permissions::from_mode(0o777))?;
        let port = ports::free()?;
        let config = write_files(place, port, options)?;
        let mut command = as_user("squid");
        command.args(["-N", "-f"]).arg(config).current_dir(place);
        let mut process = Process::spawn("squid", command, &place.join("squid.log"))?;
        let probe = || async {
            tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
            Ok(())
        };
        wait_ready(&mut [&mut process], READY, probe)
            .await
            .context("start squid")?;
        Ok(Self { port, process, folder })
    }

    /// `http://[USER:PASSWORD@]127.0.0.1:PORT`
    pub fn url(&self, credentials: &str) -> String {
        let at = if credentials.is_empty() { "" } else { "@" };
        format!("http://{credentials}{at}127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// One line for each completed request. The check whether the port is open is not included, because it sends no
    /// request.
    pub fn access_log(&self) -> String {
        let log = fs::read_to_string(self.folder.path().join("access.log")).unwrap_or_default();
        log.lines()
            .filter(|line| !line.contains("transaction-end-before-headers"))
            .map(|line| format!("{line}\n"))
            .collect()
    }

    pub fn tail(&self) -> String {
        let own = fs::read_to_string(self.folder.path().join("cache.log")).unwrap_or_default();
        format!("{}\n{own}\n{}", self.access_log(), self.process.tail())
    }
}

fn as_user(program: &str) -> Command {
    let mut command = if packages::is_root() {
        let mut command = bare_command("runuser");
        command.args(["-u", USER, "--", program]);
        command
    } else {
        bare_command(program)
    };
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command
}

fn write_files(place: &Path, port: u16, options: &Options) -> Result<PathBuf> {
    let write = |name: &str, text: &str| -> Result<String> {
        let path = place.join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
        Ok(path.display().to_string())
    };
    let hosts: String = options.names.iter().map(|name| format!("127.0.0.1 {name}\n")).collect();
    let mut lines = vec![
        format!("hosts_file {}", write("hosts", &hosts)?),
        // No DNS server answers there, so names outside the list don't exist.
        "dns_nameservers 127.0.0.1".to_owned(),
        "dns_timeout 1 seconds".to_owned(),
        "visible_hostname proxy.test".to_owned(),
        "pid_filename none".to_owned(),
        "pinger_enable off".to_owned(),
        "cache deny all".to_owned(),
        "cache_mem 8 MB".to_owned(),
        "shutdown_lifetime 0 seconds".to_owned(),
        format!("coredump_dir {}", place.display()),
        format!("cache_log {}", place.join("cache.log").display()),
        format!(
            "access_log stdio:{} logformat=common",
            place.join("access.log").display()
        ),
        "buffered_logs off".to_owned(),
    ];
    let listen = match (&options.tls, &options.intercept) {
        (Some(pair), _) => {
            let (certificate, key) = (write("tls.pem", &pair.certificate)?, write("tls.key", &pair.key)?);
            format!("https_port 127.0.0.1:{port} tls-cert={certificate} tls-key={key}")
        }
        (None, Some((pair, trusted))) => {
            let (certificate, key) = (write("ca.pem", &pair.certificate)?, write("ca.key", &pair.key)?);
            let database = place.join("certificates");
            let made = as_user(CERTGEN)
                .args(["-c", "-s"])
                .arg(&database)
                .args(["-M", "4MB"])
                .output()?;
            ensure!(
                made.status.success(),
                "{CERTGEN}: {}",
                String::from_utf8_lossy(&made.stderr)
            );
            lines.push(format!("sslcrtd_program {CERTGEN} -s {} -M 4MB", database.display()));
            lines.push("sslcrtd_children 2 startup=1 idle=1".to_owned());
            lines.push(format!(
                "tls_outgoing_options cafile={}",
                write("trusted.pem", trusted)?
            ));
            lines.extend(["acl hello at_step SslBump1", "ssl_bump peek hello", "ssl_bump bump all"].map(str::to_owned));
            format!(
                "http_port 127.0.0.1:{port} ssl-bump generate-host-certificates=on tls-cert={certificate} tls-key={key}"
            )
        }
        (None, None) => format!("http_port 127.0.0.1:{port}"),
    };
    lines.push(listen);
    if let Some((user, password)) = &options.credentials {
        let script = format!("while read line; do [ \"$line\" = '{user} {password}' ] && echo OK || echo ERR; done\n");
        lines.push(format!(
            "auth_param basic program /bin/sh {}",
            write("credentials.sh", &script)?
        ));
        lines.push("auth_param basic realm proxy".to_owned());
        lines.push("acl known proxy_auth REQUIRED".to_owned());
        lines.push("http_access deny !known".to_owned());
    }
    for (n, host) in options.forbidden.iter().enumerate() {
        lines.push(format!("acl forbidden{n} dstdomain {host}"));
        lines.push(format!("http_access deny forbidden{n}"));
    }
    lines.push("http_access allow all".to_owned());
    write("squid.conf", &(lines.join("\n") + "\n")).map(PathBuf::from)
}
