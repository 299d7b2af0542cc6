//! `farwater admin keys`: the keys that agents trust, and their rotation.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use farwater_fleet::words::{counted, verb};
use farwater_hub::{
    delivery::keys::read_position,
    identity::{
        Change, IdentityError, KeyList, KeyRow, Request, Standing, pins_of_file, request_change, request_seal_key,
    },
};
use farwater_store::{
    delivery::{ClusterKeys, read_cluster_keys},
    read_data_keys,
};
use jiff::Timestamp;
use serde::Serialize;

use super::{HubArgs, LocalHub, Place, failures::opening, run_in_pod};
use crate::{
    connection::ConnectArgs,
    exit,
    failure::{Failure, Result, chain},
    format::{self, Answer},
    table::{Column, Table},
    terminal::{Terminal, print, say},
};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Shows the keys with age and expiry, and the clusters that use them. The hub may run.
    List {
        #[command(flatten)]
        of: HubArgs,
        /// Output format.
        #[arg(short, long, value_enum, default_value_t)]
        output: Answer,
    },
    /// Rotates a key: the hub makes the new one at its next start, a seal key at once. Agents switch to it by
    /// themselves. Repeating the command makes no second key.
    Rotate {
        key: Key,
        #[command(flatten)]
        of: HubArgs,
    },
    /// Announces authorities to agents that will issue the hub's mounted certificate (--tls-cert), from the hub's next
    /// start on.
    Announce {
        /// PEM of the certificates of the authorities.
        file: PathBuf,
        #[command(flatten)]
        of: HubArgs,
    },
    /// Retires all keys but the current ones at the hub's next start. Clusters whose agents still use an older key must
    /// join again.
    Revoke {
        #[command(flatten)]
        of: HubArgs,
        /// Retire even if clusters must join again.
        #[arg(long)]
        force: bool,
    },
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum Key {
    /// The certificate authority.
    Ca,
    /// The key that signs desired states.
    #[value(name = "signing-key")]
    Signing,
    /// The key that seals Secrets in the database.
    #[value(name = "seal-key")]
    Seal,
}

impl Key {
    fn word(self) -> &'static str {
        match self {
            Self::Ca => "ca",
            Self::Signing => "signing-key",
            Self::Seal => "seal-key",
        }
    }
}

impl Command {
    fn of(&self) -> &HubArgs {
        match self {
            Self::List { of, .. } | Self::Rotate { of, .. } | Self::Announce { of, .. } | Self::Revoke { of, .. } => of,
        }
    }

    /// The subcommand as it is run in the hub's pod.
    fn words(&self) -> Result<Vec<&'static str>> {
        Ok(match self {
            Self::List {
                output: Answer::Text, ..
            } => vec!["keys", "list"],
            Self::List {
                output: Answer::Json, ..
            } => vec!["keys", "list", "-o", "json"],
            Self::List {
                output: Answer::Yaml, ..
            } => vec!["keys", "list", "-o", "yaml"],
            Self::Rotate { key, .. } => vec!["keys", "rotate", key.word()],
            Self::Revoke { force: false, .. } => vec!["keys", "revoke"],
            Self::Revoke { force: true, .. } => vec!["keys", "revoke", "--force"],
            Self::Announce { .. } => {
                return Err(Failure::usage("a hub in a cluster can't read a file that lies here")
                    .next("run it in the hub's pod, with a file that is mounted there"));
            }
        })
    }
}

pub(super) async fn run(command: Command, connect: &ConnectArgs) -> Result<()> {
    match command.of().place(connect).await? {
        Place::Here(hub) => run_here(command, &hub).await,
        Place::Cluster { target, namespace } => {
            run_in_pod("read or change the hub's keys", &target, &namespace, &command.words()?).await
        }
    }
}

async fn run_here(command: Command, hub: &LocalHub) -> Result<()> {
    match command {
        Command::List { output, .. } => list(hub, output).await?,
        Command::Rotate { key: Key::Ca, .. } => announce_request(&request(&hub.data_dir, Change::Authority)?),
        Command::Rotate { key: Key::Signing, .. } => announce_request(&request(&hub.data_dir, Change::SigningKey)?),
        Command::Rotate { key: Key::Seal, .. } => {
            let current = request_seal_key(&hub.data_dir).map_err(|error| unreadable(&error))?;
            say(&format!(
                "the hub replaces seal key {} within seconds, or at its next start, and then seals its Secrets again; `admin \
                 keys list` shows the progress. Back up keys/ afterwards",
                current.id()
            ));
        }
        Command::Announce { file, .. } => {
            let pins = pins_of_file(&file).map_err(|error| Failure::usage(chain(&error)))?;
            announce_request(&request(&hub.data_dir, Change::Announce(pins))?);
        }
        Command::Revoke { force, .. } => revoke(hub, force).await?,
    }
    Ok(())
}

fn request(data_dir: &Path, change: Change) -> Result<Request> {
    request_change(data_dir, change).map_err(|error| match error {
        IdentityError::Refused(_) => Failure::new(exit::CONFLICT, chain(&error)),
        error => unreadable(&error),
    })
}

fn unreadable(error: &IdentityError) -> Failure {
    Failure::usage("can't read the hub's keys").evidence(chain(error))
}

fn announce_request(request: &Request) {
    say(&format!("at its next start the hub {}: restart it", describe(request)));
}

fn describe(request: &Request) -> String {
    let mut parts = Vec::new();
    if request.signing_key {
        parts.push("makes a new signing key".to_owned());
    }
    if request.authority {
        parts.push("makes a new authority, which issues the server's certificate".to_owned());
    }
    if !request.announced.is_empty() {
        parts.push(format!(
            "announces {} more {} to agents",
            request.announced.len(),
            verb(&request.announced.len(), "authority", "authorities")
        ));
    }
    if request.revoke {
        parts.push("retires all older keys".to_owned());
    }
    parts.join(", ")
}

