//! Who is told what of rollouts and services, by servers that look at each message.

use std::{collections::BTreeSet, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use farwater_api::{
    ADMIN_NAMESPACE, Digest,
    notification_provider::ProviderType,
    objects::{Health, Outcome},
    protocol::{Action, Entry},
};
use farwater_store::delivery::{Thread, load_thread, save_thread, threads_below};
use farwater_testkit::{
    chat::{self, ChatServer},
    code_host::{self, CodeHost},
    fake::Said,
    hook::Hook,
    smtp::{self, SmtpServer, Tls},
};
use serde_json::{Value, json};

use crate::{
    agent::{Agent, said},
    delivering::applied,
    rig::{Rig, condition, message, repository},
    rolling::{Fleet, SET},
};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

async fn secret(rig: &Rig, name: &str, data: &[(&str, &str)]) {
    let data: serde_json::Map<String, Value> = data
        .iter()
        .map(|(key, value)| ((*key).to_owned(), STANDARD.encode(value).into()))
        .collect();
    rig.create("Secret", ADMIN_NAMESPACE, name, json!({"data": data})).await;
}

async fn provider(rig: &Rig, name: &str, spec: Value) -> String {
    rig.create("NotificationProvider", ADMIN_NAMESPACE, name, json!({"spec": spec}))
        .await
}

async fn rule(rig: &Rig, provider: &str, kind: &str, severity: &str) {
    let spec = json!({
        "providerRef": {"name": provider}, "eventSeverity": severity, "summary": "production",
        "eventSources": [{"kind": kind, "name": "*"}],
    });
    let name = format!("{provider}-{}", kind.to_lowercase());
    rig.create("NotificationRule", ADMIN_NAMESPACE, &name, json!({"spec": spec}))
        .await;
    rig.wait_for("NotificationRule", ADMIN_NAMESPACE, &name, |rule| {
        condition(rule, "Ready") == "True/InForce"
    })
    .await;
}

async fn until_provider(rig: &Rig, name: &str, expected: &str) -> Value {
    rig.wait_for("NotificationProvider", ADMIN_NAMESPACE, name, |found| {
        condition(found, "Ready") == expected
    })
    .await
}

/// A webhook that is told of all sets.
async fn hooked(rig: &Rig) -> Hook {
    hooked_to(rig, "ServiceSet").await.0
}

/// A webhook that is told of all of a kind, and its provider's uid.
async fn hooked_to(rig: &Rig, kind: &str) -> (Hook, String) {
    let hook = Hook::start(TOKEN).await.unwrap();
    secret(rig, "hook", &[("token", TOKEN)]).await;
    let spec = json!({"type": "generic", "address": hook.url(), "secretRef": {"name": "hook"}});
    let uid = provider(rig, "hook", spec).await;
    rule(rig, "hook", kind, "info").await;
    (hook, uid)
}

/// A fleet at rest, of which nothing was told.
async fn fleet(names: &[&'static str]) -> (Fleet, Digest) {
    let mut fleet = Fleet::start(names, json!({})).await;
    let first = fleet.until_complete().await;
    // Whom to tell, and how often, goes by the machine's clock.
    fleet.pace = 0;
    (fleet, first)
}

async fn commit(fleet: &Fleet, text: &str) -> String {
    fleet.commit(text).await;
    fleet.git.branch("main").unwrap()
}

async fn until_halted(fleet: &mut Fleet, first: Digest) {
    fleet.good = Some([first].into());
    fleet
        .until("it is halted", |_, set| set["status"]["rollout"]["phase"] == "Halted")
        .await;
}

async fn until_done(fleet: &mut Fleet, number: u64) {
    fleet
        .until("it is complete", |_, set| {
            let rollout = &set["status"]["rollout"];
            rollout["phase"] == "Complete" && rollout["number"] == number
        })
        .await;
}

fn number(set: &Value) -> u64 {
    set["status"]["rollout"]["number"].as_u64().unwrap()
}

fn courses(hook: &Hook) -> Vec<String> {
    let course =
        |body: &serde_json::Map<String, Value>| body["rollout"]["course"].as_str().unwrap_or_default().to_owned();
    hook.taken().iter().map(course).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_is_one_thread_from_its_beginning_to_its_end() {
    let (mut fleet, first) = fleet(&["a", "b", "c"]).await;
    let hook = hooked(&fleet.rig).await;
    let before = number(&fleet.set().await);
    let pushed = commit(&fleet, "good").await;
    // Nothing is healthy before an agent says so: it is at its beginning until then.
    fleet
        .rig
        .wait_until("its beginning is told", async || !hook.taken().is_empty())
        .await;
    until_done(&mut fleet, before + 1).await;
    fleet
        .rig
        .wait_until("its end is told", async || {
            courses(&hook).last().is_some_and(|last| last == "Complete")
        })
        .await;
    assert_eq!(
        (hook.refused(), courses(&hook).first().map(String::as_str)),
        (vec![], Some("Progressing"))
    );
    let taken = hook.taken();
    let threads: BTreeSet<&str> = taken.iter().map(|body| body["thread"].as_str().unwrap()).collect();
    let ids: BTreeSet<&str> = taken.iter().map(|body| body["id"].as_str().unwrap()).collect();
    let sequence: Vec<i64> = taken.iter().map(|body| body["sequence"].as_i64().unwrap()).collect();
    assert_eq!((threads.len(), ids.len()), (1, taken.len()));
    assert!(sequence.is_sorted(), "{sequence:?}");
    let last = &taken.last().unwrap()["rollout"];
    assert_eq!(
        (&last["clusters"]["updated"], &last["number"]),
        (&json!(3), &json!(before + 1))
    );
    assert_eq!(
        (&last["revision"], &last["summary"]),
        (&json!(format!("main@{pushed}")), &json!("production"))
    );

    let now = fleet.until_complete().await;
    assert_ne!(now, first);
    commit(&fleet, "bad").await;
    until_halted(&mut fleet, now).await;
    fleet
        .rig
        .wait_until("it is told", async || {
            courses(&hook).last().is_some_and(|last| last == "Halted")
        })
        .await;
    let halted = hook.taken().pop().unwrap();
    assert_eq!(
        (&halted["severity"], &halted["rollout"]["haltedBy"]),
        (&json!("error"), &json!("farwater-admin/a"))
    );
    assert!(
        halted["rollout"]["cause"].as_str().unwrap().contains("failed"),
        "{halted:?}"
    );
    assert!(
        halted["title"].as_str().unwrap().contains("is halted, 0/3 healthy"),
        "{halted:?}"
    );
    assert_eq!(hook.refused(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_could_not_be_sent_waits_as_its_newest_over_a_crash() {
    let (mut fleet, _) = fleet(&["a", "b"]).await;
    let hook = hooked(&fleet.rig).await;
    hook.set_fault(Some(Said::status(503)));
    let before = number(&fleet.set().await);
    commit(&fleet, "good").await;
    until_done(&mut fleet, before + 1).await;
    let failed = until_provider(&fleet.rig, "hook", "False/DeliveryFailed").await;
    assert!(message(&failed, "Ready").contains("(HTTP 503: fault)"), "{failed:#}");
    fleet.rig.kill_controllers().await;
    fleet.rig = fleet.rig.crash_before(async |_, _| {}).await;
    hook.set_fault(None);
    fleet
        .rig
        .wait_until("it is told", async || !hook.taken().is_empty())
        .await;
    until_provider(&fleet.rig, "hook", "True/Ready").await;
    // All that it has gone through in between is nobody's news any more.
    assert_eq!((courses(&hook), hook.refused()), (vec!["Complete".to_owned()], vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_waited_for_a_day_is_left_out_and_what_comes_next_is_sent() {
    let (mut fleet, _) = fleet(&["a"]).await;
    let hook = hooked(&fleet.rig).await;
    hook.set_fault(Some(Said::status(503)));
    let before = number(&fleet.set().await);
    commit(&fleet, "one").await;
    until_done(&mut fleet, before + 1).await;
    until_provider(&fleet.rig, "hook", "False/DeliveryFailed").await;
    fleet.rig.kill_controllers().await;
    let provider = fleet
        .rig
        .get("NotificationProvider", ADMIN_NAMESPACE, "hook")
        .await
        .unwrap();
    let provider_uid = provider["metadata"]["uid"].as_str().unwrap().to_owned();
    let aged = fleet.rig.store.transact(move |tx| {
        Box::pin(async move {
            for mut row in threads_below(tx, &provider_uid, "rollout/", "").await? {
                row.since -= 25 * 3600 * 1000;
                save_thread(tx, &row).await?;
            }
            Ok(())
        })
    });
    aged.await.unwrap();
    fleet.rig = fleet.rig.crash_before(async |_, _| {}).await;
    let given_up = until_provider(&fleet.rig, "hook", "False/GivenUp").await;
    let why = message(&given_up, "Ready");
    assert!(
        why.starts_with("gave up on 1 message after 24 hours: ") && why.contains("503"),
        "{why}"
    );

    hook.set_fault(None);
    commit(&fleet, "two").await;
    until_done(&mut fleet, before + 2).await;
    until_provider(&fleet.rig, "hook", "True/Ready").await;
    let told = |body: &serde_json::Map<String, Value>| body["rollout"]["number"].as_u64().unwrap();
    let told: BTreeSet<u64> = hook.taken().iter().map(told).collect();
    assert_eq!((told, hook.refused()), ([before + 2].into(), vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_and_not_known_to_be_is_sent_again_under_the_same_id() {
    let (mut fleet, _) = fleet(&["a"]).await;
    let hook = hooked(&fleet.rig).await;
    let before = number(&fleet.set().await);
    commit(&fleet, "good").await;
    until_done(&mut fleet, before + 1).await;
    fleet
        .rig
        .wait_until("its end is told", async || {
            courses(&hook).last().is_some_and(|last| last == "Complete")
        })
        .await;
    let provider_uid = fleet
        .rig
        .get("NotificationProvider", ADMIN_NAMESPACE, "hook")
        .await
        .unwrap();
    let provider_uid = provider_uid["metadata"]["uid"].as_str().unwrap().to_owned();
    let noted = async || {
        let mut tables = fleet.rig.store.tables().await.unwrap();
        let threads = threads_below(&mut tables, &provider_uid, "rollout/", "Complete")
            .await
            .unwrap();
        threads
            .iter()
            .any(|thread| thread.told.contains("Complete") && thread.waiting.is_empty())
    };
    fleet.rig.wait_until("it is noted", noted).await;
    let count = hook.taken().len();
    fleet.rig.kill_controllers().await;
    // As a hub leaves it that is killed between the answer and its note of it.
    let taken = hook.taken().pop().unwrap();
    let thread = taken["thread"].as_str().unwrap().to_owned();
    let sequence = taken["sequence"].as_i64().unwrap();
    let unknown = fleet.rig.store.transact(move |tx| {
        Box::pin(async move {
            let mut row = load_thread(tx, &provider_uid, &thread).await?.unwrap();
            // What came after it was no turn, and counted all the same.
            (row.waiting, row.due, row.version) = (std::mem::take(&mut row.told), 0, sequence);
            save_thread(tx, &row).await
        })
    });
    unknown.await.unwrap();
    fleet.rig = fleet.rig.crash_before(async |_, _| {}).await;
    fleet
        .rig
        .wait_until("it is told again", async || hook.taken().len() > count)
        .await;
    let again = hook.taken().pop().unwrap();
    assert_eq!((&again["id"], &again["sequence"]), (&taken["id"], &taken["sequence"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_to_addresses_that_are_not_allowed_nor_where_a_host_redirects_to() {
    let rig = Rig::start().await;
    let hook = Hook::start(TOKEN).await.unwrap();
    secret(&rig, "hook", &[("token", TOKEN)]).await;
    // The tests' hub allows 127.0.0.0/8.
    let ask = async |name: &str, spec: Value| {
        provider(&rig, name, spec).await;
        until_provider(&rig, name, "True/Ready").await;
        rig.edit("NotificationProvider", ADMIN_NAMESPACE, name, |object| {
            object["metadata"]["annotations"]["farwater.dev/requestedAt"] = "now".into();
        })
        .await;
        rig.wait_for("NotificationProvider", ADMIN_NAMESPACE, name, |found| {
            found["status"]["lastHandledReconcileAt"] == "now"
        })
        .await
    };
    let generic = |address: &str| json!({"type": "generic", "address": address, "secretRef": {"name": "hook"}});
    secret(&rig, "near", &[("address", "http://[::1]:9/hook")]).await;
    secret(&rig, "chat", &[("token", chat::TOKEN)]).await;
    let email = json!({"from": "farwater@example.com", "to": ["ops@example.com"], "allowClearText": true});
    for (name, spec) in [
        ("near", generic("http://[::1]:9/hook")),
        ("slack-hook", json!({"type": "slack", "secretRef": {"name": "near"}})),
        (
            "slack",
            json!({"type": "slack", "address": "http://[::1]:9", "channel": "c", "secretRef": {"name": "chat"}}),
        ),
        ("teams", json!({"type": "msteams", "secretRef": {"name": "near"}})),
        (
            "mail",
            json!({"type": "email", "address": "smtp://[::1]:9", "email": email}),
        ),
    ] {
        let found = ask(name, spec).await;
        assert_eq!(condition(&found, "Ready"), "False/DeliveryFailed", "{name}: {found:#}");
        let said = message(&found, "Ready");
        assert!(
            said.contains("which is not public") && said.contains("--allow-private-links"),
            "{name}: {said}"
        );
    }

    let to = hook.url();
    hook.set_fault(Some(Said::status(307).with("location", "http://[::1]:9/other")));
    let found = ask("led", generic(&to)).await;
    let said = message(&found, "Ready");
    assert!(said.contains("which notifications don't follow"), "{said}");
    assert_eq!(hook.asked(), 1);
    hook.set_fault(None);
    let found = ask("fine", generic(&to)).await;
    assert_eq!(
        (condition(&found, "Ready").as_str(), hook.taken().len()),
        ("True/Ready", 1)
    );
    assert_eq!(hook.taken()[0]["type"], "test");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_provider_lacks_is_named_and_no_secret_is_in_any_status() {
    let rig = Rig::start().await;
    let chat = ChatServer::start().await.unwrap();
    provider(&rig, "chat", json!({"type": "slack", "secretRef": {"name": "chat"}})).await;
    let found = until_provider(&rig, "chat", "False/SecretNotFound").await;
    assert_eq!(message(&found, "Ready"), "Secret chat does not exist");
    secret(&rig, "chat", &[("address", &chat.hook())]).await;
    until_provider(&rig, "chat", "True/Ready").await;
    chat.set_fault(Some(Said {
        status: 404,
        body: format!("no_service at {}", chat.hook()),
        headers: vec![],
    }));
    rig.edit("NotificationProvider", ADMIN_NAMESPACE, "chat", |object| {
        object["metadata"]["annotations"]["farwater.dev/requestedAt"] = "now".into();
    })
    .await;
    let found = until_provider(&rig, "chat", "False/DeliveryFailed").await;
    let text = found.to_string();
    assert!(
        text.contains("HTTP 404") && text.contains("***") && !text.contains("s3cret"),
        "{text}"
    );
    // An address that nothing can be sent to is told without a word of it.
    secret(&rig, "other", &[("address", "nonsense s3cret")]).await;
    provider(
        &rig,
        "other",
        json!({"type": "msteams", "secretRef": {"name": "other"}}),
    )
    .await;
    let found = until_provider(&rig, "other", "False/AddressInvalid").await;
    assert!(!found.to_string().contains("s3cret"), "{found:#}");

    provider(
        &rig,
        "hook",
        json!({"type": "generic", "address": "http://127.0.0.1:9/x", "secretRef": {"name": "chat"}}),
    )
    .await;
    let found = until_provider(&rig, "hook", "False/SecretIncomplete").await;
    assert_eq!(message(&found, "Ready"), "Secret \"chat\" has no \"token\"");
    let spec = json!({"providerRef": {"name": "nobody"}, "eventSources": [{"kind": "ServiceSet", "name": "*"}]});
    rig.create("NotificationRule", ADMIN_NAMESPACE, "rule", json!({"spec": spec}))
        .await;
    let found = rig
        .wait_for("NotificationRule", ADMIN_NAMESPACE, "rule", |rule| {
            condition(rule, "Ready") == "False/ProviderNotFound"
        })
        .await;
    assert_eq!(message(&found, "Ready"), "NotificationProvider nobody does not exist");
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_chat_a_rollout_is_one_message_that_is_edited() {
    let (mut fleet, _) = fleet(&["a", "b", "c"]).await;
    let chat = ChatServer::start().await.unwrap();
    let rig = &fleet.rig;
    secret(rig, "chat", &[("token", chat::TOKEN)]).await;
    let spec = json!({"type": "slack", "address": chat.api(), "channel": chat::CHANNEL, "secretRef": {"name": "chat"}});
    provider(rig, "chat", spec).await;
    secret(rig, "hook", &[("address", &chat.hook())]).await;
    provider(rig, "hook", json!({"type": "slack", "secretRef": {"name": "hook"}})).await;
    secret(rig, "flow", &[("address", &chat.flow())]).await;
    provider(rig, "flow", json!({"type": "msteams", "secretRef": {"name": "flow"}})).await;
    for name in ["chat", "hook", "flow"] {
        rule(rig, name, "ServiceSet", "info").await;
    }
    let before = number(&fleet.set().await);
    commit(&fleet, "good").await;
    let are_told = async || ![chat.posted().len(), chat.hooked().len(), chat.cards().len()].contains(&0);
    fleet.rig.wait_until("all are told of its beginning", are_told).await;
    until_done(&mut fleet, before + 1).await;
    let done = |text: &str| text.contains("is complete, 3/3 healthy");
    fleet
        .rig
        .wait_until("all are told of its end", async || {
            let ends = [chat.posted(), chat.hooked(), chat.cards()];
            ends.iter().all(|all| all.last().is_some_and(|last| done(&last.text)))
        })
        .await;
    let posted = chat.posted();
    assert!(posted.len() == 1 && posted[0].edits > 0, "{posted:?}");
    // What can't be edited is its beginning and its end.
    for all in [chat.hooked(), chat.cards()] {
        assert_eq!(all.len(), 2, "{all:?}");
        assert!(all[0].text.contains("is under way"), "{all:?}");
    }
    // A message that somebody has deleted is posted anew.
    chat.clear();
    commit(&fleet, "better").await;
    until_done(&mut fleet, before + 2).await;
    fleet
        .rig
        .wait_until("it is told", async || {
            chat.posted().last().is_some_and(|last| done(&last.text))
        })
        .await;
    assert_eq!((chat.posted().len(), chat.refused()), (2, vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_for_errors_hears_of_a_rollout_that_fails_and_how_it_ends() {
    let (mut fleet, first) = fleet(&["a", "b"]).await;
    let chat = ChatServer::start().await.unwrap();
    secret(&fleet.rig, "chat", &[("token", chat::TOKEN)]).await;
    let spec = json!({"type": "slack", "address": chat.api(), "channel": chat::CHANNEL, "secretRef": {"name": "chat"}});
    provider(&fleet.rig, "chat", spec).await;
    rule(&fleet.rig, "chat", "ServiceSet", "error").await;
    let before = number(&fleet.set().await);
    commit(&fleet, "good").await;
    until_done(&mut fleet, before + 1).await;
    let good = fleet.until_complete().await;
    assert_ne!(good, first);
    assert_eq!(chat.asked(), 0);
    commit(&fleet, "bad").await;
    until_halted(&mut fleet, good).await;
    fleet
        .rig
        .wait_until("it is told", async || chat.posted().len() == 1)
        .await;
    assert!(chat.posted()[0].text.contains("is halted"), "{:?}", chat.posted());
    fleet.good = None;
    commit(&fleet, "fix").await;
    fleet.until_complete().await;
    let superseded = |text: &str| text.contains("gave way to a newer one");
    fleet
        .rig
        .wait_until("its end is told", async || {
            chat.posted().iter().any(|one| superseded(&one.text))
        })
        .await;
    assert_eq!((chat.posted().len(), chat.refused()), (1, vec![]));
}

async fn statuses_of(kind: ProviderType, [running, done, failed, left]: [&str; 4]) {
    let (mut fleet, _) = fleet(&["a", "b"]).await;
    // A second where it would be ten.
    fleet.rig.replica.notifications.paces().haste = 10;
    let host = CodeHost::start(kind).await.unwrap();
    secret(&fleet.rig, "code", &[("token", code_host::TOKEN)]).await;
    let spec = json!({
        "type": kind, "address": host.url(), "secretRef": {"name": "code"},
        "commitStatus": {"context": "hub-1", "perCluster": true},
    });
    let uid = provider(&fleet.rig, "code", spec).await;
    rule(&fleet.rig, "code", "ServiceSet", "info").await;
    let context = format!("hub-1/{ADMIN_NAMESPACE}/{SET}");
    let before = number(&fleet.set().await);
    let good = {
        fleet.git.change("main", &[("README", Some("x"))]).unwrap();
        let text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {text: good}\n";
        let commit = fleet.git.change("main", &[("apps/web/web.yaml", Some(text))]).unwrap();
        host.push(&commit);
        fleet.rig.ask(ADMIN_NAMESPACE, "infra").await;
        commit
    };
    let is = |commit: &str, context: &str, state: &str| {
        host.status(commit, context).is_some_and(|found| found.state == state)
    };
    fleet
        .rig
        .wait_until("its beginning is told", async || is(&good, &context, running))
        .await;
    until_done(&mut fleet, before + 1).await;
    let now = fleet.until_complete().await;
    fleet
        .rig
        .wait_until("the commit is good", async || is(&good, &context, done))
        .await;
    for cluster in ["a", "b"] {
        let context = format!("{context}/{ADMIN_NAMESPACE}/{cluster}");
        fleet
            .rig
            .wait_until("the commit is good there", async || is(&good, &context, done))
            .await;
    }
    let of_set: Vec<_> = host
        .taken()
        .into_iter()
        .filter(|status| status.context == context)
        .collect();
    assert_eq!(
        (of_set[0].state.as_str(), of_set.last().unwrap().description.as_str()),
        (running, "2/2 healthy")
    );
    assert!(
        of_set[0].target.ends_with("/ui/?set=farwater-admin%2Fweb"),
        "{}",
        of_set[0].target
    );
    for pair in of_set.windows(2) {
        assert!(
            pair[1].at.duration_since(pair[0].at) >= Duration::from_secs(1),
            "{pair:?}"
        );
        assert!(
            (&pair[0].state, &pair[0].description) != (&pair[1].state, &pair[1].description),
            "{pair:?}"
        );
    }

    // One that fails, and one that takes its place before the host has heard of it.
    let text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {text: bad}\n";
    let bad = fleet.git.change("main", &[("apps/web/web.yaml", Some(text))]).unwrap();
    host.push(&bad);
    fleet.rig.ask(ADMIN_NAMESPACE, "infra").await;
    until_halted(&mut fleet, now).await;
    fleet
        .rig
        .wait_until("the commit has failed", async || is(&bad, &context, failed))
        .await;
    let told = host.status(&bad, &context).unwrap().description;
    assert!(told.starts_with("0/2 healthy; farwater-admin/a: failed"), "{told}");
    let there = format!("{context}/{ADMIN_NAMESPACE}/a");
    fleet
        .rig
        .wait_until("it has failed there", async || is(&bad, &there, failed))
        .await;
    assert!(host.status(&bad, &format!("{context}/{ADMIN_NAMESPACE}/b")).is_none());
    assert_eq!(host.refused(), Vec::<String>::new());

    // One that is under way when the next one comes.
    fleet.good = None;
    fleet
        .rig
        .edit("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
            set["spec"]["rollout"]["soak"] = "1h".into()
        })
        .await;
    let text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {text: slow}\n";
    let slow = fleet.git.change("main", &[("apps/web/web.yaml", Some(text))]).unwrap();
    host.push(&slow);
    fleet.rig.ask(ADMIN_NAMESPACE, "infra").await;
    fleet
        .until("it is under way", |_, set| {
            set["status"]["rollout"]["phase"] == "Progressing"
        })
        .await;
    fleet
        .rig
        .wait_until("that is told", async || is(&slow, &context, running))
        .await;
    let text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {text: next}\n";
    let next = fleet.git.change("main", &[("apps/web/web.yaml", Some(text))]).unwrap();
    fleet.rig.ask(ADMIN_NAMESPACE, "infra").await;
    // Of a commit that the host doesn't know nobody waits for a word.
    let refused = until_provider(&fleet.rig, "code", "False/MessageRefused").await;
    assert!(message(&refused, "Ready").contains("HTTP 4"), "{refused:#}");
    fleet
        .rig
        .wait_until("it has given way", async || is(&slow, &context, left))
        .await;
    let waits = async || {
        let mut tables = fleet.rig.store.tables().await.unwrap();
        let all = threads_below(&mut tables, &uid, "commit/", &next).await.unwrap();
        all.iter().any(|row| !row.waiting.is_empty())
    };
    fleet.rig.wait_until("nothing waits", async || !waits().await).await;
    assert_eq!(host.refused(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_at_github_have_a_status_per_set_and_per_cluster() {
    statuses_of(ProviderType::GitHub, ["pending", "success", "failure", "error"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_at_gitlab_have_a_status_per_set_and_per_cluster() {
    statuses_of(ProviderType::GitLab, ["running", "success", "failed", "canceled"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_at_gitea_have_a_status_per_set_and_per_cluster() {
    statuses_of(ProviderType::Gitea, ["pending", "success", "failure", "error"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn services_that_fail_and_recover_are_one_message_each_time() {
    let (server, _git) = repository().await;
    let rig = Rig::start().await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    rig.cluster("east").await;
    let (hook, provider_uid) = hooked_to(&rig, "ServiceDeployment").await;
    let web = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    let db = rig.service(ADMIN_NAMESPACE, "db", "east", "apps/db").await;
    let mut agent = Agent::join(&rig, "east").await;
    let mut entries = Vec::new();
    for uid in [&web, &db] {
        let (_, entry) = agent.wait_entry(&rig, uid, |entry| applied(entry).is_some()).await;
        entries.push((uid.clone(), entry));
    }
    let mut say = async |health: Health| {
        for (uid, entry) in &entries {
            agent
                .say(&rig, uid, said(entry, Outcome::Applied, &[("web", health)]))
                .await;
        }
        let expected = if health == Health::Current {
            "True/Applied"
        } else {
            "False/Unhealthy"
        };
        for name in ["web", "db"] {
            rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, name, |found| {
                condition(found, "Ready") == expected
            })
            .await;
        }
    };
    // What is over before anybody is told never was.
    say(Health::Failed).await;
    say(Health::Current).await;
    assert_eq!(hook.asked(), 0);
    // Long enough for two services to be heard.
    rig.replica.notifications.paces().gather = Duration::from_secs(8);
    say(Health::Failed).await;
    rig.wait_until("it is told", async || hook.taken().len() == 1).await;
    let told = hook.taken().pop().unwrap();
    assert_eq!(
        (&told["type"], &told["severity"]),
        (&json!("services"), &json!("error"))
    );
    assert_eq!(
        (&told["title"], told["services"].as_array().unwrap().len()),
        (&json!("2 services fail"), 2)
    );
    // The next message would come a minute later, counted from when the hub has its answer.
    rig.wait_until("it is noted", async || {
        !rig.replica
            .notifications
            .paces()
            .of(&provider_uid)
            .until_services()
            .is_zero()
    })
    .await;
    rig.replica.notifications.paces().forget(&provider_uid);
    say(Health::Current).await;
    rig.wait_until("its end is told", async || hook.taken().len() == 2)
        .await;
    let told = hook.taken().pop().unwrap();
    assert_eq!(
        (&told["title"], &told["severity"]),
        (&json!("2 services are well again"), &json!("info"))
    );
    assert_eq!(hook.refused(), Vec::<String>::new());
    let is_over = async || {
        let mut tables = rig.store.tables().await.unwrap();
        threads_below(&mut tables, &provider_uid, "service/", "")
            .await
            .unwrap()
            .is_empty()
    };
    rig.wait_until("nothing is left of it", &is_over).await;

    // Nobody looks after one that was deleted.
    let quiet = async || {
        let paced = async || {
            !rig.replica
                .notifications
                .paces()
                .of(&provider_uid)
                .until_services()
                .is_zero()
        };
        rig.wait_until("it is noted", paced).await;
        rig.replica.notifications.paces().forget(&provider_uid);
    };
    quiet().await;
    say(Health::Failed).await;
    rig.wait_until("it is told again", async || hook.taken().len() == 3)
        .await;
    quiet().await;
    for (name, uid) in [("web", &web), ("db", &db)] {
        rig.delete("ServiceDeployment", ADMIN_NAMESPACE, name).await;
        let is_removal = |entry: &Entry| matches!(entry.action, Action::Remove { .. });
        let (_, entry) = agent.wait_entry(&rig, uid, is_removal).await;
        agent.say(&rig, uid, said(&entry, Outcome::Removed, &[])).await;
        rig.wait_gone("ServiceDeployment", ADMIN_NAMESPACE, name).await;
    }
    rig.wait_until("that they are gone is told", async || hook.taken().len() == 4)
        .await;
    let told = hook.taken().pop().unwrap();
    assert_eq!(
        (&told["severity"], &told["services"][0]["message"]),
        (&json!("info"), &json!("was deleted"))
    );
    rig.wait_until("nothing is left of them", &is_over).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_over_while_people_are_being_told_of_it_is_told_to_be_over() {
    let (server, _git) = repository().await;
    let mut rig = Rig::start().await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    rig.cluster("east").await;
    let (hook, provider_uid) = hooked_to(&rig, "ServiceDeployment").await;
    let web = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    let mut agent = Agent::join(&rig, "east").await;
    let (_, entry) = agent.wait_entry(&rig, &web, |entry| applied(entry).is_some()).await;
    hook.set_delay(Duration::from_secs(2));
    rig.replica.notifications.paces().gather = Duration::from_secs(1);
    agent
        .say(&rig, &web, said(&entry, Outcome::Applied, &[("web", Health::Failed)]))
        .await;
    rig.wait_until("it is on its way", async || hook.asked() == 1).await;
    agent
        .say(&rig, &web, said(&entry, Outcome::Applied, &[("web", Health::Current)]))
        .await;
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |found| {
        condition(found, "Ready") == "True/Applied"
    })
    .await;
    let paced = async || {
        !rig.replica
            .notifications
            .paces()
            .of(&provider_uid)
            .until_services()
            .is_zero()
    };
    rig.wait_until("it is noted", paced).await;
    hook.set_delay(Duration::ZERO);
    // The next message would come a minute later.
    rig.kill_controllers().await;
    let due = rig.store.transact(move |tx| {
        Box::pin(async move {
            for row in threads_below(tx, &provider_uid, "service/", "").await? {
                save_thread(tx, &Thread { due: 0, ..row }).await?;
            }
            Ok(())
        })
    });
    due.await.unwrap();
    rig = rig.crash_before(async |_, _| {}).await;
    rig.wait_until("it is told", async || hook.taken().len() == 2).await;
    let titles: Vec<Value> = hook.taken().iter().map(|told| told["title"].clone()).collect();
    assert_eq!(
        (titles, hook.refused()),
        (vec![json!("1 service fails"), json!("1 service is well again")], vec![])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn mails_of_a_rollout_are_one_thread_and_are_never_sent_in_the_clear_unasked() {
    let (mut fleet, _) = fleet(&["a", "b"]).await;
    let server = SmtpServer::start(Tls::Offered, true).await.unwrap();
    let rig = &fleet.rig;
    secret(
        rig,
        "mail",
        &[("username", smtp::USERNAME), ("password", smtp::PASSWORD)],
    )
    .await;
    secret(rig, "mail-ca", &[("ca.crt", server.authority())]).await;
    let email = json!({"from": "farwater@example.com", "to": ["ops@example.com", "dev@example.com"]});
    let spec = json!({
        "type": "email", "address": server.url(), "secretRef": {"name": "mail"}, "certSecretRef": {"name": "mail-ca"},
        "email": email,
    });
    provider(rig, "mail", spec).await;
    rule(rig, "mail", "ServiceSet", "info").await;
    let before = number(&fleet.set().await);
    commit(&fleet, "good").await;
    fleet
        .rig
        .wait_until("its beginning is told", async || server.mails().len() == 1)
        .await;
    until_done(&mut fleet, before + 1).await;
    fleet
        .rig
        .wait_until("its end is told", async || server.mails().len() == 2)
        .await;
    let mails = server.mails();
    assert!(
        mails
            .iter()
            .all(|mail| mail.was_private && mail.to == ["ops@example.com", "dev@example.com"]),
        "{mails:?}"
    );
    assert!(
        mails[1]
            .header("Subject")
            .is_some_and(|text| text.contains("is complete, 2/2 healthy")),
        "{mails:?}"
    );
    assert_eq!(mails[1].header("In-Reply-To"), mails[0].header("Message-ID"));
    assert!(
        mails[0].header("Message-ID").is_some() && server.refused().is_empty(),
        "{:?}",
        server.refused()
    );

    let clear = SmtpServer::start(Tls::None, false).await.unwrap();
    let implicit = SmtpServer::start(Tls::Implicit, true).await.unwrap();
    secret(&fleet.rig, "implicit-ca", &[("ca.crt", implicit.authority())]).await;
    let check = async |name: &str, spec: Value, expected: &str| {
        provider(&fleet.rig, name, spec).await;
        until_provider(&fleet.rig, name, "True/Ready").await;
        fleet
            .rig
            .edit("NotificationProvider", ADMIN_NAMESPACE, name, |object| {
                object["metadata"]["annotations"]["farwater.dev/requestedAt"] = "now".into();
            })
            .await;
        let found = fleet
            .rig
            .wait_for("NotificationProvider", ADMIN_NAMESPACE, name, |found| {
                found["status"]["lastHandledReconcileAt"] == "now"
            })
            .await;
        let said = message(&found, "Ready");
        assert!(said.contains(expected), "{name}: {said}");
    };
    check(
        "clear",
        json!({"type": "email", "address": clear.url(), "email": email}),
        "offers no STARTTLS",
    )
    .await;
    let mut allowed = email.clone();
    allowed["allowClearText"] = true.into();
    check(
        "allowed",
        json!({"type": "email", "address": clear.url(), "email": allowed}),
        "are sent",
    )
    .await;
    let with_login = json!({"type": "email", "address": clear.url(), "secretRef": {"name": "mail"}, "email": allowed});
    check("login", with_login, "credentials are never sent in the clear").await;
    let spec = json!({
        "type": "email", "address": implicit.url(), "secretRef": {"name": "mail"}, "certSecretRef": {"name": "implicit-ca"},
        "email": email,
    });
    check("implicit", spec, "are sent").await;
    let spec = json!({"type": "email", "address": server.url(), "secretRef": {"name": "mail"}, "email": email});
    check("stranger", spec, "does not begin TLS").await;
    assert_eq!(
        (clear.mails().len(), implicit.mails().len(), clear.refused()),
        (1, 1, vec![])
    );
}
