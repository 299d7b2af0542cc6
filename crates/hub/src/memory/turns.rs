//! Turns at hosts: a limit on concurrent requests to one host, so that a host that does not answer takes no places that
//! others need.
//!
//! A host has to answer once before several requests go to it at a time. So neither a dead host nor a thousand new
//! names of one hold more than a few places until their timeouts.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use farwater_sources::Address;

use crate::errors::SourceFailure;

/// Maximum concurrent requests to one host: hosts throttle, and a stuck one must not take all places.
const PER_HOST: usize = 8;
/// Maximum concurrent requests to all hosts that did not answer last time or were never asked.
const UNPROVEN: usize = 8;
/// Maximum number of remembered hosts, answering or silent; beyond it, all are forgotten.
const MAX_HOSTS: usize = 10_000;
/// When to requeue a source whose host is busy.
const HOST_BUSY: Duration = Duration::from_millis(250);
/// When to requeue a source whose host does not answer; many sources may wait for it.
const HOST_SILENT: Duration = Duration::from_secs(5);

/// The purpose of a request: a host that answers for repositories may hang on large files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Asks {
    Repository,
    LargeFiles,
}

/// Hosts with running requests, and hosts that did not answer. Lost at a restart, which only means that each is asked
/// by one request first.
#[derive(Default)]
pub struct Turns(Mutex<Hosts>);

#[derive(Default)]
struct Hosts {
    busy: HashMap<String, usize>,
    /// One request per repository, however many sources name it.
    repositories: HashSet<String>,
    answering: HashSet<(String, Asks)>,
    silent: HashSet<(String, Asks)>,
    /// Hosts that are not known to answer and are being asked.
    tried: HashSet<(String, Asks)>,
}

/// One running request to a host. Ends when dropped.
pub struct Turn<'a> {
    turns: &'a Turns,
    host: (String, Asks),
    repository: String,
    is_proven: bool,
}

impl Turns {
    /// Takes a turn at a repository if its host has one left; otherwise returns when to try again.
    pub fn enter(&self, url: &str, asks: Asks) -> Result<Turn<'_>, Duration> {
        let (name, repository) = names_of(url);
        let mut hosts = self.hosts();
        let host = (name, asks);
        let is_proven = hosts.answering.contains(&host);
        if !is_proven && (hosts.tried.contains(&host) || hosts.tried.len() >= UNPROVEN) {
            let is_new = hosts.tried.contains(&host) && !hosts.silent.contains(&host);
            return Err(if is_new { HOST_BUSY } else { HOST_SILENT });
        }
        let busy = hosts.busy.get(&host.0).copied().unwrap_or(0);
        if busy >= PER_HOST || hosts.repositories.contains(&repository) {
            return Err(HOST_BUSY);
        }
        *hosts.busy.entry(host.0.clone()).or_default() += 1;
        hosts.repositories.insert(repository.clone());
        if !is_proven {
            hosts.tried.insert(host.clone());
        }
        Ok(Turn {
            turns: self,
            host,
            repository,
            is_proven,
        })
    }

    /// The same for a caller that holds a place others need meanwhile: it does not wait for a silent host, and for a
    /// busy one only for `patience`.
    pub async fn wait_to_enter(&self, url: &str, asks: Asks, patience: Duration) -> Result<Turn<'_>, SourceFailure> {
        let given_up = tokio::time::Instant::now() + patience;
        loop {
            let wait = match self.enter(url, asks) {
                Ok(turn) => return Ok(turn),
                Err(wait) => wait,
            };
            if wait >= HOST_SILENT || tokio::time::Instant::now() + wait > given_up {
                let (host, _) = names_of(url);
                let message = format!("{host} does not answer in time; the hub will try again");
                return Err(SourceFailure::passing("Timeout", message));
            }
            tokio::time::sleep(wait).await;
        }
    }

    fn hosts(&self) -> MutexGuard<'_, Hosts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn<'_> {
    /// Notes whether the host answered. `failure`: reason of a condition. A host that can't be reached or fails itself
    /// proves nothing new.
    pub fn end(self, failure: Option<&str>) {
        let mut hosts = self.turns.hosts();
        let Hosts { answering, silent, .. } = &mut *hosts;
        let (to, from) = match failure {
            Some("Timeout") => (silent, answering),
            Some("Unreachable" | "HostNotFound" | "AnswerBrokenOff" | "ServerError") => return,
            _ => (answering, silent),
        };
        from.remove(&self.host);
        if to.len() >= MAX_HOSTS {
            to.clear();
        }
        to.insert(self.host.clone());
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut hosts = self.turns.hosts();
        hosts.repositories.remove(&self.repository);
        if !self.is_proven {
            hosts.tried.remove(&self.host);
        }
        if let Some(count) = hosts.busy.get_mut(&self.host.0) {
            *count -= 1;
            if *count == 0 {
                hosts.busy.remove(&self.host.0);
            }
        }
    }
}

