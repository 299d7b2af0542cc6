//! refresh_secrets: secrets of other backends than the hub → the services that use a key that has changed.
//!
//! The index of parameters says which secrets are in use, so a restarted hub continues to read them. Values are saved
//! in the transaction that marks the services: a hub that is killed before that reads and marks again.

use std::{collections::HashSet, sync::Arc, time::Duration};

use farwater_api::parameters::ChangedKeys;
use farwater_fleet::parameters::SecretName;
use farwater_secrets::{Changed, Reference};
use farwater_store::{
    StoreError,
    delivery::{mark_changed_keys, mark_parameters, secrets_of_backends, services_handed, troubled_by_backends},
};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::{
    errors::chain, external_secrets::ExternalSecrets, replica::Replica, resources::Name, secret_backends::reference,
};

const RETRY: Duration = Duration::from_secs(1);
/// Secrets per transaction, because other writers wait for it.
const AT_ONCE: usize = 50;

pub async fn run(replica: Arc<Replica>, shutdown: CancellationToken) {
    shutdown.run_until_cancelled(tell_refused(&replica)).await;
    let Some(secrets) = replica.secret_backends.external() else {
        return;
    };
    let work = async { tokio::join!(secrets.run(), follow(&replica, secrets)) };
    shutdown.run_until_cancelled(work).await;
}

/// The configuration may have changed since the last start. Marks the services whose secrets it does not allow, and
/// those whose secrets it may not have allowed before.
async fn tell_refused(replica: &Replica) {
    while let Err(error) = mark_refused(replica).await {
        tracing::warn!(error = %chain(&error), "find which secrets of backends are allowed now");
        sleep(RETRY).await;
    }
}

async fn mark_refused(replica: &Replica) -> Result<(), StoreError> {
    let mut refused = secrets_of_backends(&mut *replica.store.tables().await?).await?;
    refused.retain(|(kind, namespace, name)| {
        let Some((backend, reference)) = named(kind, namespace, name) else {
            return false;
        };
        let secrets = replica.secret_backends.external();
        secrets.is_none_or(|secrets| !secrets.allows(&backend, &reference))
    });
    let troubled = troubled_by_backends(&mut *replica.store.tables().await?).await?;
    if refused.is_empty() && troubled.is_empty() {
        return Ok(());
    }
    let mark = replica.store.transact(move |tx| {
        Box::pin(async move {
            for (kind, namespace, name) in &refused {
                mark_changed_keys(tx, kind, namespace, name, &ChangedKeys::Any).await?;
            }
            for (service, cluster) in &troubled {
                mark_parameters(tx, service, cluster).await?;
            }
            Ok(())
        })
    });
    mark.await?;
    replica.wake_after_mark();
    Ok(())
}

async fn follow(replica: &Replica, secrets: &ExternalSecrets) {
    let (mut changes, mut waiting, mut next) = (secrets.changes(), Vec::new(), Instant::now());
    loop {
        if next <= Instant::now() {
            let kept = keep_used(replica, secrets).await;
            next = Instant::now() + if kept.is_ok() { secrets.refresh() } else { RETRY };
            if let Err(error) = kept {
                tracing::warn!(error = %chain(&error), "find which secrets of backends are in use");
            }
        }

        waiting.extend(secrets.take_changed());
        while !waiting.is_empty() {
            let some: Vec<Changed> = waiting.iter().take(AT_ONCE).cloned().collect();
            let count = some.len();
            match save_changed(replica, some).await {
                Ok(()) => drop(waiting.drain(..count)),
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "mark the services that are handed what backends have changed");
                    sleep(RETRY).await;
                }
            }
        }

        tokio::select! {
            // The sender lives as long as `secrets`.
            _ = changes.changed() => {}
            () = sleep_until(next) => {}
        }
    }
}

/// Keeps reading the secrets that are in use, and forgets the rest.
async fn keep_used(replica: &Replica, secrets: &ExternalSecrets) -> Result<(), StoreError> {
    let all = secrets_of_backends(&mut *replica.store.tables().await?).await?;
    let mut used = HashSet::with_capacity(all.len());
    for (kind, namespace, name) in all {
        let Some((backend, reference)) = named(&kind, &namespace, &name) else {
            continue;
        };
        // If a secret is not read, its services report the reason.
        let _ = secrets.get(&backend, &reference).await;
        used.insert(reference.id(&backend));
    }
    secrets.retain(&used);
    let mut unused = replica.store.kept_ids().await?;
    unused.retain(|id| !used.contains(id) && !secrets.has(id));
    if unused.is_empty() {
        return Ok(());
    }
    let remove = replica.store.transact(move |tx| {
        Box::pin(async move {
            for id in unused {
                tx.remove_kept(&id).await?;
            }
            Ok(())
        })
    });
    remove.await
}

/// Saves what was read, and marks the services that use it.
async fn save_changed(replica: &Replica, changed: Vec<Changed>) -> Result<(), StoreError> {
    let told = replica.store.transact(move |tx| {
        Box::pin(async move {
            let mut told = Vec::new();
            for Changed {
                backend,
                reference,
                keys,
                is_age,
                kept,
            } in changed
            {
                if let Some(kept) = kept {
                    tx.save_kept(&reference.id(&backend), kept.read, &kept.values).await?;
                }
                let (kind, namespace, name) = place(&backend, &reference);
                let keys = keys.map_or(ChangedKeys::Any, |keys| ChangedKeys::Some(keys.into_iter().collect()));
                mark_changed_keys(tx, &kind, namespace, name, &keys).await?;
                if is_age {
                    told.extend(services_handed(tx, &kind, namespace, name).await?);
                }
            }
            Ok(told)
        })
    });
    // Conditions of these services say whether their values are stale.
    replica.wake_after_secrets(told.await?.into_iter().map(Name::from));
    replica.wake_after_mark();
    Ok(())
}

/// The backend and the secret of an index entry.
fn named(kind: &str, namespace: &str, name: &str) -> Option<(String, Reference)> {
    let SecretName { backend, name } = SecretName::of_index(kind, name)?;
    Some((backend?, reference(namespace, &name)))
}

/// The index entry of a secret's keys.
fn place<'a>(backend: &str, reference: &'a Reference) -> (String, &'a str, &'a str) {
    let secret = SecretName {
        backend: Some(backend.to_owned()),
        name: reference.path.clone(),
    };
    (secret.index_kind(), &reference.namespace, &reference.path)
}
