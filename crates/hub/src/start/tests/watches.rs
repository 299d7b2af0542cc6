//! The cost of watches to the hub, and the resources that they can't take from others.

use futures::StreamExt as _;

use super::*;

fn administrator() -> crate::auth::User {
    crate::auth::User {
        name: "test".into(),
        groups: vec!["system:masters".into()],
        ..Default::default()
    }
}

/// The right to a watch is decided again while it lasts.
fn watch_request(client: &Client) -> Request<Bytes> {
    let request = Request::get("/api/v1/configmaps?watch=true");
    request
        .header("authorization", format!("Bearer {}", client.token))
        .body(Bytes::new())
        .unwrap()
}

#[tokio::test]
async fn watches_beyond_the_limit_are_told_to_come_again() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(Config {
        max_watches: 1,
        ..config(directory.path())
    })
    .await
    .unwrap();
    let client = Client::of(&running);
    let turn = running.hub.turns.next().await;
    let first = apiserver::serve(Arc::clone(&running.hub), administrator(), turn, watch_request(&client)).await;
    assert_eq!(first.status(), 200);

    let refused = client.get("/api/v1/configmaps?watch=true&timeoutSeconds=1").await;
    assert_eq!(
        (refused.code.as_u16(), &refused.headers["retry-after"]),
        (429, &"1".parse().unwrap())
    );
    let status = refused.json();
    assert_eq!(
        (&status["kind"], &status["reason"]),
        (&json!("Status"), &json!("TooManyRequests"))
    );
    assert_eq!(
        status["message"],
        "the server serves 1 watches already, as many as max-watches allows; try again"
    );
    assert_eq!(status["details"]["retryAfterSeconds"], 1);
    assert_eq!(client.get("/api/v1/configmaps").await.code, 200);

    drop(first);
    let bound = Instant::now();
    while client.get("/api/v1/configmaps?watch=true&timeoutSeconds=1").await.code != 200 {
        assert!(
            bound.elapsed() < Duration::from_secs(30),
            "the place of a watch that ended stays taken"
        );
    }
    running.stop().await;
}

#[tokio::test]
async fn a_watchs_initial_state_takes_turns_and_a_slow_reader_holds_none() {
    const OBJECTS: usize = 600;
    let directory = tempfile::tempdir().unwrap();
    let running = start(Config {
        max_api_requests: 1,
        ..config(directory.path())
    })
    .await
    .unwrap();
    let writes = (0..OBJECTS).map(|n| {
        let name = format!("c{n:03}");
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "a", "uid": name},
        });
        let key = farwater_store::Key {
            kind: farwater_store::Kind::new("configmaps", ""),
            namespace: "a".into(),
            name,
        };
        running.hub.store.write(farwater_store::Write {
            key,
            change: farwater_store::Change::Create(object),
        })
    });
    for written in futures::future::join_all(writes).await {
        written.unwrap();
    }
    // Without a connection, because a buffer of the kernel would read ahead of the test.
    let turn = running.hub.turns.next().await;
    let answer = apiserver::serve(
        Arc::clone(&running.hub),
        administrator(),
        turn,
        watch_request(&Client::of(&running)),
    )
    .await;
    let mut events = answer.into_body().into_data_stream();

    // The first page was read, and the client does not receive it: other requests have their turn.
    assert_eq!(Client::of(&running).get("/api/v1/namespaces").await.code, 200);
    // The next page needs a turn, but none is free.
    let only = running.hub.turns.next().await;
    let mut shown = 0;
    while let Ok(Some(event)) = tokio::time::timeout(Duration::from_millis(500), events.next()).await {
        event.unwrap();
        shown += 1;
    }
    assert!(
        shown < OBJECTS,
        "{shown} objects were shown by a server without a free turn"
    );
    drop(only);
    while shown < OBJECTS {
        let event = tokio::time::timeout(Duration::from_secs(30), events.next()).await;
        event.expect("the rest of the state").unwrap().unwrap();
        shown += 1;
    }
    drop(events);
    running.stop().await;
}
