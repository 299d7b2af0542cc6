//! `farwater admin`: a hub's store, without a hub: backup, restore, check, copy.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use farwater_hub::{
    config::{DatabaseError, DatabaseUrl, locate},
    identity::read_seal_key,
};
use farwater_store::{
    Location, OpenError, StoreError,
    archive::{self, ArchiveError, Copied},
    fsck,
};

use crate::{
    exit,
    failure::{Failure, Result, chain},
    terminal::{print, say},
    text,
};

#[derive(Debug, clap::Args)]
pub struct AdminArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Writes everything in a hub's database into one file; the hub may run. Keep it with the folder keys/.
    Backup {
        #[command(flatten)]
        of: StoreArgs,
        /// The file to write.
        file: PathBuf,
        /// Replace a file that is there.
        #[arg(long)]
        force: bool,
    },
    /// Puts a backup in the place of a hub's database; the hub must be stopped. Watchers list again, and agents delete
    /// nothing until each Cluster is confirmed.
    Restore {
        #[command(flatten)]
        to: StoreArgs,
        /// The backup.
        file: PathBuf,
        /// Replace a database that is there.
        #[arg(long)]
        force: bool,
    },
    /// Checks that every row is what a hub writes; the hub may run. Changes nothing.
    Fsck {
        #[command(flatten)]
        of: StoreArgs,
    },
    /// Copies a database to another place, from SQLite to PostgreSQL or back; the hub must be stopped.
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
        /// Replace a database that is there.
        #[arg(long)]
        force: bool,
    },
}

/// Which hub's store: the same options as the hub's own.
#[derive(Debug, clap::Args)]
struct StoreArgs {
    /// The hub's data directory.
    #[arg(long, value_name = "DIR", env = "FARWATER_DATA_DIR")]
    data_dir: PathBuf,
    /// The hub's PostgreSQL database, if it uses one.
    #[arg(long, value_name = "URL", env = "FARWATER_DATABASE", hide_env_values = true)]
    database: Option<DatabaseUrl>,
    /// File that holds the database's password.
    #[arg(long, value_name = "FILE", env = "FARWATER_DATABASE_PASSWORD_FILE")]
    database_password_file: Option<PathBuf>,
}

impl StoreArgs {
    fn location(&self) -> Result<Location> {
        let url = self.database.clone();
        farwater_hub::config::store_location(&self.data_dir, url, self.database_password_file.as_deref())
            .map_err(|error| unusable(&error))
    }

    fn seal_key(&self) -> Result<[u8; 32]> {
        let key = read_seal_key(&self.data_dir).map_err(|error| {
            Failure::usage("can't read the hub's seal key")
                .evidence(chain(&error))
                .next("restore the folder keys/ first")
        })?;
        Ok(*key.bytes())
    }
}

pub async fn run(args: AdminArgs) -> Result<u8> {
    match args.command {
        Command::Backup { of, file, force } => {
            let copied = archive::backup(&of.location()?, &file, force).await;
            let copied = copied.map_err(|error| failed("make the backup", &error))?;
            print(&described(&copied))?;
            say(&format!("wrote {}; keep it with {}", file.display(), of.data_dir.join("keys").display()));
        }
        Command::Restore { to, file, force } => restore(&to, &file, force).await?,
        Command::Fsck { of } => return check(&of).await,
        Command::CopyStore { from, from_password_file, to, to_password_file, force } => {
            let at = |url, file: Option<PathBuf>| locate(url, file.as_deref()).map_err(|error| unusable(&error));
            let (from, to) = (at(from, from_password_file)?, at(to, to_password_file)?);
            let copied = archive::copy_store(&from, &to, force).await;
            print(&described(&copied.map_err(|error| failed("copy the database", &error))?))?;
            say(&format!("copied {from} to {to}"));
        }
    }
    Ok(exit::YES)
}

async fn restore(to: &StoreArgs, file: &Path, force: bool) -> Result<()> {
    let restored = archive::restore(file, &to.location()?, &to.seal_key()?, force).await;
    let restored = restored.map_err(|error| failed("restore the backup", &error))?;
    print(&format!("{}epoch {}\nversion {}\n", described(&restored.copied), restored.epoch, restored.counter))?;
    say(&format!(
        "start the hub. Nothing is deleted in a cluster until its Cluster is annotated {}={}",
        farwater_api::CONFIRM_RESTORED,
        restored.epoch
    ));
    Ok(())
}

async fn check(of: &StoreArgs) -> Result<u8> {
    let report =
        fsck::fsck(&of.location()?, &of.seal_key()?).await.map_err(|error| opening("check the database", &error))?;
    for finding in &report.findings {
        let word = if finding.severity == fsck::Severity::Damage { "damage" } else { "leftover" };
        print(&format!("{word}  {}\n", text::plain(&finding.to_string())))?;
    }
    if report.more > 0 {
        print(&format!("and {} more\n", report.more))?;
    }
    say(&format!("looked at {} resources and {} changes", report.resources, report.changes));
    Ok(if report.is_damaged { exit::NO } else { exit::YES })
}

fn described(copied: &Copied) -> String {
    copied.rows.iter().map(|(table, rows)| format!("{table} {rows}\n")).collect()
}

fn unusable(error: &DatabaseError) -> Failure {
    Failure::usage(chain(error))
}

fn failed(attempt: &str, error: &ArchiveError) -> Failure {
    match error {
        ArchiveError::Open(error) => opening(attempt, error),
        ArchiveError::Store(error) => storing(attempt, error),
        ArchiveError::Occupied { .. } => {
            Failure::new(exit::CONFLICT, format!("can't {attempt}")).evidence(chain(error)).next("--force replaces it")
        }
        error => Failure::usage(format!("can't {attempt}")).evidence(chain(error)),
    }
}

fn opening(attempt: &str, error: &OpenError) -> Failure {
    match error {
        OpenError::Store(error) => storing(attempt, error),
        OpenError::Locked { .. } => {
            Failure::new(exit::CONFLICT, format!("can't {attempt}")).evidence(chain(error)).next("stop the hub first")
        }
        error => Failure::usage(format!("can't {attempt}")).evidence(chain(error)),
    }
}

fn storing(attempt: &str, error: &StoreError) -> Failure {
    let code = if error.retry() { exit::UNREACHABLE } else { exit::NO };
    Failure::new(code, format!("can't {attempt}")).evidence(chain(error))
}
