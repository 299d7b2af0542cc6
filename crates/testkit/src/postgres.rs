//! PostgreSQL 15 servers: a shared one with a database for each test, and private ones that tests can break.
//!
//! The server refuses to run as root. As root it therefore runs as Debian's user `postgres`, in a temporary folder of
//! that user, and otherwise as the current user. It is never a service of the system.

use std::{
    collections::BTreeMap,
    env, fs,
    os::unix::{fs::chown, process::CommandExt as _},
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::sync::OnceCell;

use crate::{
    Process,
    packages::{self, Package},
    ports,
    process::{bare_command, signal, wait_ready},
    temporary_folder, wait_for,
};

/// The supported version.
pub const POSTGRES: Package = Package {
    program: "/usr/lib/postgresql/15/bin/postgres",
    debian: "postgresql-15",
};
const PROGRAMS: &str = "/usr/lib/postgresql/15/bin";

/// Variable that passes the shared server to tests: the URL of its first database.
pub const VARIABLE: &str = "FARWATER_POSTGRES";

const USER: &str = "farwater";
/// A real password, so that a test can check that it appears nowhere.
pub const PASSWORD: &str = "canary-password-52e1";
const FIRST_DATABASE: &str = "postgres";

const READY: Duration = Duration::from_secs(60);
/// Number of attempts: another process may take a port between our check and the server's bind.
const ATTEMPTS: usize = 3;

/// A running server. When dropped, it ends at once and its data is removed.
#[derive(Debug)]
pub struct Postgres {
    port: u16,
    /// None: another process runs it.
    running: Option<Running>,
}

/// Fields are dropped in this order, so that the server ends before its folder is removed.
#[derive(Debug)]
struct Running {
    process: Process,
    place: Place,
    settings: BTreeMap<String, String>,
}

#[derive(Debug)]
struct Place {
    data: PathBuf,
    owner: Option<Owner>,
    /// Folder with the log, and with the data unless another folder was requested.
    folder: tempfile::TempDir,
}

/// User that the server runs as. None: the current one.
#[derive(Clone, Copy, Debug)]
struct Owner {
    user: u32,
    group: u32,
}

impl Postgres {
    /// Starts an own server that syncs to disk, as in production. For tests that break or measure it.
    pub async fn start() -> Result<Self> {
        Self::start_with(&[]).await
    }

    /// Starts a server with further settings (`fsync`, `max_connections`). With `listen_addresses` it can be reached
    /// from elsewhere too.
    pub async fn start_with(settings: &[(&str, &str)]) -> Result<Self> {
        let folder = temporary_folder("farwater-postgres-")?;
        let data = folder.path().join("data");
        fs::create_dir(&data).with_context(|| format!("create {}", data.display()))?;
        Self::start_in(folder, data, settings).await
    }

    /// Starts a server with its data in an empty folder of the caller, such as a small file system.
    pub async fn start_at(data: &Path, settings: &[(&str, &str)]) -> Result<Self> {
        Self::start_in(temporary_folder("farwater-postgres-")?, data.to_owned(), settings).await
    }

    async fn start_in(folder: tempfile::TempDir, data: PathBuf, settings: &[(&str, &str)]) -> Result<Self> {
        packages::require(&[POSTGRES])?;
        let place = Place {
            data,
            owner: owner()?,
            folder,
        };
        place.initialise()?;
        if settings.iter().any(|(name, _)| *name == "listen_addresses") {
            place.let_others_in()?;
        }
        let own = settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let settings: BTreeMap<_, _> = defaults().chain(own).collect();
        let mut attempt = 1;
        let (port, process) = loop {
            let port = ports::free()?;
            let mut process = place.spawn(&settings, port)?;
            match ready(&mut process, port).await {
                Ok(()) => break (port, process),
                Err(error) if attempt < ATTEMPTS && format!("{error:#}").contains("Address already in use") => {}
                Err(error) => return Err(error.context("start PostgreSQL")),
            }
            attempt += 1;
        };
        Ok(Self {
            port,
            running: Some(Running {
                process,
                place,
                settings,
            }),
        })
    }

    /// URL of a database of this server, with its password.
    pub fn url(&self, database: &str) -> String {
        url(self.port, database)
    }

    /// URL of the first database: the value of [`VARIABLE`].
    pub fn first_url(&self) -> String {
        self.url(FIRST_DATABASE)
    }

    /// Creates an empty database with a new name. Returns its URL.
    pub async fn create_database(&self) -> Result<String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!(
            "test_{}_{number}_{:06x}",
            std::process::id(),
            rand::random_range(0..0x100_0000_u32)
        );
        self.execute(FIRST_DATABASE, &format!("CREATE DATABASE {name}")).await?;
        Ok(self.url(&name))
    }

    /// Runs SQL as the superuser. Returns the output, with columns separated by `|`.
    pub async fn execute(&self, database: &str, sql: &str) -> Result<String> {
        let port = self.port;
        let (database, sql) = (database.to_owned(), sql.to_owned());
        tokio::task::spawn_blocking(move || psql(port, &database, &sql))
            .await
            .context("run psql")?
    }

    /// Sets whether transactions may write to the database, and ends existing connections.
    pub async fn set_read_only(&self, database: &str, read_only: bool) -> Result<()> {
        let set = format!("ALTER DATABASE {database} SET default_transaction_read_only = {read_only}");
        self.execute(FIRST_DATABASE, &set).await?;
        // In the same transaction, because otherwise new connections might still have the old setting.
        let end = format!("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{database}'");
        self.execute(FIRST_DATABASE, &end).await.map(drop)
    }

    /// Kills the server and all its processes with SIGKILL: a power failure, as far as a running machine can simulate
    /// one.
    pub async fn kill9(&mut self) -> Result<()> {
        let running = self.own()?;
        let children = children(running.process.id());
        running.process.kill9();
        for child in &children {
            // Ignore a process that has already ended with its server.
            let _ = signal("KILL", &child.to_string());
        }
        wait_for("PostgreSQL's processes to be gone", READY, || async {
            Ok(children.iter().all(|child| !is_running(*child)).then_some(()))
        })
        .await
    }

    /// Restarts it with the same data and port.
    pub async fn restart(&mut self) -> Result<()> {
        self.kill9().await?;
        let port = self.port;
        let running = self.own()?;
        // The kernel may take a moment to release the shared memory and the port.
        wait_for("PostgreSQL to start again", READY, || async {
            let mut process = running.place.spawn(&running.settings, port)?;
            Ok(ready(&mut process, port).await.ok().map(|()| process))
        })
        .await
        .map(|process| running.process = process)
    }

    /// Pauses the server and all its processes: connections stay open, and nothing answers.
    pub fn pause(&mut self) -> Result<()> {
        let server = self.own()?.process.id();
        // The parent first, so that it starts no more processes.
        signal("STOP", &server.to_string())?;
        children(server)
            .iter()
            .for_each(|child| drop(signal("STOP", &child.to_string())));
        Ok(())
    }

    pub fn resume(&mut self) -> Result<()> {
        let server = self.own()?.process.id();
        children(server)
            .iter()
            .for_each(|child| drop(signal("CONT", &child.to_string())));
        signal("CONT", &server.to_string())
    }

    /// Gives a folder for data to the user that the server runs as.
    pub fn own_folder(&self, folder: &Path) -> Result<()> {
        let running = self
            .running
            .as_ref()
            .context("the server is shared: a test must not change it")?;
        running.place.give(folder)
    }

    fn own(&mut self) -> Result<&mut Running> {
        self.running
            .as_mut()
            .context("the server is shared: a test must not change it")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            // PostgreSQL's own immediate shutdown leaves nothing in the kernel. Then kill what is left.
            for name in ["CONT", "QUIT"] {
                let _ = signal(name, &running.process.id().to_string());
            }
        }
        if let Some(running) = &mut self.running {
            let _ = running.process.wait(Duration::from_secs(5));
        }
    }
}

