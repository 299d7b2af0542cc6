//! What an agent needs at its first start: a one-time token, and rights in its cluster.

use std::{fs, path::Path};

use crate::support::{FakeHub, Service, config_map, outcome, turn::Turn};
use farwater_api::objects::Outcome;
use farwater_testkit::{Plane, PlaneOptions, Process, process::bare_command, wait_for};

fn agent(hub: &FakeHub, plane: &Plane, dir: &Path, token_file: &Path) -> Process {
    let mut command = bare_command(env!("CARGO_BIN_EXE_farwater-agent"));
    command.args(["--hub", &hub.url(), "--ca-pin", &hub.ca_pin()]);
    command
        .arg("--kubeconfig")
        .arg(plane.kubeconfig())
        .arg("--state-dir")
        .arg(dir.join("state"));
    command.arg("--join-token-file").arg(token_file);
    Process::spawn("farwater-agent", command, &dir.join("agent.log")).unwrap()
}

#[tokio::test]
async fn a_token_is_read_from_a_file_as_mounted_secrets_are() {
    let turn = Turn::take().await;
    let hub = FakeHub::start();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");

    for (content, said) in [(None, "No such file"), (Some(" \n"), "it is empty")] {
        if let Some(content) = content {
            fs::write(&file, content).unwrap();
        }
        let mut agent = agent(&hub, turn.plane, dir.path(), &file);
        assert_eq!(agent.wait(crate::support::PATIENCE).expect("it ends").code(), Some(2));
        let output = agent.output();
        assert!(
            output.contains(&format!("read join token from {}", file.display())),
            "{output}"
        );
        assert!(output.contains(said), "{output}");
    }

    fs::write(&file, format!("{}\n", crate::support::fake_hub::TOKEN)).unwrap();
    let agent = agent(&hub, turn.plane, dir.path(), &file);
    let joined = wait_for("the agent to poll", crate::support::PATIENCE, || async {
        Ok((hub.polls() > 0).then_some(()))
    });
    joined.await.unwrap_or_else(|e| panic!("{e:#}\n{}", agent.tail()));
    assert!(
        !agent.output().contains(crate::support::fake_hub::TOKEN),
        "the token is in the log"
    );
}

/// Accounts, roles and bindings as `farwater cluster join` makes them. docs/rights.md is made from the same objects.
fn rights() -> Vec<serde_json::Value> {
    let objects = farwater_manifests::Agent {
        bind_administrator: true,
        ..Default::default()
    }
    .objects();
    let is_right = |object: &serde_json::Value| {
        let kind = object["kind"].as_str().unwrap_or_default();
        ["Namespace", "ServiceAccount"].contains(&kind) || kind.contains("Role")
    };
    objects.into_iter().filter(is_right).collect()
}

#[tokio::test]
async fn a_hub_that_is_older_ends_a_join_and_is_waited_for_by_who_has_joined() {
    let turn = Turn::take().await;
    let hub = FakeHub::start();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    fs::write(&file, crate::support::fake_hub::TOKEN).unwrap();
    let older = format!(
        "is not known at {} (404): it is no hub, or one that is older than this agent",
        hub.url()
    );

    hub.be_older(true);
    let mut refused = agent(&hub, turn.plane, dir.path(), &file);
    assert_eq!(refused.wait(crate::support::PATIENCE).expect("it ends").code(), Some(2));
    let output = refused.output();
    assert!(
        output.contains(&older) && output.contains("upgrade the hub before its agents"),
        "{output}"
    );

    hub.be_older(false);
    let agent = agent(&hub, turn.plane, dir.path(), &file);
    let polls = async |more: u64| {
        let before = hub.polls();
        wait_for("polls", crate::support::PATIENCE, || async {
            Ok((hub.polls() >= before + more).then_some(()))
        })
        .await
    };
    polls(1).await.unwrap_or_else(|e| panic!("{e:#}\n{}", agent.tail()));
    hub.be_older(true);
    let said = || async { Ok(agent.output()[output.len()..].contains(&older).then_some(())) };
    wait_for("the agent to say so", crate::support::PATIENCE, said)
        .await
        .unwrap();
    hub.be_older(false);
    polls(2).await.unwrap_or_else(|e| panic!("{e:#}\n{}", agent.tail()));
}

