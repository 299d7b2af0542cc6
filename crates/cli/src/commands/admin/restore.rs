//! `farwater admin restore`: into a data directory.

use std::path::{Path, PathBuf};

use farwater_hub::{
    DataDir,
    identity::{RestoredKeys, StagedKeys, read_seal_key_file as read_key},
};
use farwater_store::{
    archive::{self, Allow, Enclosed},
    fsck,
};

use super::{
    HubArgs, LocalHub, Place,
    backup::{Spooled, is_stream},
    described,
    failures::{failed, keys, locking, opening},
    restore_in_cluster::{self, Wanted},
};
use crate::{
    connection::ConnectArgs,
    exit,
    failure::{Failure, Result, chain},
    installed_hub::InstalledHub,
    terminal::{print, say},
};

const ATTEMPT: &str = "restore the backup";

#[derive(Debug, clap::Args)]
pub struct RestoreArgs {
    #[command(flatten)]
    to: HubArgs,
    /// The backup; `-` is standard input.
    file: PathBuf,
    /// Replace an existing database.
    #[arg(long)]
    force: bool,
    /// Restore damaged rows as they are.
    #[arg(long)]
    accept_damage: bool,
    /// Restore only the keys, for example if the PostgreSQL database still exists.
    #[arg(long)]
    keys_only: bool,
    /// The seal.key of the backup's Secrets, if it was rotated since and the backup has no keys.
    #[arg(long, value_name = "FILE")]
    seal_key: Option<PathBuf>,
    /// With --context: do not ask for confirmation.
    #[arg(short, long)]
    yes: bool,
    /// With --context: time limit of each step, in seconds [default: 1800].
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Number of bytes on standard input.
    #[arg(long, value_name = "BYTES", hide = true)]
    size: Option<u64>,
}

pub async fn run(args: &RestoreArgs, connect: &ConnectArgs) -> Result<()> {
    match args.to.place(connect).await? {
        Place::Here(_) if args.yes || args.timeout.is_some() => Err(Failure::usage(
            "--yes and --timeout are of a hub in a cluster: they need --context",
        )),
        Place::Here(hub) => here(args, &hub).await,
        Place::Cluster { .. } if args.force || args.size.is_some() || args.seal_key.is_some() => Err(Failure::usage(
            "--force, --size and --seal-key are of a hub on this machine; with --context it is --yes, and backups hold their keys",
        )),
        Place::Cluster { target, namespace } => {
            let hub = InstalledHub {
                target: &target,
                namespace: &namespace,
            };
            let wanted = Wanted {
                keys_only: args.keys_only,
                accept_damage: args.accept_damage,
                is_agreed: args.yes,
                longest: args.timeout,
            };
            restore_in_cluster::run(hub, &args.file, wanted).await
        }
    }
}

async fn here(args: &RestoreArgs, hub: &LocalHub) -> Result<()> {
    let lock = || DataDir::open(&hub.data_dir).map_err(|error| locking(ATTEMPT, &error));
    if !is_stream(&args.file) {
        let enclosed = enclosed(&args.file)?;
        // Create nothing in a mistyped directory: keys must exist or be in the backup.
        let locked = if enclosed.is_empty() { None } else { Some(lock()?) };
        return put(args, hub, &args.file, &enclosed, locked.as_ref()).await;
    }
    if !hub.data_dir.is_dir() {
        return Err(Failure::usage(format!(
            "there is no directory {}",
            hub.data_dir.display()
        )));
    }
    let locked = lock()?;
    let spooled = Spooled::read(&hub.data_dir, args.size)?;
    put(args, hub, spooled.path(), &enclosed(spooled.path())?, Some(&locked)).await
}

fn enclosed(file: &Path) -> Result<Vec<Enclosed>> {
    archive::enclosed(file).map_err(|error| failed(ATTEMPT, &error))
}

async fn put(
    args: &RestoreArgs,
    hub: &LocalHub,
    file: &Path,
    enclosed: &[Enclosed],
    locked: Option<&DataDir>,
) -> Result<()> {
    // Verify the backup before any of its keys are written.
    archive::verify(file).map_err(|error| failed(ATTEMPT, &error))?;
    let staged = match locked {
        Some(data) if !enclosed.is_empty() => {
            Some(StagedKeys::stage(data, enclosed).map_err(|error| keys(ATTEMPT, &error))?)
        }
        _ => None,
    };
    if args.keys_only {
        let Some(staged) = staged else {
            return Err(Failure::usage(format!("{} holds no keys", file.display()))
                .evidence("a backup holds them if it was made --with-keys or with --context"));
        };
        return restore_keys(hub, staged).await;
    }

    let seal_key = match &staged {
        Some(staged) => *staged.seal_key().map_err(|error| keys(ATTEMPT, &error))?.bytes(),
        None => hub.seal_key().await?,
    };
    let earlier = list_earlier_keys(args.seal_key.as_deref(), staged.as_ref())?;
    let allow = Allow {
        replace: args.force,
        damage: args.accept_damage,
    };

    let restored = archive::restore_from(file, &hub.location, &seal_key, &earlier, allow).await;
    let restored = restored.map_err(|error| failed(ATTEMPT, &error))?;
    if let Some(staged) = staged {
        take_place(staged)?;
    }
    print(&format!(
        "{}epoch {}\nversion {}\n",
        described(&restored.copied),
        restored.epoch,
        restored.counter
    ))?;
    say(&format!(
        "start the hub. Nothing is deleted in a cluster until its Cluster is annotated {}={}",
        farwater_api::CONFIRM_RESTORED,
        restored.epoch
    ));
    Ok(())
}

/// Restores the keys alone, if they open the Secrets of the existing database.
async fn restore_keys(hub: &LocalHub, staged: StagedKeys) -> Result<()> {
    let seal_key = staged.seal_key().map_err(|error| keys(ATTEMPT, &error))?;
    let fits = fsck::check_key(&hub.location, seal_key.bytes()).await;
    fits.map_err(|error| opening("restore the keys", &error))?;
    take_place(staged)
}

/// Seal keys that the backup's Secrets may be sealed with, besides the hub's current one.
fn list_earlier_keys(given: Option<&Path>, staged: Option<&StagedKeys>) -> Result<Vec<[u8; 32]>> {
    let mut earlier: Vec<[u8; 32]> = given.map(read_seal_key_file).transpose()?.into_iter().collect();
    earlier.extend(
        staged
            .into_iter()
            .flat_map(StagedKeys::seal_keys_of_backup)
            .map(|key| *key.bytes()),
    );
    Ok(earlier)
}

fn read_seal_key_file(path: &Path) -> Result<[u8; 32]> {
    let key = read_key(path).map_err(|error| Failure::usage("can't read the seal key").evidence(chain(&error)))?;
    Ok(*key.bytes())
}

/// Moves the keys into place. The rows are already replaced, so after an error only a retry helps.
fn take_place(staged: StagedKeys) -> Result<()> {
    let taken = staged.take_place().map_err(|error| {
        let failure = keys("put the keys into their place", &error);
        Failure {
            code: exit::INTERNAL,
            ..failure
        }
        .next("the rows are restored already: run the same again")
    })?;
    match taken {
        RestoredKeys::Kept => say("the hub keeps its keys: they are of the same installation, and newer"),
        RestoredKeys::Completed(names) => say(&format!("the hub keeps its keys; brought back: {}", names.join(", "))),
        RestoredKeys::Replaced => say("the hub has the backup's keys; others that were there are in keys.replaced"),
    }
    Ok(())
}