/// Names of the host and of the repository. A text that is no address is refused later.
fn names_of(url: &str) -> (String, String) {
    match Address::parse_any(url) {
        Ok(address) => (format!("{}:{}", address.host(), address.port()), address.identity()),
        Err(_) => (url.to_owned(), url.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(host: &str, repository: usize) -> String {
        format!("https://{host}/{repository}")
    }

    fn answer(turns: &Turns, host: &str) {
        turns.enter(&url(host, 0), Asks::Repository).unwrap().end(None);
    }

    #[test]
    fn a_host_that_has_answered_is_asked_by_a_few_at_once() {
        let turns = Turns::default();
        let enter = |host: &str, n| turns.enter(&url(host, n), Asks::Repository);
        let first = enter("slow", 0).unwrap();
        assert_eq!(
            enter("slow", 1).err(),
            Some(HOST_BUSY),
            "its first answer is waited for"
        );
        first.end(Some("RepositoryNotFound"));
        let held: Vec<_> = (0..PER_HOST).map(|n| enter("slow", n).unwrap()).collect();
        assert_eq!(enter("slow", 100).err(), Some(HOST_BUSY));
        assert!(enter("other", 100).is_ok());
        drop(held);
        assert!(enter("slow", 100).is_ok());
    }

    #[test]
    fn a_repository_is_asked_by_one_at_a_time_however_many_sources_are_of_it() {
        let turns = Turns::default();
        turns.enter("https://h/a.git", Asks::Repository).unwrap().end(None);
        let turn = turns.enter("https://h/a.git", Asks::Repository).unwrap();
        for url in ["https://h/a", "https://H:443/a.git/"] {
            assert!(turns.enter(url, Asks::Repository).is_err(), "{url}");
        }
        drop(turn);
        assert!(turns.enter("https://h/a", Asks::Repository).is_ok());
    }

    #[test]
    fn hosts_that_do_not_answer_are_asked_by_one_and_take_few_places() {
        let turns = Turns::default();
        let enter = |host: &str, n| turns.enter(&url(host, n), Asks::Repository);
        answer(&turns, "well");
        let hosts: Vec<_> = (0..=UNPROVEN).map(|n| format!("silent-{n}")).collect();
        for host in &hosts {
            enter(host, 0).unwrap().end(Some("Timeout"));
        }
        let held: Vec<_> = hosts[..UNPROVEN].iter().map(|host| enter(host, 0).unwrap()).collect();
        assert_eq!(enter(&hosts[0], 1).err(), Some(HOST_SILENT), "one at a time");
        for more in [hosts[UNPROVEN].as_str(), "new"] {
            assert_eq!(
                enter(more, 0).err(),
                Some(HOST_SILENT),
                "{more}: the others' places are not theirs"
            );
        }
        assert!(enter("well", 0).is_ok());
        drop(held);
        enter(&hosts[0], 0).unwrap().end(Some("Unreachable"));
        let one = enter(&hosts[0], 0).unwrap();
        assert_eq!(
            enter(&hosts[0], 1).err(),
            Some(HOST_SILENT),
            "nobody knows that it answers"
        );
        one.end(None);
        let _one = enter(&hosts[0], 0).unwrap();
        assert!(enter(&hosts[0], 1).is_ok(), "it answered");
    }

    #[test]
    fn large_files_that_hang_say_nothing_of_the_repositories() {
        let turns = Turns::default();
        answer(&turns, "h");
        turns
            .enter(&url("h", 0), Asks::LargeFiles)
            .unwrap()
            .end(Some("Timeout"));
        let _held = turns.enter(&url("h", 0), Asks::LargeFiles).unwrap();
        assert!(
            turns.enter(&url("h", 0), Asks::Repository).is_err(),
            "of one repository one at a time all the same"
        );
        let _more: Vec<_> = (1..PER_HOST)
            .map(|n| turns.enter(&url("h", n), Asks::Repository).unwrap())
            .collect();
        assert!(turns.enter(&url("h", 100), Asks::Repository).is_err(), "all together");
    }

    #[tokio::test(start_paused = true)]
    async fn who_holds_a_place_waits_for_a_busy_host_and_for_no_silent_one() {
        let turns = Turns::default();
        let patience = Duration::from_secs(60);
        let held = turns.enter(&url("h", 0), Asks::Repository).unwrap();
        let begun = tokio::time::Instant::now();
        let (waited, ()) = tokio::join!(turns.wait_to_enter("https://h/1", Asks::Repository, patience), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            held.end(Some("Timeout"));
        });
        let failure = turns
            .wait_to_enter("https://h/2", Asks::Repository, patience)
            .await
            .err()
            .unwrap();
        assert!(
            begun.elapsed() < Duration::from_secs(2) && failure.message.contains("h:443"),
            "{failure:?}"
        );
        drop(waited.unwrap());
        answer(&turns, "h");
        let _busy = turns.enter(&url("h", 1), Asks::Repository).unwrap();
        let failure = turns
            .wait_to_enter("https://h/1", Asks::Repository, patience)
            .await
            .err()
            .unwrap();
        assert_eq!((failure.reason, failure.lasting), ("Timeout", false));
        assert!(begun.elapsed() > Duration::from_secs(59));
    }
}
