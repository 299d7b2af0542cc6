//! Agents that are changed from the hub, as far as the hub goes; `tests/e2e/tests/node.rs` has a real one that changes itself.

use farwater_api::{
    ADMIN_NAMESPACE, Digest,
    protocol::{AgentReport, AgentSettings, AgentUpdate, Verbatim},
};
use farwater_store::delivery::{AgentUpdateRow, load_agent_update, save_agent_update};
use http::StatusCode;
use serde_json::{Value, json};

use crate::{
    agent::Agent,
    rig::{Rig, condition, message},
};

const POLICY: &str = "all";
/// In the order in which the policy takes them.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const LOST: &str = "its agent has not been heard since it was updated";

fn settings(version: &str) -> AgentSettings {
    AgentSettings {
        image: Some(format!("registry.test/farwater/agent:{version}")),
        log: Some("debug".to_owned()),
        deadline_seconds: 300,
        ..AgentSettings::default()
    }
}

/// For all clusters, one at a time.
async fn create_policy(rig: &Rig, wanted: &AgentSettings) {
    let deadline = format!("{}s", wanted.deadline_seconds);
    let spec = json!({"image": wanted.image, "log": wanted.log, "deadline": deadline, "maxUnavailable": 1});
    rig.create("AgentPolicy", "", POLICY, json!({"spec": spec})).await;
}

/// Their agents have said that they run as they were installed.
async fn join_all(rig: &Rig) -> Vec<Agent> {
    let mut agents = Vec::new();
    for name in NAMES {
        rig.cluster(name).await;
        let mut agent = Agent::join(rig, name).await;
        agent.wait_polled(rig).await;
        say(rig, &mut agent, None, AgentUpdate::Settled).await;
        agents.push(agent);
    }
    agents
}

/// Has an agent say which settings it runs with, and what comes of those that it is asked for.
async fn say(rig: &Rig, agent: &mut Agent, runs: Option<Digest>, update: AgentUpdate) {
    let mut report = agent.report(&[]);
    report.agent = Some(AgentReport {
        settings: runs,
        update,
        ..AgentReport::default()
    });
    let answer = agent.send_report(rig, &report).await;
    assert_eq!(
        answer.status,
        StatusCode::OK,
        "{}",
        String::from_utf8_lossy(&answer.body)
    );
    agent.sequence = report.sequence;
}

/// What an agent's signed state asks of itself. That is a poll: the cluster is heard.
async fn asked_of(rig: &Rig, agent: &Agent) -> Option<Verbatim<AgentSettings>> {
    let state = agent.desired(rig).await;
    assert_eq!(
        state.statement.agent,
        state.agent.as_ref().map(Verbatim::digest),
        "what is asked for is signed"
    );
    state.agent
}

/// It does what it is asked for, and says so.
async fn take_over(rig: &Rig, agent: &mut Agent) {
    let runs = asked_of(rig, agent).await.map(|settings| settings.digest());
    say(rig, agent, runs, AgentUpdate::Settled).await;
}

/// Which of these are asked for the settings.
async fn asked(rig: &Rig, agents: &[Agent], wanted: &AgentSettings) -> Vec<String> {
    let mut names = Vec::new();
    for agent in agents {
        if asked_of(rig, agent).await.is_some_and(|settings| *settings == *wanted) {
            names.push(agent.joined.as_ref().unwrap().cluster.name.clone());
        }
    }
    names
}

/// Until of these agents exactly the named ones are asked for the settings, and another look at the policy changes nothing.
async fn wait_asked(rig: &Rig, agents: &[Agent], wanted: &AgentSettings, names: &[&str]) {
    let what = format!("{names:?} are asked for {wanted:?}");
    rig.wait_until(&what, async || asked(rig, agents, wanted).await == names)
        .await;
    look_again(rig).await;
    assert_eq!(asked(rig, agents, wanted).await, names);
}

