//! A witness that continuously checks whether services that the hub reports as synced really are.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::Result;
use farwater_api::ServiceDeployment;
use kube::{Api, Client};
use tokio::task::AbortHandle;

use super::{SERVICE, values};
use crate::{Fleet, condition};

/// Pause between two checks.
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of recorded faults. One is too many, and the first ones are enough.
const MAX_LIES: usize = 10;

/// Ends when dropped.
pub struct Witness {
    account: Arc<Mutex<Account>>,
    task: AbortHandle,
}

#[derive(Default)]
struct Account {
    /// Commits and the values of their objects, the oldest first.
    commits: Vec<(String, String)>,
    looks: u64,
    lies: Vec<String>,
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Witness {
    /// `client`: of the cluster, without the faults.
    pub fn start(fleet: &Fleet, client: Client, objects: usize) -> Self {
        let account = Arc::new(Mutex::new(Account::default()));
        let (services, namespace) = (fleet.api(), fleet.namespace(SERVICE));
        let kept = Arc::clone(&account);
        let task = tokio::spawn(async move {
            loop {
                // Retry later if the hub or the cluster can't be reached now.
                let _ = look(&services, &client, &namespace, objects, &account).await;
                tokio::time::sleep(PAUSE).await;
            }
        });
        Self {
            account: kept,
            task: task.abort_handle(),
        }
    }

    /// Adds a commit whose objects all have this value.
    pub fn expect(&self, commit: &str, value: &str) {
        lock(&self.account).commits.push((commit.to_owned(), value.to_owned()));
    }

    /// Number of reports as synced, and the wrong ones.
    pub fn testify(&self) -> (u64, Vec<String>) {
        let account = lock(&self.account);
        (account.looks, account.lies.clone())
    }
}

/// Reads the report first. Objects only get newer, so an object that is older than the report was older when the report
/// was made.
async fn look(
    services: &Api<ServiceDeployment>,
    client: &Client,
    namespace: &str,
    objects: usize,
    account: &Mutex<Account>,
) -> Result<()> {
    let status = services.get(SERVICE).await?.status.unwrap_or_default();
    let Some(revision) = status
        .applied_revision
        .filter(|_| condition(&status.conditions, "Ready") == Some("True"))
    else {
        return Ok(());
    };
    let since: Vec<String> = {
        let account = lock(account);
        let since = account
            .commits
            .iter()
            .skip_while(|(commit, _)| !revision.ends_with(commit.as_str()));
        since.map(|(_, value)| value.clone()).collect()
    };
    if since.is_empty() {
        return Ok(());
    }
    let found = values(client, namespace).await?;
    let current = found.values().filter(|value| since.contains(value)).count();
    let mut account = lock(account);
    account.looks += 1;
    if current != objects && account.lies.len() < MAX_LIES {
        let lie = format!(
            "synced at {} with {current} of {objects} objects, {} there",
            since[0],
            found.len()
        );
        account.lies.push(lie);
    }
    Ok(())
}

fn lock(account: &Mutex<Account>) -> MutexGuard<'_, Account> {
    account.lock().unwrap_or_else(PoisonError::into_inner)
}