/// The server that all tests share. The test run starts it and passes it in [`VARIABLE`]. A single test that is run by
/// hand starts its own, once per process. It doesn't sync, because crashes are tested on private servers.
pub async fn shared() -> Result<&'static Postgres> {
    static SHARED: OnceCell<Postgres> = OnceCell::const_new();
    SHARED
        .get_or_try_init(|| async {
            match env::var(VARIABLE) {
                Ok(url) => Ok(Postgres {
                    port: port_of(&url)?,
                    running: None,
                }),
                Err(_) => Postgres::start_unsynced().await,
            }
        })
        .await
}

impl Postgres {
    /// Starts a server that is fast but may lose data. For all tests that don't check the data after a crash.
    pub async fn start_unsynced() -> Result<Self> {
        Self::start_with(&[
            ("fsync", "off"),
            ("synchronous_commit", "off"),
            ("full_page_writes", "off"),
        ])
        .await
    }
}

/// Variable with the engine for tests that run on both: `sqlite` (the default) or `postgres`.
pub const CHOICE: &str = "FARWATER_TEST_DATABASE";

/// A new database for a hub, if the run uses PostgreSQL.
pub async fn chosen() -> Result<Option<String>> {
    match env::var(CHOICE).as_deref() {
        Err(_) | Ok("sqlite") => Ok(None),
        Ok("postgres") => Ok(Some(shared().await?.create_database().await?)),
        Ok(other) => bail!("{CHOICE} is {other:?}; expected sqlite or postgres"),
    }
}