/// The key state of one cluster's agent.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ClusterRow {
    namespace: String,
    name: String,
    state: &'static str,
    succession: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_keys_since: Option<Timestamp>,
}

impl ClusterRow {
    fn new(keys: &KeyList, row: ClusterKeys) -> Self {
        let state = match keys.standing(&read_position(row.sequence, &row.link)) {
            Standing::Current => "current",
            Standing::Behind => "behind",
            Standing::Revoked => "must join again",
            Standing::Foreign => "has newer keys than this hub",
        };
        let agent_keys_since = Timestamp::from_second(row.since).ok();
        Self {
            namespace: row.namespace,
            name: row.name,
            state,
            succession: row.sequence,
            agent_keys_since,
        }
    }
}

/// A data key, which seals Secrets and is sealed by the seal key.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DataKey {
    number: i16,
    state: &'static str,
    /// Number of rows sealed with it. It decreases after a rotation, until the key is deleted.
    rows: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Timestamp>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    succession: u64,
    keys: Vec<KeyRow>,
    data_keys: Vec<DataKey>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requested: Option<Request>,
    clusters: Vec<ClusterRow>,
}

async fn read(of: &LocalHub) -> Result<Listed> {
    let keys = KeyList::read(&of.data_dir).map_err(|error| unreadable(&error))?;
    let clusters = read_cluster_keys(&of.location)
        .await
        .map_err(|error| opening("read the database", &error))?;
    let clusters = clusters.into_iter().map(|row| ClusterRow::new(&keys, row)).collect();
    let data_keys = read_data_keys(&of.location)
        .await
        .map_err(|error| opening("read the database", &error))?;
    let data_keys = data_keys.into_iter().rev().map(|key| DataKey {
        number: key.number,
        state: if key.is_in_use { "in use" } else { "replaced" },
        rows: key.rows,
        since: Timestamp::from_second(key.created).ok().filter(|_| key.created > 0),
    });
    let data_keys = data_keys.collect();
    Ok(Listed {
        succession: keys.sequence,
        keys: keys.rows,
        data_keys,
        requested: keys.requested,
        clusters,
    })
}

async fn list(of: &LocalHub, output: Answer) -> Result<()> {
    let listed = read(of).await?;
    match output {
        Answer::Json => return print(&format::json(&listed)?),
        Answer::Yaml => return print(&format::yaml(&listed)?),
        Answer::Text => {}
    }

    let (now, terminal) = (Timestamp::now(), Terminal::detect());
    let mut keys = Table::new(["kind", "id", "state", "age", "ends"].map(Column::fixed).to_vec());
    for row in &listed.keys {
        let ends = row.ends.map_or_else(String::new, date);
        keys.push([
            row.kind.to_owned(),
            row.id.clone(),
            row.state.to_owned(),
            age(row.since, now),
            ends,
        ]);
    }
    for key in &listed.data_keys {
        let rows = format!("{}, {}", key.state, counted(key.rows, "row"));
        keys.push([
            "data-key".to_owned(),
            key.number.to_string(),
            rows,
            age(key.since, now),
            String::new(),
        ]);
    }
    print(&keys.render(terminal))?;
    if !listed.clusters.is_empty() {
        let mut clusters = Table::new(["cluster", "hub's keys", "own keys' age"].map(Column::fixed).to_vec());
        for row in &listed.clusters {
            let name = format!("{}/{}", row.namespace, row.name);
            clusters.push([name, row.state.to_owned(), age(row.agent_keys_since, now)]);
        }
        print("\n")?;
        print(&clusters.render(terminal))?;
    }
    if let Some(request) = &listed.requested {
        announce_request(request);
    }
    Ok(())
}

fn date(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d").to_string()
}

/// An age in days, because keys live for months.
fn age(since: Option<Timestamp>, now: Timestamp) -> String {
    since.map_or_else(String::new, |since| match now.duration_since(since).as_hours().max(0) {
        hours @ 0..48 => format!("{hours}h"),
        hours => format!("{}d", hours / 24),
    })
}

async fn revoke(of: &LocalHub, force: bool) -> Result<()> {
    let listed = read(of).await?;
    let behind: Vec<_> = listed.clusters.iter().filter(|row| row.state != "current").collect();
    let names: Vec<_> = behind
        .iter()
        .map(|row| format!("{}/{}", row.namespace, row.name))
        .collect();
    if !names.is_empty() && !force {
        let count = names.len();
        return Err(Failure::new(
            exit::CONFLICT,
            format!(
                "{} {} use the current keys yet and would be locked out",
                counted(count, "cluster"),
                verb(&count, "does not", "do not")
            ),
        )
        .evidence(names.join(", "))
        .next("wait for their agents, or use --force and join them again: {program} cluster join NAME"));
    }
    if listed
        .requested
        .as_ref()
        .is_some_and(|request| request.signing_key || request.authority)
    {
        return Err(
            Failure::new(exit::CONFLICT, "new keys are requested, and no agent uses them yet")
                .next("restart the hub first, and revoke once all clusters are current"),
        );
    }
    announce_request(&request(&of.data_dir, Change::Revoke)?);
    if !names.is_empty() {
        say(&format!("these must join again: {}", names.join(", ")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_hours_then_days() {
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        let check = |since: &str, expected: &str| assert_eq!(age(Some(since.parse().unwrap()), now), expected);
        check("2026-11-21T11:30:00Z", "0h");
        check("2026-11-19T13:00:00Z", "47h");
        check("2026-11-19T12:00:00Z", "2d");
        check("2026-11-22T12:00:00Z", "0h");
        assert_eq!(age(None, now), "");
    }
}