/// Has the hub look at the policy now: while nobody is on the way it does so once a minute. Returns when what it decides is done.
async fn look_again(rig: &Rig) {
    rig.edit("AgentPolicy", "", POLICY, |policy| {
        // The same limit, written in the other way.
        let limit = &mut policy["spec"]["maxUnavailable"];
        *limit = if limit.is_number() { json!("1") } else { json!(1) };
    })
    .await;
    let looked_at = |policy: &Value| policy["status"]["observedGeneration"] == policy["metadata"]["generation"];
    rig.wait_for("AgentPolicy", "", POLICY, looked_at).await;
    rig.wait_computed().await;
}

async fn policy(rig: &Rig) -> Value {
    rig.get("AgentPolicy", "", POLICY).await.unwrap()
}

/// Updated, updating, failed.
fn counts(policy: &Value) -> [i64; 3] {
    ["updatedClusters", "updatingClusters", "failedClusters"].map(|field| policy["status"][field].as_i64().unwrap())
}

fn is_halted_at(policy: &Value, cluster: &str, why: &str) -> bool {
    let told = format!("halted at {ADMIN_NAMESPACE}/{cluster}: {why}");
    condition(policy, "Stalled") == "True/Halted" && message(policy, "Stalled").ends_with(&told)
}

/// A cluster that should poll each second is silent after nine; by the rig's own interval, after a minute and a half.
async fn poll_every(rig: &Rig, cluster: &str, interval: &str) {
    rig.edit("Cluster", ADMIN_NAMESPACE, cluster, |cluster| {
        cluster["spec"]["pollInterval"] = interval.into()
    })
    .await;
}