/// The last request that the hub records may be one from before the agent followed it to new keys.
#[tokio::test]
async fn a_hub_that_has_missed_how_far_an_agent_followed_is_told_again_but_not_with_every_poll() {
    let turn = Turn::take().await;
    let hub = FakeHub::start();
    hub.poll_every(0.2);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    fs::write(&file, crate::support::fake_hub::TOKEN).unwrap();
    let agent = agent(&hub, turn.plane, dir.path(), &file);
    let polls = async |more: u64| {
        let before = hub.polls();
        let more = wait_for("polls", crate::support::PATIENCE, || async {
            Ok((hub.polls() >= before + more).then_some(()))
        });
        more.await.unwrap_or_else(|e| panic!("{e:#}\n{}", agent.tail()));
    };
    polls(5).await;
    let tokens = hub.tokens();

    hub.doubt(true);
    polls(30).await;
    let told = hub.tokens() - tokens;
    assert!((1..=6).contains(&told), "{told} tokens for 30 polls\n{}", agent.tail());

    hub.doubt(false);
    polls(2).await;
    let tokens = hub.tokens();
    polls(20).await;
    assert_eq!(hub.tokens(), tokens, "{}", agent.tail());
}

fn kubectl(plane: &Plane, arguments: &[&str]) -> String {
    let output = plane.kubectl().unwrap().args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test]
async fn the_rights_that_join_gives_are_enough() {
    // A plane of its own: on a shared one, an earlier agent has already made objects that this one needs rights for.
    let plane = Plane::start_with(PlaneOptions::without_nodes()).await.unwrap();
    let hub = FakeHub::start();
    let dir = tempfile::tempdir().unwrap();
    let roles = dir.path().join("roles.json");
    fs::write(
        &roles,
        serde_json::json!({"apiVersion": "v1", "kind": "List", "items": rights()}).to_string(),
    )
    .unwrap();
    kubectl(&plane, &["apply", "-f", roles.to_str().unwrap()]);
    let token = kubectl(&plane, &["create", "token", "farwater-agent", "-n", "farwater-system"]);

    // The plane's own kubeconfig, with the service account instead of the administrator.
    let mut config = kube::config::Kubeconfig::read_from(plane.kubeconfig()).unwrap();
    let user = serde_json::json!({"name": "farwater-agent", "user": {"token": token}});
    config.auth_infos = vec![serde_json::from_value(user).unwrap()];
    let current = config.current_context.clone();
    config
        .contexts
        .retain(|context| Some(&context.name) == current.as_ref());
    config.contexts[0].context.as_mut().unwrap().user = Some("farwater-agent".to_owned());
    let kubeconfig = dir.path().join("kubeconfig");
    fs::write(&kubeconfig, serde_json::to_vec(&config).unwrap()).unwrap();

    let log = dir.path().join("agent.log");
    let agent = crate::support::agent(&hub, &kubeconfig, &dir.path().join("state"), &log, true);
    let service = Service::new(
        &hub,
        "documented",
        &[("a.yaml", &config_map("a", "1")), ("b.yaml", &config_map("b", "1"))],
    );
    let entry = hub.set(service.entry());
    outcome(&hub, &entry, Outcome::Applied).await;
    let fewer = hub.set(service.with(&hub, &[("a.yaml", &config_map("a", "2"))]).entry());
    let report = outcome(&hub, &fewer, Outcome::Applied).await;
    assert_eq!(report.objects.len(), 1, "{report:#?}");
    let log = agent.output();
    assert!(!log.contains("forbidden") && !log.contains("WARN"), "{log}");
}