fn url(port: u16, database: &str) -> String {
    format!("postgres://{USER}:{PASSWORD}@127.0.0.1:{port}/{database}")
}

fn port_of(url: &str) -> Result<u16> {
    let port = url
        .rsplit_once(':')
        .and_then(|(_, rest)| rest.split('/').next()?.parse().ok());
    port.with_context(|| format!("{VARIABLE} is not the URL that the test run sets"))
}

fn defaults() -> impl Iterator<Item = (String, String)> {
    let settings = [
        ("listen_addresses", "127.0.0.1"),
        ("unix_socket_directories", ""),
        // In the data folder, so that a kill leaves nothing in /dev/shm.
        ("dynamic_shared_memory_type", "mmap"),
        ("max_connections", "400"),
        ("shared_buffers", "64MB"),
        // Tests are too short to need these at the usual rate.
        ("autovacuum_naptime", "10s"),
    ];
    settings
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
}

fn owner() -> Result<Option<Owner>> {
    if !packages::is_root() {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd").context("read /etc/passwd")?;
    let entry = users
        .lines()
        .find_map(|line| line.strip_prefix("postgres:"))
        .context("there is no user postgres")?;
    let mut fields = entry.split(':').skip(1);
    let mut number = || {
        fields
            .next()
            .and_then(|field| field.parse().ok())
            .context("read postgres in /etc/passwd")
    };
    Ok(Some(Owner {
        user: number()?,
        group: number()?,
    }))
}

fn program(name: &str, owner: Option<Owner>) -> Command {
    let mut command = bare_command(Path::new(PROGRAMS).join(name));
    command.env("LC_ALL", "C").current_dir("/");
    if let Some(Owner { user, group }) = owner {
        command.uid(user).gid(group);
    }
    command
}

impl Place {
    fn give(&self, path: &Path) -> Result<()> {
        let Some(Owner { user, group }) = self.owner else {
            return Ok(());
        };
        chown(path, Some(user), Some(group)).with_context(|| format!("give away {}", path.display()))
    }

    fn initialise(&self) -> Result<()> {
        let passwords = self.folder.path().join("password");
        fs::write(&passwords, PASSWORD).with_context(|| format!("write {}", passwords.display()))?;
        self.give(self.folder.path())?;
        self.give(&self.data)?;
        let mut command = program("initdb", self.owner);
        command
            .arg("--pgdata")
            .arg(&self.data)
            .arg("--pwfile")
            .arg(&passwords)
            .args([
                "--no-sync",
                "--no-instructions",
                "--username",
                USER,
                "--encoding=UTF8",
                "--locale=C",
                "--auth-host=scram-sha-256",
                "--auth-local=reject",
            ]);
        let output = command.output().context("run initdb")?;
        ensure!(
            output.status.success(),
            "initdb {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// With a password, like all clients.
    fn let_others_in(&self) -> Result<()> {
        let path = self.data.join("pg_hba.conf");
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        fs::write(&path, text + "host all all all scram-sha-256\n").with_context(|| format!("write {}", path.display()))
    }

    fn spawn(&self, settings: &BTreeMap<String, String>, port: u16) -> Result<Process> {
        let mut command = program("postgres", self.owner);
        command.arg("-D").arg(&self.data).args(["-p", &port.to_string()]);
        for (name, value) in settings {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        Process::spawn("PostgreSQL", command, &self.folder.path().join("log"))
    }
}

async fn ready(process: &mut Process, port: u16) -> Result<()> {
    wait_ready(&mut [process], READY, || async move {
        tokio::task::spawn_blocking(move || psql(port, FIRST_DATABASE, "SELECT 1").map(drop)).await?
    })
    .await
}

fn psql(port: u16, database: &str, sql: &str) -> Result<String> {
    let mut command = program("psql", None);
    command
        .args([
            "--host",
            "127.0.0.1",
            "--port",
            &port.to_string(),
            "--username",
            USER,
            "--dbname",
            database,
        ])
        .args([
            "--no-psqlrc",
            "--quiet",
            "--tuples-only",
            "--no-align",
            "--set",
            "ON_ERROR_STOP=1",
            "--command",
            sql,
        ])
        .env("PGPASSWORD", PASSWORD)
        .env("PGCONNECT_TIMEOUT", "10");
    let output = command.output().context("run psql")?;
    if !output.status.success() {
        bail!("psql: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Processes that a server has started. Each one is its own process group.
fn children(server: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    ids.filter(|id| status(*id).is_some_and(|(_, parent)| parent == server))
        .collect()
}

fn is_running(id: u32) -> bool {
    status(id).is_some_and(|(state, _)| state != 'Z')
}

/// State and parent of a process. Its name, in parentheses before them, may contain any characters.
fn status(id: u32) -> Option<(char, u32)> {
    let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_answers_again_after_a_kill_and_a_pause() {
        let mut server = Postgres::start().await.unwrap();
        server
            .execute(FIRST_DATABASE, "CREATE TABLE t AS SELECT 7 AS n")
            .await
            .unwrap();
        server.restart().await.unwrap();
        assert_eq!(server.execute(FIRST_DATABASE, "SELECT n FROM t").await.unwrap(), "7");
        server.pause().unwrap();
        let port = server.port;
        let asked = tokio::task::spawn_blocking(move || psql(port, FIRST_DATABASE, "SELECT n FROM t").unwrap());
        let mut asked = std::pin::pin!(asked);
        assert!(
            tokio::time::timeout(Duration::from_millis(200), asked.as_mut())
                .await
                .is_err(),
            "it stands still"
        );
        server.resume().unwrap();
        assert_eq!(asked.await.unwrap(), "7");
    }

    #[tokio::test]
    async fn databases_of_the_shared_server_are_apart() {
        let server = shared().await.unwrap();
        let (one, two) = (
            server.create_database().await.unwrap(),
            server.create_database().await.unwrap(),
        );
        assert_ne!(one, two);
        assert_eq!(port_of(&one).unwrap(), server.port);
    }
}