/// One after the other.
async fn roll_out(rig: &Rig, agents: &mut [Agent], wanted: &AgentSettings) {
    for turn in 0..agents.len() {
        let names = &NAMES[..=turn];
        wait_asked(rig, agents, wanted, names).await;
        // Being on the way is not being there.
        let settings = asked_of(rig, &agents[turn]).await.unwrap().digest();
        say(rig, &mut agents[turn], None, AgentUpdate::Updating { settings }).await;
        wait_asked(rig, agents, wanted, names).await;
        let policy = policy(rig).await;
        assert_eq!(condition(&policy, "Reconciling"), "True/Updating", "{policy}");
        assert_eq!(counts(&policy), [i64::try_from(turn).unwrap(), 1, 0]);
        take_over(rig, &mut agents[turn]).await;
    }
    rig.wait_for("AgentPolicy", "", POLICY, |policy| {
        condition(policy, "Ready") == "True/Updated"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_changes_one_cluster_after_the_other() {
    let rig = Rig::start().await;
    let mut agents = join_all(&rig).await;
    let wanted = settings("0.2.0");
    create_policy(&rig, &wanted).await;
    roll_out(&rig, &mut agents, &wanted).await;
    let policy = policy(&rig).await;
    assert_eq!(message(&policy, "Ready"), "4 of 4 agents are as the policy says");
    assert_eq!((counts(&policy), &policy["status"]["clusters"]), ([4, 0, 0], &json!(4)));
}

/// Until the policy is halted at `b`, which says nothing after it changed; `a` and `c` have changed, `d` has not. Answers the
/// agents of these, and the silent one.
async fn lose_second(rig: &Rig, wanted: &AgentSettings) -> (Vec<Agent>, Agent) {
    let mut agents = join_all(rig).await;
    create_policy(rig, wanted).await;
    for turn in 0..2 {
        wait_asked(rig, &agents, wanted, &NAMES[..=turn]).await;
        take_over(rig, &mut agents[turn]).await;
    }
    wait_asked(rig, &agents, wanted, &["a", "b", "c"]).await;
    let silent = agents.remove(1);
    poll_every(rig, "b", "1s").await;
    rig.pass(10);
    let policy = rig
        .wait_for("AgentPolicy", "", POLICY, |policy| is_halted_at(policy, "b", LOST))
        .await;
    assert_eq!(counts(&policy), [2, 1, 0]);
    // What is on its way gets there, and nobody follows.
    take_over(rig, &mut agents[1]).await;
    wait_asked(rig, &agents, wanted, &["a", "c"]).await;
    (agents, silent)
}

/// It polls again, and `d` gets its turn.
async fn hear_again(rig: &Rig, mut agents: Vec<Agent>, silent: &Agent, wanted: &AgentSettings) {
    silent.wait_polled(rig).await;
    look_again(rig).await;
    wait_asked(rig, &agents, wanted, &["a", "c", "d"]).await;
    poll_every(rig, "b", "30s").await;
    take_over(rig, &mut agents[2]).await;
    rig.wait_for("AgentPolicy", "", POLICY, |policy| {
        condition(policy, "Ready") == "True/Updated"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_falls_silent_after_it_changed_halts_the_rest_until_it_is_heard_again() {
    let rig = Rig::start().await;
    let wanted = settings("0.2.0");
    let (agents, silent) = lose_second(&rig, &wanted).await;
    let policy = policy(&rig).await;
    assert!(is_halted_at(&policy, "b", LOST), "{policy}");
    assert_eq!(counts(&policy), [3, 0, 0]);
    hear_again(&rig, agents, &silent, &wanted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_that_was_restarted_has_not_heard_the_silent_one() {
    let rig = Rig::start().await;
    let wanted = settings("0.2.0");
    let (agents, silent) = lose_second(&rig, &wanted).await;
    let rig = rig.restart().await;
    rig.wait_loaded().await;
    wait_asked(&rig, &agents, &wanted, &["a", "c"]).await;
    // For all it knows, nobody could be heard while it was away.
    rig.pass(10);
    rig.wait_for("AgentPolicy", "", POLICY, |policy| is_halted_at(policy, "b", LOST))
        .await;
    wait_asked(&rig, &agents, &wanted, &["a", "c"]).await;
    hear_again(&rig, agents, &silent, &wanted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_falls_silent_on_its_way_keeps_the_rest_waiting_and_halts_them_after_its_deadline() {
    let rig = Rig::start().await;
    let mut agents = join_all(&rig).await;
    let wanted = settings("0.2.0");
    create_policy(&rig, &wanted).await;
    wait_asked(&rig, &agents, &wanted, &["a"]).await;
    take_over(&rig, &mut agents[0]).await;
    wait_asked(&rig, &agents, &wanted, &["a", "b"]).await;
    let silent = agents.remove(1);
    poll_every(&rig, "b", "1s").await;
    let is_silent = |cluster: &Value| condition(cluster, "Ready") == "False/AgentSilent";
    rig.pass(10);
    rig.wait_for("Cluster", ADMIN_NAMESPACE, "b", is_silent).await;
    wait_asked(&rig, &agents, &wanted, &["a"]).await;
    let rig = rig.restart().await;
    rig.wait_loaded().await;
    wait_asked(&rig, &agents, &wanted, &["a"]).await;
    let before = policy(&rig).await;
    assert_eq!(condition(&before, "Reconciling"), "True/Updating", "{before}");
    assert_eq!(counts(&before), [1, 1, 0]);

    // Seven minutes later: the deadline, and what it takes to say so.
    let uid = silent.joined.as_ref().unwrap().cluster.uid.clone();
    let row = load_agent_update(&mut rig.store.tables().await.unwrap(), &uid)
        .await
        .unwrap()
        .unwrap();
    let row = AgentUpdateRow {
        assigned: row.assigned - 421,
        ..row
    };
    rig.store
        .transact(move |tx| Box::pin(async move { save_agent_update(tx, &row).await }))
        .await
        .unwrap();
    look_again(&rig).await;
    let late = "the agent has not reported under its new settings within 420 s";
    let after = policy(&rig).await;
    assert!(is_halted_at(&after, "b", late), "{after}");
    assert_eq!(counts(&after), [1, 0, 1]);
    // It comes back, to what it was before, and that is no success.
    agents.insert(1, silent);
    take_over(&rig, &mut agents[1]).await;
    wait_asked(&rig, &agents, &wanted, &["a"]).await;
    assert!(asked_of(&rig, &agents[1]).await.is_none(), "as it was installed");
    let after = policy(&rig).await;
    assert!(is_halted_at(&after, "b", late), "{after}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_goes_back_halts_the_rest_and_is_asked_for_what_it_had() {
    let rig = Rig::start().await;
    let mut agents = join_all(&rig).await;
    let (first, second) = (settings("0.2.0"), settings("0.3.0"));
    create_policy(&rig, &first).await;
    roll_out(&rig, &mut agents, &first).await;
    rig.edit("AgentPolicy", "", POLICY, |policy| {
        policy["spec"]["image"] = json!(second.image)
    })
    .await;
    wait_asked(&rig, &agents, &second, &["a"]).await;
    take_over(&rig, &mut agents[0]).await;
    wait_asked(&rig, &agents, &second, &["a", "b"]).await;

    let why = "the new version did not become ready: ErrImagePull";
    let failed = AgentUpdate::Failed {
        settings: second.digest(),
        reason: why.to_owned(),
    };
    say(&rig, &mut agents[1], Some(first.digest()), failed).await;
    wait_asked(&rig, &agents, &second, &["a"]).await;
    assert_eq!(asked(&rig, &agents, &first).await, ["b", "c", "d"]);
    let halted = policy(&rig).await;
    assert!(is_halted_at(&halted, "b", why), "{halted}");
    assert_eq!(counts(&halted), [1, 0, 1]);
    let went_back = |cluster: &Value| {
        condition(cluster, "AgentUpdated") == "False/WentBack" && message(cluster, "AgentUpdated") == why
    };
    rig.wait_for("Cluster", ADMIN_NAMESPACE, "b", went_back).await;

    // That it is what it was is no reason to go on.
    take_over(&rig, &mut agents[1]).await;
    wait_asked(&rig, &agents, &second, &["a"]).await;
    let rig = rig.restart().await;
    rig.wait_loaded().await;
    wait_asked(&rig, &agents, &second, &["a"]).await;
    assert_eq!(asked(&rig, &agents, &first).await, ["b", "c", "d"]);
    let halted = policy(&rig).await;
    assert!(is_halted_at(&halted, "b", why), "{halted}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_row_stops_the_policy_that_selects_its_cluster_and_no_other() {
    let rig = Rig::start().await;
    let mut uids = Vec::new();
    for name in ["east", "west"] {
        uids.push(rig.cluster(name).await);
        rig.edit("Cluster", ADMIN_NAMESPACE, name, |cluster| {
            cluster["metadata"]["labels"]["place"] = name.into()
        })
        .await;
    }
    let _east = Agent::join(&rig, "east").await;
    let west = Agent::join(&rig, "west").await;
    let damaged = AgentUpdateRow {
        cluster_uid: uids[0].clone(),
        settings: "{".to_owned(),
        ..AgentUpdateRow::default()
    };
    rig.store
        .transact(move |tx| Box::pin(async move { save_agent_update(tx, &damaged).await }))
        .await
        .unwrap();

    for name in ["east", "west"] {
        let selector = json!({"matchLabels": {"place": name}});
        rig.create(
            "AgentPolicy",
            "",
            name,
            json!({"spec": {"clusterSelector": selector, "log": "debug"}}),
        )
        .await;
    }
    let stalled = |policy: &serde_json::Value| condition(policy, "Stalled") == "True/RowDamaged";
    let policy = rig.wait_for("AgentPolicy", "", "east", stalled).await;
    assert!(message(&policy, "Stalled").contains(&uids[0]), "{policy}");
    assert_eq!(
        (&policy["status"]["clusters"], &policy["status"]["updatingClusters"]),
        (&json!(1), &json!(0))
    );
    west.wait_polled(&rig).await;
    rig.wait_until("the other policy goes on", async || {
        let settings = west.desired(&rig).await.agent;
        settings.is_some_and(|settings| settings.log.as_deref() == Some("debug"))
    })
    .await;
}
