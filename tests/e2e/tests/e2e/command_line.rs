//! The CLI on the way back: from a broken or held service to the commit and the command that fix it. The way there is
//! tested in `by_hand.rs`.

use anyhow::{Context as _, Result, ensure};
use farwater_e2e::{Fleet, PATIENCE, cli::Cli, config_map};
use farwater_testkit::{shared, wait_for};
use serde_json::Value;

/// Waits until the first broken link is this one. Returns the finding.
async fn until_broken_at(cli: &Cli, service: &str, link: &str) -> Result<Value> {
    wait_for(&format!("{service} to be broken at {link}"), PATIENCE, || async {
        let finding = cli.why(service)?;
        ensure!(finding["standing"] == "broken" && finding["link"] == link, "{finding}");
        Ok(Some(finding))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_broken_or_held_is_explained_and_put_right() -> Result<()> {
    let mut fleet = Fleet::start().await?;
    fleet.join("east", shared(1).await?).await?;
    let (one, two, three) = (config_map("one", "a"), config_map("two", "b"), config_map("three", "c"));
    let files = [
        ("web/one.yaml", one.as_str()),
        ("web/two.yaml", &two),
        ("web/three.yaml", &three),
    ];
    let repository = fleet.repository("infra", &files).await?;
    fleet.deploy("web", "east", "infra", "web").await?;
    let cli = fleet.cli();
    cli.expect(0, &["wait", "web", "--timeout", "90s"])?;

    // What is applied is not the pushed version while the source lacks its branch.
    let follow = |branch: &str| {
        let patch = format!(r#"{{"spec": {{"ref": {{"branch": "{branch}"}}}}}}"#);
        cli.kubectl(&[
            "patch",
            "gitrepository",
            "infra",
            "-n",
            "farwater-admin",
            "--type",
            "merge",
            "-p",
            &patch,
        ])
    };
    follow("gone")?;
    let ran = cli.expect(1, &["wait", "web", "--for", "applied", "--fetch", "--timeout", "60s"])?;
    ensure!(
        ran.stdout.is_empty() && ran.stderr.contains("web may not have the pushed revision"),
        "{ran:?}"
    );
    follow("main")?;
    cli.expect(0, &["wait", "web", "--fetch", "--timeout", "60s"])?;

    // A commit breaks one object: the first broken link is that object, by name.
    repository.change("main", &[("web/two.yaml", Some(&config_map("two", "[no, string]")))])?;
    fleet.reconcile("infra").await?;
    let finding = until_broken_at(&cli, "web", "objects").await?;
    ensure!(
        finding["sentence"]
            .as_str()
            .is_some_and(|s| s.contains("/two was refused: ")),
        "{finding}"
    );
    cli.expect(1, &["wait", "web", "--timeout", "60s"])?;
    repository.change("main", &[("web/two.yaml", Some(&two))])?;
    fleet.reconcile("infra").await?;
    cli.expect(0, &["wait", "web", "--timeout", "90s"])?;

    // A commit removes most objects and is held. The printed command approves it; a script adds the digest.
    repository.change("main", &[("web/two.yaml", None), ("web/three.yaml", None)])?;
    fleet.reconcile("infra").await?;
    let finding = until_broken_at(&cli, "web", "prune").await?;
    let approve = finding["next"]["farwater"].as_str().context("no command is given")?;
    let digest = cli
        .expect(
            0,
            &[
                "get",
                "servicedeployment/web",
                "-o",
                "jsonpath={.status.heldPrune.digest}",
            ],
        )?
        .stdout;
    let mut arguments: Vec<&str> = approve.split(' ').collect();
    arguments.extend(["--digest", digest.trim()]);
    cli.expect(0, &arguments)?;
    wait_for("the approved prune to be done", PATIENCE, || async {
        let names = cli.expect(0, &["objects", "web", "-o", "name"])?.stdout;
        ensure!(
            names.contains("configmap/one") && !names.contains("configmap/two"),
            "{names}"
        );
        cli.expect(0, &["why", "web"])?;
        Ok(Some(()))
    })
    .await
}
