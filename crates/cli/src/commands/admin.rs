//! `farwater admin`: works on a hub's data without its API: backup, restore, check, copy; and on its keys.

mod backup;
mod failures;
mod helper_pod;
mod keys;
mod restore;
mod restore_in_cluster;

use std::path::PathBuf;

use clap::Subcommand;
use farwater_hub::{
    config::{DatabasePassword, DatabaseUrl, locate},
    identity::{IdentityError, read_next_seal_key, read_seal_key},
};
use farwater_manifests::names::hub as names;
use farwater_store::{
    Location,
    archive::{self, Copied},
    fsck,
};

use crate::{
    connection::ConnectArgs,
    exit,
    failure::{Failure, Result, chain},
    installed_hub::InstalledHub,
    target::Target,
    terminal::{print, say},
    text,
};
use failures::{failed, opening, unusable};

#[derive(Debug, clap::Args)]
pub struct AdminArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Backs up a hub's database to one file; the hub may run. With --context, backs up the hub in that cluster, with
    /// its keys.
    Backup {
        #[command(flatten)]
        of: HubArgs,
        /// The file to write; in a folder it gets a name with the time; `-` is standard output.
        file: PathBuf,
        /// Replace an existing file.
        #[arg(long)]
        force: bool,
        /// Include the hub's keys. Anyone with such a file can impersonate the hub.
        #[arg(long)]
        with_keys: bool,
        /// Number of backups to keep in the folder; older ones are deleted. Counts only backups that this command named
        /// by time.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
        keep: Option<u16>,
    },
    /// Replaces a hub's data with a backup. The hub must be stopped; with --context, this command stops and starts it.
    /// Watchers list again, and agents delete nothing until each Cluster is confirmed.
    Restore(restore::RestoreArgs),
    /// Checks every row of the database for damage. Changes nothing; the hub may run.
    Fsck {
        #[command(flatten)]
        of: HubArgs,
    },
    /// Shows and rotates the hub's keys.
    #[command(subcommand)]
    Keys(keys::Command),
    /// Prints the administrator's kubeconfig from the hub's data directory.
    Kubeconfig {
        /// The hub's data directory.
        #[arg(long, value_name = "DIR", env = "FARWATER_DATA_DIR")]
        data_dir: PathBuf,
    },
    /// Copies a database, from SQLite to PostgreSQL or back. The hub must be stopped.
    CopyStore {
        /// The file, or postgres://USER@HOST[:PORT]/DATABASE, to read.
        #[arg(long, value_name = "FILE|URL")]
        from: DatabaseUrl,
        /// File that holds the password of --from.
        #[arg(long, value_name = "FILE")]
        from_password_file: Option<PathBuf>,
        /// The file or URL to write.
        #[arg(long, value_name = "FILE|URL")]
        to: DatabaseUrl,
        /// File that holds the password of --to.
        #[arg(long, value_name = "FILE")]
        to_password_file: Option<PathBuf>,
        /// Replace an existing database.
        #[arg(long)]
        force: bool,
    },
}

/// Which hub: one on this machine by the same options as the hub's own, or one in the cluster of `--context`.
#[derive(Debug, clap::Args)]
struct HubArgs {
    /// The hub's data directory, of a hub on this machine.
    #[arg(long, value_name = "DIR", env = "FARWATER_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// The hub's PostgreSQL database, if it uses one.
    #[arg(long, value_name = "URL", env = "FARWATER_DATABASE", hide_env_values = true)]
    database: Option<DatabaseUrl>,
    /// The database's password; prefer the variable or the file.
    #[arg(
        long,
        value_name = "PASSWORD",
        env = "FARWATER_DATABASE_PASSWORD",
        hide_env_values = true
    )]
    database_password: Option<DatabasePassword>,
    /// File that holds the database's password.
    #[arg(long, value_name = "FILE", env = "FARWATER_DATABASE_PASSWORD_FILE")]
    database_password_file: Option<PathBuf>,
    /// Namespace of the hub in the cluster of --context [default: farwater-hub].
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,
}

/// A hub's data on this machine.
struct LocalHub {
    data_dir: PathBuf,
    location: Location,
}

impl LocalHub {
    /// The hub's seal key. During a rotation there are two: returns the one that opens the database.
    async fn seal_key(&self) -> Result<[u8; 32]> {
        let unreadable = |error: IdentityError| {
            Failure::usage("can't read the hub's seal key")
                .evidence(chain(&error))
                .next("restore the folder keys/ first, or give a backup that holds it")
        };
        let key = read_seal_key(&self.data_dir).map_err(unreadable)?;
        if let Some(next) = read_next_seal_key(&self.data_dir).map_err(unreadable)?
            && fsck::check_key(&self.location, next.bytes()).await.is_ok()
        {
            return Ok(*next.bytes());
        }
        Ok(*key.bytes())
    }
}

enum Place {
    Here(LocalHub),
    Cluster { target: Target, namespace: String },
}

