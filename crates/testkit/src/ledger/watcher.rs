//! Events that a watcher of the load sees, and their checks.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::atomic::Ordering,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt as _,
    api::{WatchEvent, WatchParams},
};

use super::{Ledger, Shared, value_of};

/// Values of existing objects by name.
pub(super) type Picture = BTreeMap<String, String>;

/// An event, as a watcher saw it.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    version: u64,
    event: Event,
    name: String,
    value: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Added,
    Modified,
    Deleted,
}

pub(super) struct Watcher {
    pub api: Api<ConfigMap>,
    /// The newest version in an event.
    pub version: u64,
    pub seen: Vec<Seen>,
    pub faults: Vec<String>,
}

impl Watcher {
    pub async fn run(&mut self, state: &Shared) {
        loop {
            let end = state.end.load(Ordering::Relaxed);
            if end > 0 && self.version >= end {
                return;
            }
            let parameters = WatchParams::default().timeout(5);
            let Ok(stream) = self.api.watch(&parameters, &self.version.to_string()).await else {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            let mut stream = std::pin::pin!(stream);
            while let Ok(Some(Ok(event))) = tokio::time::timeout(Duration::from_secs(6), stream.next()).await {
                if let Err(fault) = self.note(event) {
                    self.faults.push(fault.to_string());
                    return;
                }
                let end = state.end.load(Ordering::Relaxed);
                if end > 0 && self.version >= end {
                    return;
                }
            }
        }
    }

    fn note(&mut self, event: WatchEvent<ConfigMap>) -> Result<()> {
        let (object, event) = match event {
            WatchEvent::Added(object) => (object, Event::Added),
            WatchEvent::Modified(object) => (object, Event::Modified),
            WatchEvent::Deleted(object) => (object, Event::Deleted),
            WatchEvent::Bookmark(bookmark) => {
                let version: u64 = bookmark.metadata.resource_version.parse()?;
                ensure!(
                    version >= self.version,
                    "a bookmark went back from {} to {version}",
                    self.version
                );
                self.version = version;
                return Ok(());
            }
            WatchEvent::Error(status) => bail!("the watch from {} ended with {status}", self.version),
        };
        let version: u64 = object
            .resource_version()
            .context("an event has a resourceVersion")?
            .parse()?;
        ensure!(
            version > self.version,
            "version {version} of {} came after {}",
            object.name_any(),
            self.version
        );
        self.version = version;
        self.seen.push(Seen {
            version,
            event,
            name: object.name_any(),
            value: value_of(&object),
        });
        Ok(())
    }
}

/// Maximum number of faults per watcher. More would say nothing new.
const FAULTS: usize = 20;

/// Faults of a watcher: events that can't follow each other from the first picture on, acknowledged changes that are
/// missing or have the wrong type, and a last picture that differs from the actual objects.
pub(super) fn compare(ledger: &Ledger, first: &Picture, seen: &[Seen], last: &Picture) -> Vec<String> {
    let (picture, mut faults) = replay(first, seen);
    let shown: HashMap<u64, &Seen> = seen.iter().map(|seen| (seen.version, seen)).collect();
    for (version, (name, value)) in &ledger.written {
        let found = shown.get(version);
        if !found.is_some_and(|seen| seen.event != Event::Deleted && seen.name == *name && seen.value == *value) {
            faults.push(format!("{name}={value} at {version} was shown as {found:?}"));
        }
    }
    let deletions = seen.iter().filter(|seen| seen.event == Event::Deleted);
    let deletions: HashSet<(&str, &str)> = deletions.map(|seen| (&*seen.name, &*seen.value)).collect();
    for (name, value) in &ledger.deleted {
        if !deletions.contains(&(&**name, &**value)) {
            faults.push(format!("the delete of {name}={value} was not shown"));
        }
    }
    for name in picture.keys().chain(last.keys()).collect::<BTreeSet<_>>() {
        let (replayed, there) = (picture.get(name), last.get(name));
        if replayed != there {
            faults.push(format!("at the end {name} is {there:?}, and was shown as {replayed:?}"));
        }
    }
    faults.truncate(FAULTS);
    faults
}

/// The picture of a client that follows the events, and each event that makes no sense to it.
fn replay(first: &Picture, seen: &[Seen]) -> (Picture, Vec<String>) {
    let (mut picture, mut faults) = (first.clone(), Vec::new());
    for Seen {
        version,
        event,
        name,
        value,
    } in seen
    {
        let before = match event {
            Event::Deleted => picture.remove(name),
            Event::Added | Event::Modified => picture.insert(name.clone(), value.clone()),
        };
        let fits = match event {
            Event::Added => before.is_none(),
            Event::Modified => before.is_some(),
            Event::Deleted => before.as_ref() == Some(value),
        };
        if !fits {
            faults.push(format!(
                "{event:?} {name}={value} at {version} came when it was {before:?}"
            ));
        }
    }
    (picture, faults)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(lines: &str) -> Vec<Seen> {
        let read = |line: &str| {
            let words: Vec<_> = line.split_whitespace().collect();
            let event = match words[1] {
                "ADDED" => Event::Added,
                "MODIFIED" => Event::Modified,
                _ => Event::Deleted,
            };
            let (name, value) = words[2].split_once('=').unwrap();
            Seen {
                version: words[0].parse().unwrap(),
                event,
                name: name.into(),
                value: value.into(),
            }
        };
        lines
            .split(',')
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .map(read)
            .collect()
    }

    fn picture(text: &str) -> Picture {
        let pairs = text.split_whitespace().map(|pair| pair.split_once('=').unwrap());
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// The ledger is always the same: a was created at 5 and changed at 7, b was created at 6 and deleted.
    #[track_caller]
    fn check(lines: &str, last: &str, expected: &[&str]) {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let ledger = Ledger {
            written: [(5, pair("a", "1")), (6, pair("b", "1")), (7, pair("a", "2"))].into(),
            deleted: [pair("b", "1")].into(),
        };
        assert_eq!(
            compare(&ledger, &picture("old=0"), &seen(lines), &picture(last)),
            expected,
            "{lines}"
        );
    }

    const ALL: &str = "5 ADDED a=1, 6 ADDED b=1, 7 MODIFIED a=2, 8 DELETED b=1";

    #[test]
    fn a_watcher_that_saw_everything_has_no_fault() {
        check(ALL, "old=0 a=2", &[]);
    }

    #[test]
    fn a_write_that_no_watcher_saw_is_a_gap() {
        check(
            "5 ADDED a=1, 6 ADDED b=1, 8 DELETED b=1",
            "old=0 a=2",
            &[
                "a=2 at 7 was shown as None",
                "at the end a is Some(\"2\"), and was shown as Some(\"1\")",
            ],
        );
        let other = ALL.replace("7 MODIFIED a=2", "7 MODIFIED a=9");
        let shown = "Some(Seen { version: 7, event: Modified, name: \"a\", value: \"9\" })";
        check(&other, "old=0 a=9", &[&format!("a=2 at 7 was shown as {shown}")]);
    }

    #[test]
    fn a_delete_that_no_watcher_saw_is_a_gap() {
        check(
            "5 ADDED a=1, 6 ADDED b=1, 7 MODIFIED a=2",
            "old=0 a=2",
            &[
                "the delete of b=1 was not shown",
                "at the end b is None, and was shown as Some(\"1\")",
            ],
        );
        // An event in the middle is missing, and the name was created again, so the last pictures are equal.
        check(
            "5 ADDED a=1, 6 ADDED b=1, 7 MODIFIED a=2, 9 ADDED b=3",
            "old=0 a=2 b=3",
            &[
                "Added b=3 at 9 came when it was Some(\"1\")",
                "the delete of b=1 was not shown",
            ],
        );
    }

    #[test]
    fn an_event_must_fit_what_was_shown_before() {
        let faults = |lines: &str| replay(&picture("old=0"), &seen(lines)).1;
        assert_eq!(faults("5 MODIFIED a=1"), ["Modified a=1 at 5 came when it was None"]);
        assert_eq!(faults("5 DELETED a=1"), ["Deleted a=1 at 5 came when it was None"]);
        assert_eq!(
            faults("5 ADDED old=1"),
            ["Added old=1 at 5 came when it was Some(\"0\")"]
        );
        assert_eq!(
            faults("5 DELETED old=1"),
            ["Deleted old=1 at 5 came when it was Some(\"0\")"]
        );
        assert_eq!(faults("5 MODIFIED old=1, 6 DELETED old=1, 7 ADDED old=2"), [""; 0]);
    }

    #[test]
    fn what_is_there_and_was_never_shown_is_a_fault() {
        check(
            ALL,
            "old=0 a=2 c=1",
            &["at the end c is Some(\"1\"), and was shown as None"],
        );
    }
}
