//! Plants hundreds of secrets in every input, and searches for them in every output and store.

mod canary;
mod gates;
mod handed;
mod objects;
mod page;
mod search;
mod sources;
mod tells;
mod vaults;

use anyhow::{Context as _, Result, ensure};
use farwater_api::ADMIN_NAMESPACE;
use farwater_e2e::{Fleet, collector::Collector, config_map, sops::until_age_key};
use farwater_testkit::{Launch, Plane, Tools, ports, shared};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{Api, api::PostParams};
use serde_json::json;

use self::{
    canary::{HANDED, Marks, lines, values},
    gates::Gates,
    handed::Places,
    sources::Sources,
    tells::Tells,
    vaults::Vaults,
};

/// Secrets of the hub: those with values, and those with credentials.
const WITH_VALUES: &str = "own shared handed plugin git below";
const WITH_CREDENTIALS: &str = "ssh plain app proxy docker charts certificates hook chat chat-hook chat-flow mail github gitlab gitea keeper gauge pusher env";

/// Starts a hub with full logging, to its own file and to a collector.
fn loud_hub(collector: &Collector) -> Launch {
    collector.launch().variable("FARWATER_LOG_LEVEL", "debug")
}

/// Starts the agent of `east` in the same way. Returns the address of its metrics.
async fn join_loudly(fleet: &mut Fleet, plane: &Plane, collector: &Collector, more: &[(&str, &str)]) -> Result<String> {
    let metrics = format!("127.0.0.1:{}", ports::free()?);
    let launch = collector.launch().variable("FARWATER_LOG", "debug");
    let launch = more
        .iter()
        .fold(launch, |launch, (name, value)| launch.variable(name, value));
    let launch = Launch {
        arguments: vec!["--health-listen".to_owned(), metrics.clone()],
        ..launch
    };
    fleet.join_with("east", plane, launch).await?;
    Ok(metrics)
}

/// Address of the page with these services open.
fn opened(services: &[String]) -> String {
    let names: Vec<String> = services
        .iter()
        .map(|name| format!("{ADMIN_NAMESPACE}/{name}"))
        .collect();
    format!("?open={}", names.join(","))
}

fn set(name: &str) -> String {
    format!("?set={ADMIN_NAMESPACE}/{name}")
}

/// A user who may read Secrets in the hub's API sees the values there. They appear nowhere else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_planted_secrets_are_found_nowhere() -> Result<()> {
    ensure!(HANDED.iter().map(|(_, count)| count).sum::<usize>() >= 200);
    let (plane, marks) = (shared(1).await?, Marks::new());
    let (places, collector) = (Places::new().await?, Collector::start().await?);
    let mut hub = loud_hub(&collector).variable("FARWATER_SECRET_BACKENDS", &places.path("backends.yaml")?);
    for (name, value) in values("environment") {
        hub = hub.variable(&name, value.as_str().unwrap_or_default());
    }
    let mut fleet = Fleet::launch(hub).await?;
    let renderer = Tools::find_renderers()?.renderer().to_string_lossy().into_owned();
    let plugins = places.path("plugins.yaml")?;
    let metrics = join_loudly(&mut fleet, plane, &collector, &[("FARWATER_PLUGINS", &plugins)]).await?;
    let recipient = until_age_key(&fleet, "east").await?;

    // Secrets that the cluster itself has.
    let (client, namespace) = (plane.client().await?, fleet.namespace("app"));
    let made = json!({"metadata": {"name": namespace}});
    Api::<Namespace>::all(client.clone())
        .create(&PostParams::default(), &serde_json::from_value(made)?)
        .await?;
    let made_here = json!({"metadata": {"name": "made-here"}, "stringData": values("cluster")});
    objects::create_secret(&client, &namespace, made_here).await?;

    let files = handed::files(&recipient)?;
    let infra = fleet.git.create("infra")?;
    infra.commit(
        "main",
        &files
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
            .collect::<Vec<_>>(),
    )?;
    handed::plant(&fleet, &places).await?;
    fleet
        .deploy_with("app", "east", "infra", "app", handed::stated())
        .await?;
    fleet
        .until_applied("app", &infra.branch("main").context("a commit")?)
        .await?;
    handed::check_arrived(&Api::namespaced(client.clone(), &namespace)).await?;
    handed::stamp(&fleet).await?;
    handed::check_explained(&fleet)?;
    handed::check_plan(&fleet, &marks, &files)?;
    search::check_found(&fleet, &marks, WITH_VALUES).await?;

    handed::check_errors(&fleet, &marks).await?;
    handed::deliver_all(&fleet, &infra).await?;
    handed::break_rest(&fleet, &marks, &places).await?;

    let said = search::check_command_line(
        &fleet,
        &marks,
        &[
            &["explain", "parameters", "app", "-o", "wide"],
            &["explain", "parameters", "app", "-o", "json"],
            &["explain", "digest", "app"],
            &["plan", "app"],
            &["plan", "app", "-o", "json"],
            &["history", "app", "-o", "json"],
            &["hooks", "app", "-o", "json"],
            &["render", "app", "--renderer", &renderer, "--plugins", &plugins],
        ],
    )
    .await?;
    for word in ["configuration.own0", "Secret own has no key own1"] {
        ensure!(said.contains(word), "no output has {word}");
    }
    search::check_answers(&fleet, &marks, &metrics, &collector).await?;
    let services = search::names(&fleet, "servicedeployments").await?;
    page::check_page(
        &fleet,
        &marks,
        &[
            (String::new(), "bad-plugin"),
            (opened(&services), "farwater why bad-plugin"),
            ("?state=failed&q=app".to_owned(), "Secret own has no key own1"),
            (set("stamped"), "farwater rollout status stamped"),
        ],
    )?;
    search::check_kept(&fleet, &marks, client, &["told"]).await?;
    handed::check_renders(&fleet)
}