impl HubArgs {
    async fn place(&self, connect: &ConnectArgs) -> Result<Place> {
        match (&self.data_dir, &connect.context) {
            (Some(_), Some(_)) => Err(Failure::usage(
                "--data-dir and --context name two hubs: give one of them",
            )),
            (None, None) => Err(Failure::usage("no hub is named")
                .next("--data-dir DIR of a hub on this machine, or --context CTX of one in a cluster")),
            (Some(data_dir), None) => {
                if self.namespace.is_some() {
                    return Err(Failure::usage(
                        "--namespace is of a hub in a cluster: it needs --context",
                    ));
                }
                let (url, password) = (self.database.clone(), self.database_password.clone());
                let file = self.database_password_file.as_deref();
                let location = farwater_hub::config::store_location(data_dir, url, password, file);
                let location = location.map_err(|error| unusable(&error))?;
                Ok(Place::Here(LocalHub {
                    data_dir: data_dir.clone(),
                    location,
                }))
            }
            (None, Some(context)) => {
                if self.database.is_some() || self.database_password.is_some() || self.database_password_file.is_some()
                {
                    return Err(Failure::usage(
                        "a hub in a cluster knows its database: give none with --context",
                    ));
                }
                let target = Target::open(connect.kubeconfig.as_deref(), Some(context)).await?;
                let namespace = self.namespace.clone().unwrap_or_else(|| names::NAMESPACE.to_owned());
                Ok(Place::Cluster { target, namespace })
            }
        }
    }
}

pub async fn run(args: AdminArgs, connect: &ConnectArgs) -> Result<u8> {
    match args.command {
        Command::Backup {
            of,
            file,
            force,
            with_keys,
            keep,
        } => {
            let shelf = backup::Shelf::of(&file, keep, jiff::Timestamp::now())?;
            match of.place(connect).await? {
                Place::Here(hub) => backup::write(&hub, &shelf.file, force, with_keys).await?,
                Place::Cluster { target, namespace } => {
                    let hub = InstalledHub {
                        target: &target,
                        namespace: &namespace,
                    };
                    backup::fetch(hub, &shelf.file, force).await?;
                }
            }
            shelf.tidy()?;
        }
        Command::Restore(args) => restore::run(&args, connect).await?,
        Command::Fsck { of } => match of.place(connect).await? {
            Place::Here(hub) => return check(&hub).await,
            Place::Cluster { target, namespace } => {
                run_in_pod("check the database", &target, &namespace, &["fsck"]).await?;
            }
        },
        Command::Keys(command) => keys::run(command, connect).await?,
        Command::Kubeconfig { data_dir } => {
            refuse_context(connect)?;
            let path = data_dir.join("admin.kubeconfig");
            let text = std::fs::read_to_string(&path).map_err(|error| Failure::file("read", &path, &error))?;
            print(&text)?;
        }
        Command::CopyStore {
            from,
            from_password_file,
            to,
            to_password_file,
            force,
        } => {
            refuse_context(connect)?;
            let at = |url, file: Option<PathBuf>| locate(url, file.as_deref()).map_err(|error| unusable(&error));
            let (from, to) = (at(from, from_password_file)?, at(to, to_password_file)?);
            let copied = archive::copy_store(&from, &to, force).await;
            print(&described(
                &copied.map_err(|error| failed("copy the database", &error))?,
            ))?;
            say(&format!("copied {from} to {to}"));
        }
    }
    Ok(exit::YES)
}

/// Runs the same command in the hub's pod, on its data.
async fn run_in_pod(attempt: &str, target: &Target, namespace: &str, words: &[&str]) -> Result<()> {
    let hub = InstalledHub { target, namespace };
    target.require(hub.rights_to_enter()).await?;
    hub.find().await?;
    let command = [&["farwater", "admin"], words, &["--data-dir", names::DATA]].concat();
    hub.run(attempt, &command, u64::MAX, &mut std::io::stdout()).await
}

fn refuse_context(connect: &ConnectArgs) -> Result<()> {
    match &connect.context {
        Some(_) => Err(Failure::usage(
            "this command works on this machine alone: it takes no --context",
        )),
        None => Ok(()),
    }
}

async fn check(of: &LocalHub) -> Result<u8> {
    let report = fsck::fsck(&of.location, &of.seal_key().await?)
        .await
        .map_err(|error| opening("check the database", &error))?;
    for finding in &report.findings {
        let word = if finding.severity == fsck::Severity::Damage {
            "damage"
        } else {
            "leftover"
        };
        print(&format!("{word}  {}\n", text::plain(&finding.to_string())))?;
    }
    if report.more > 0 {
        print(&format!("and {} more\n", report.more))?;
    }
    say(&format!(
        "checked {} resources and {} changes",
        report.resources, report.changes
    ));
    Ok(if report.is_damaged { exit::NO } else { exit::YES })
}

fn described(copied: &Copied) -> String {
    copied
        .rows
        .iter()
        .map(|(table, rows)| format!("{table} {rows}\n"))
        .collect()
}
