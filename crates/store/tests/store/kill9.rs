//! `kill -9` while writing. A child process writes, and prints what it tries and what was acknowledged. The parent
//! records that, kills the child, opens the file and compares.

use std::{
    collections::{BTreeMap, HashMap},
    env,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use farwater_store::{OpenOptions, Operation, Store, WatchError};
use rand::RngExt as _;
use serde_json::json;

use crate::setup::{Place, create, delete, key, next, object, replace};

const KILLS: usize = 5;
const WRITERS: usize = 32;
const NAMES: usize = 4;

/// Variable with the file that the child writes. Without it, the child's test does nothing.
const CHILD: &str = "FARWATER_STORE_KILL9_FILE";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_child_that_writes_until_it_is_killed() {
    let Ok(file) = env::var(CHILD) else { return };
    let store = Store::open(OpenOptions::new(std::path::PathBuf::from(file), [7; 32]))
        .await
        .unwrap();
    // libtest doesn't end its own line.
    println!();
    let mut watch = store.watch(None, store.position()).unwrap();
    tokio::spawn(async move {
        loop {
            println!("saw {}", next(&mut watch).await.version);
        }
    });
    let writers = (0..WRITERS).map(|writer| tokio::spawn(write_for_ever(store.clone(), writer)));
    futures::future::join_all(writers).await;
}

async fn write_for_ever(store: Store, writer: usize) {
    for serial in 0_u64.. {
        let name = format!("w{writer}-{}", rand::rng().random_range(0..NAMES));
        let value = format!("{}-{serial}", std::process::id());
        let current = store.get(&key(&name)).await.unwrap();
        let content = object(&key(&name), json!({"value": value}));
        match current {
            Some(current) if rand::rng().random_bool(0.3) => {
                println!("try {name} -");
                println!("ack {name} - {}", store.write(delete(&current)).await.unwrap().version);
            }
            current => {
                let write = match current {
                    Some(current) => replace(&current, content),
                    None => create(&key(&name), content),
                };
                println!("try {name} {value}");
                println!("ack {name} {value} {}", store.write(write).await.unwrap().version);
            }
        }
    }
}

/// The expected content of the file. A value of `None`: no object.
#[derive(Default)]
struct Ledger {
    acknowledged: HashMap<String, Option<String>>,
    /// Writes that got no answer. They may have happened or not.
    open: HashMap<String, Option<String>>,
    /// Writes that were acknowledged in this round, by version.
    log: BTreeMap<u64, (String, Option<String>)>,
    newest_seen: u64,
}

impl Ledger {
    fn read(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let value = |text: &str| (text != "-").then(|| text.to_owned());
        match words[..] {
            ["try", name, text] => drop(self.open.insert(name.to_owned(), value(text))),
            ["ack", name, text, version] => {
                self.open.remove(name);
                self.acknowledged.insert(name.to_owned(), value(text));
                self.log
                    .insert(version.parse().unwrap(), (name.to_owned(), value(text)));
            }
            ["saw", version] => self.newest_seen = version.parse().unwrap(),
            _ => {}
        }
    }
}

#[tokio::test]
async fn what_was_acknowledged_survives_kill_9() {
    let place = Place::file();
    let mut ledger = Ledger::default();
    let (mut position, mut under_way) = (0, 0);
    for _ in 0..KILLS {
        write_and_kill(&place.path(), &mut ledger);
        under_way += ledger.open.len();
        let store = place.open().await;
        position = compare(&store, &mut ledger, position).await;
        store.close().await;
    }
    assert!(under_way > 0, "no kill met a write that was under way");
}

/// Reads what the child prints, and kills it after a random number of acknowledgements.
fn write_and_kill(file: &Path, ledger: &mut Ledger) {
    let mut child = Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            "kill9::the_child_that_writes_until_it_is_killed",
            "--nocapture",
        ])
        .env(CHILD, file)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = child.stdout.take().unwrap();
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = String::new();
        // A line that the kill has cut off is ignored.
        while output.read_line(&mut line).is_ok() && line.ends_with('\n') {
            let _ = sender.send(std::mem::take(&mut line));
        }
    });
    let mut left = rand::rng().random_range(100..600);
    while left > 0 {
        let line = lines
            .recv_timeout(Duration::from_secs(30))
            .expect("the child wrote nothing for long");
        ledger.read(&line);
        left -= u32::from(line.starts_with("ack"));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    for line in lines {
        ledger.read(&line);
    }
}

/// Compares the opened file with the ledger, and returns the file's position.
async fn compare(store: &Store, ledger: &mut Ledger, from: u64) -> u64 {
    let position = store.position();
    assert!(
        ledger.newest_seen <= position,
        "a watcher saw {}, the file is at {position}",
        ledger.newest_seen
    );
    for writer in 0..WRITERS {
        for name in (0..NAMES).map(|n| format!("w{writer}-{n}")) {
            let found = store.get(&key(&name)).await.unwrap();
            let found = found.map(|found| found.object["data"]["value"].as_str().unwrap().to_owned());
            let expected = ledger.acknowledged.get(&name).cloned().flatten();
            let open = ledger.open.get(&name);
            assert!(
                found == expected || open == Some(&found),
                "{name} is {found:?}; acknowledged was {expected:?}, open {open:?}"
            );
            ledger.acknowledged.insert(name, found);
        }
    }
    ledger.open.clear();
    // On a fast machine a round writes more than is kept for watches that resume.
    let from = match store.watch(None, from) {
        Err(WatchError::Compacted { oldest, .. }) => oldest,
        _ => from,
    };
    assert!(position - from >= 100, "watches resume from {from} only");
    ledger.log.retain(|version, _| *version > from);
    let mut watch = store.watch(None, from).unwrap();
    for version in from + 1..=position {
        let event = next(&mut watch).await;
        assert_eq!(
            event.version, version,
            "a watch that resumes has no gap and nothing twice"
        );
        let Some((name, value)) = ledger.log.remove(&version) else {
            continue;
        };
        assert_eq!(event.key.name, name);
        assert_eq!(event.operation == Operation::Deleted, value.is_none());
        if let Some(value) = value {
            assert_eq!(event.object["data"]["value"], value);
        }
    }
    assert!(
        ledger.log.is_empty(),
        "acknowledged, but not in the log: {:?}",
        ledger.log
    );
    position
}
