//! Commits whose answer is lost: the store reports them as done or not done only if that is known.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use farwater_store::{PostgresUrl, Store, StoreError, WriteError};
use farwater_testkit::postgres;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::setup::{Place, key, next, put};

/// What happens to the next COMMIT of a transaction that has written, and to its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    Nothing,
    /// The server gets the COMMIT, but its answer is lost.
    Answer,
    /// The COMMIT itself is lost.
    Commit,
    /// The COMMIT's answer is lost, and no new connection is accepted.
    AnswerForGood,
    /// No connection is accepted.
    Everything,
}

/// A proxy between a store and its server.
#[derive(Clone)]
struct Wire(Arc<Mutex<Cut>>);

/// One of these is in the statements of each transaction that changes a resource or the fact of that name. Compaction
/// has neither.
const WRITES: [&[u8]; 2] = [b"farwater_changes", b"canary-fact"];

impl Wire {
    async fn start(place: &Place) -> (Self, PostgresUrl) {
        let url = place.url().unwrap();
        let (before, rest) = url.rsplit_once("@127.0.0.1:").unwrap();
        let (port, database) = rest.split_once('/').unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let through = format!(
            "{before}@127.0.0.1:{}/{database}",
            listener.local_addr().unwrap().port()
        );
        let wire = Self(Arc::new(Mutex::new(Cut::Nothing)));
        tokio::spawn(wire.clone().accept(listener, port.parse().unwrap()));
        (wire, PostgresUrl::parse(&through).unwrap())
    }

    fn set(&self, cut: Cut) {
        *self.0.lock().unwrap() = cut;
    }

    fn is(&self, cut: Cut) -> bool {
        *self.0.lock().unwrap() == cut
    }

    async fn accept(self, listener: TcpListener, port: u16) {
        while let Ok((client, _)) = listener.accept().await {
            if !self.is(Cut::Everything) {
                let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                tokio::spawn(self.clone().forward(client, server));
            }
        }
    }

    async fn forward(self, mut client: TcpStream, mut server: TcpStream) {
        let (mut asked, mut answered) = ([0; 65_536], [0; 65_536]);
        let mut has_written = false;
        loop {
            tokio::select! {
                read = client.read(&mut asked) => {
                    let Ok(length @ 1..) = read else { return };
                    let has = |text: &[u8]| asked[..length].windows(text.len()).any(|window| window == text);
                    has_written |= WRITES.into_iter().any(has);
                    let is_commit = has_written && has(b"COMMIT");
                    has_written &= !is_commit;
                    if is_commit && self.is(Cut::Commit) {
                        return self.set(Cut::Nothing);
                    }
                    server.write_all(&asked[..length]).await.unwrap();
                    if is_commit && (self.is(Cut::Answer) || self.is(Cut::AnswerForGood)) {
                        assert!(server.read(&mut answered).await.unwrap() > 0);
                        return self.set(if self.is(Cut::Answer) { Cut::Nothing } else { Cut::Everything });
                    }
                }
                read = server.read(&mut answered) => {
                    let Ok(length @ 1..) = read else { return };
                    if client.write_all(&answered[..length]).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

async fn open(place: &Place) -> (Wire, Store) {
    let (wire, url) = Wire::start(place).await;
    let mut options = place.options();
    options.location = url.into();
    options.patience = Duration::from_secs(8);
    (wire, Store::open(options).await.unwrap())
}

#[tokio::test]
async fn a_commit_whose_answer_was_lost_is_found_and_made_once() {
    let place = Place::database().await;
    let (wire, store) = open(&place).await;
    let mut watch = store.watch(None, 0).unwrap();
    put(&store, "a", json!({"n": 0})).await.unwrap();
    wire.set(Cut::Answer);
    let written = put(&store, "a", json!({"n": 1})).await.unwrap();
    assert_eq!(written.version, 2);
    assert!(store.position() >= 2);
    put(&store, "a", json!({"n": 2})).await.unwrap();
    for version in 1..=3 {
        assert_eq!(next(&mut watch).await.version, version);
    }
    assert_eq!(changes(&place).await, "3");
}

#[tokio::test]
async fn a_commit_that_was_lost_itself_is_told_as_not_made() {
    let place = Place::database().await;
    let (wire, store) = open(&place).await;
    put(&store, "a", json!({"n": 0})).await.unwrap();
    wire.set(Cut::Commit);
    let failed = put(&store, "a", json!({"n": 1})).await;
    let Err(WriteError::Store(error @ StoreError::Unavailable { .. })) = failed else {
        panic!("{failed:?}")
    };
    assert!(error.retry());
    assert_eq!(store.get(&key("a")).await.unwrap().unwrap().version, 1);
    assert_eq!(put(&store, "a", json!({"n": 1})).await.unwrap().version, 2);
}

#[tokio::test]
async fn nobody_is_told_what_is_not_known() {
    let place = Place::database().await;
    let (wire, store) = open(&place).await;
    let mut watch = store.watch(None, 0).unwrap();
    wire.set(Cut::AnswerForGood);
    let unknown = put(&store, "a", json!({"n": 0})).await;
    let Err(WriteError::Store(error @ StoreError::Unknown { .. })) = unknown else {
        panic!("{unknown:?}")
    };
    assert!(!error.retry());
    // The write is not shown until its outcome is known, and then it is.
    wire.set(Cut::Nothing);
    assert!(store.wait_for(1, Duration::from_secs(20)).await);
    assert_eq!(next(&mut watch).await.version, 1);
    // A write without a number can't be found again.
    wire.set(Cut::Answer);
    assert!(matches!(
        store.put_meta("canary-fact", "1").await,
        Err(StoreError::Unknown { .. })
    ));
    assert_eq!(store.meta("canary-fact").await.unwrap().as_deref(), Some("1"));
}

async fn changes(place: &Place) -> String {
    let server = postgres::shared().await.unwrap();
    server
        .execute(&place.database_name(), "SELECT count(*) FROM changes")
        .await
        .unwrap()
}