/// Parts of the services and the last stage.
fn infra() -> [(&'static str, String); 3] {
    let made = "apiVersion: v1\nkind: Secret\nmetadata: {name: made}\nstringData:\n".to_owned();
    let made = made + &lines("vault", "configuration") + &lines("role", "configuration");
    [
        ("app/a.yaml", config_map("a", "one")),
        ("app/made.yaml.liquid", made),
        ("web/a.yaml", config_map("a", "one")),
    ]
}

/// Servers that the hub signs in to, notifies or asks: with right or wrong credentials, the hub shows nothing of their
/// answers to others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_hub_signs_in_with_is_found_nowhere() -> Result<()> {
    let (plane, mut marks, collector) = (shared(2).await?, Marks::new(), Collector::start().await?);
    let mut vaults = Vaults::start(&mut marks).await?;
    let mut sources = Sources::start(&mut marks).await?;
    let (tells, gates) = (Tells::start(&mut marks).await?, Gates::start().await?);
    let hub = loud_hub(&collector)
        .variable("FARWATER_SECRET_BACKENDS", &vaults.configuration()?.to_string_lossy())
        .variable("FARWATER_CREDENTIAL_PROGRAM", &sources.program())
        .variable("FARWATER_ALLOW_PRIVATE_LINKS", "127.0.0.0/8");
    let mut fleet = Fleet::launch(hub).await?;
    let metrics = join_loudly(&mut fleet, plane, &collector, &[]).await?;

    // In a folder, as on Git hosts.
    let repository = fleet.git.create("team/infra")?;
    let older = repository.commit("main", &infra().each_ref().map(|(path, text)| (*path, text.as_str())))?;
    let commit = repository.change("main", &[("web/a.yaml", Some(&config_map("a", "two")))])?;
    let url = fleet.git.url("team/infra");
    objects::create(&fleet, "GitRepository", "infra", json!({"url": url})).await?;
    fleet
        .deploy_with(
            "app",
            "east",
            "infra",
            "app",
            json!({"parameters": vaults::parameters()}),
        )
        .await?;
    sources.sign_in(&fleet, &marks).await?;
    vaults.sign_in(&fleet, &marks, "app").await?;
    tells.sign_in(&fleet, &marks).await?;
    tells.push(&commit);
    fleet.until_applied("app", &commit).await?;
    let client = plane.client().await?;
    check_made(&Api::namespaced(client.clone(), &fleet.namespace("app"))).await?;
    gates.create(&fleet, &url, &older).await?;
    sources.deliver(&fleet).await?;
    gates.ask(&fleet, &marks).await?;
    gates.push(&fleet, &marks).await?;
    tells.check_told(&fleet, &marks, &commit, "web").await?;
    search::check_found(&fleet, &marks, WITH_CREDENTIALS).await?;

    tokio::try_join!(vaults.refuse(&fleet, &marks, "app"), sources.refuse(&fleet, &marks))?;
    let branch = ["impact", "main", "--source", "infra"];
    let explained = ["explain", "parameters", "app", "-o", "json"];
    let said = search::check_command_line(&fleet, &marks, &[&branch, &explained, &["plan", "app"]]).await?;
    for word in [
        "HostKeyNotTrusted",
        "configuration.vault0",
        "git-lfs-authenticate",
        "farwater/promote/web/beyond",
    ] {
        ensure!(said.contains(word), "no output has {word}");
    }
    search::check_answers(&fleet, &marks, &metrics, &collector).await?;
    let services = search::names(&fleet, "servicedeployments").await?;
    let views = [
        (String::new(), "of-ssh"),
        (opened(&services), "farwater why of-ssh"),
        (set("web"), "farwater rollout status web"),
        (set("none"), "There is no ServiceSet"),
    ];
    page::check_page(&fleet, &marks, &views)?;
    search::check_kept(&fleet, &marks, client, &[]).await
}

/// Checks that Vault's values are where they belong.
async fn check_made(there: &Api<Secret>) -> Result<()> {
    let data = there.get("made").await?.data.unwrap_or_default();
    for (key, value) in values("vault").into_iter().chain(values("role")) {
        let found = data
            .get(&key)
            .map(|value| String::from_utf8_lossy(&value.0).into_owned());
        ensure!(found.as_deref() == value.as_str(), "{key} is {found:?}");
    }
    Ok(())
}
