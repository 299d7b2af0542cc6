//! The command line on the whole way from a commit to running objects, and back to the commit that broke it.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result, ensure};
use farwater_e2e::{Fleet, PATIENCE, config_map};
use farwater_testkit::{Tools, farwater::program, shared, wait_for};
use serde_json::Value;

struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

/// The program as its user starts it, with the administrator's kubeconfig.
struct Cli {
    kubeconfig: PathBuf,
}

impl Cli {
    fn run(&self, arguments: &[&str]) -> Result<Ran> {
        let mut command = Command::new(program("farwater")?);
        command.args(arguments).env_clear().env("HOME", "/nonexistent").env("FARWATER_KUBECONFIG", &self.kubeconfig);
        let output = command.output()?;
        let code = output.status.code().context("farwater was killed")?;
        Ok(Ran { code, stdout: String::from_utf8(output.stdout)?, stderr: String::from_utf8(output.stderr)? })
    }

    fn expect(&self, code: i32, arguments: &[&str]) -> Result<Ran> {
        let ran = self.run(arguments)?;
        ensure!(ran.code == code, "{arguments:?} ended with {}:\n{}\n{}", ran.code, ran.stdout, ran.stderr);
        Ok(ran)
    }

    fn why(&self, service: &str) -> Result<Value> {
        Ok(serde_json::from_str(&self.run(&["why", service, "-o", "json"])?.stdout)?)
    }

    /// Until the first broken link is this one; returns the finding.
    async fn until_broken_at(&self, service: &str, link: &str) -> Result<Value> {
        wait_for(&format!("{service} to be broken at {link}"), PATIENCE, || async {
            let finding = self.why(service)?;
            ensure!(finding["standing"] == "broken" && finding["link"] == link, "{finding}");
            Ok(Some(finding))
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_is_deployed_watched_explained_and_put_right() -> Result<()> {
    let mut fleet = Fleet::start().await?;
    fleet.join("east", shared(1).await?).await?;
    let repository = fleet.git.create("infra")?;
    let (one, two, three) = (config_map("one", "a"), config_map("two", "b"), config_map("three", "c"));
    repository.commit("main", &[("web/one.yaml", &one), ("web/two.yaml", &two), ("web/three.yaml", &three)])?;
    let cli = Cli { kubeconfig: fleet.hub.kubeconfig() };
    let (url, target) = (fleet.git.url("infra"), fleet.namespace("web"));

    let deploy =
        ["deploy", &url, "--path", "web", "--cluster", "east", "--namespace", &target, "--wait", "--timeout", "90s"];
    let ran = cli.expect(0, &deploy)?;
    ensure!(ran.stdout.ends_with("farwater-admin/web healthy\n"), "{}", ran.stdout);

    let tree = cli.expect(0, &["tree", "web"])?.stdout;
    ensure!(tree.starts_with("● farwater-admin/east  Ready"), "{tree}");
    ensure!(tree.contains("└─ ✓ web  Healthy") && tree.contains("✓ ConfigMap one  Current"), "{tree}");
    ensure!(cli.expect(0, &["objects", "web", "-o", "name"])?.stdout.contains("configmap/three\n"));
    ensure!(cli.expect(0, &["why", "web"])?.stdout.starts_with("ok: web is healthy at main@sha1:"));
    ensure!(cli.expect(0, &["wait", "--all"])?.stdout == "farwater-admin/web healthy\n");

    // A commit that breaks one object: the first broken link is that object, by its name.
    repository.change("main", &[("web/two.yaml", Some(&config_map("two", "[no, string]")))])?;
    fleet.reconcile("infra").await?;
    let finding = cli.until_broken_at("web", "objects").await?;
    ensure!(finding["sentence"].as_str().is_some_and(|s| s.contains("/two was refused: ")), "{finding}");
    cli.expect(1, &["wait", "web", "--timeout", "60s"])?;
    repository.change("main", &[("web/two.yaml", Some(&two))])?;
    fleet.reconcile("infra").await?;
    cli.expect(0, &["wait", "web", "--timeout", "90s"])?;

    // A commit that takes most objects away is held; the printed command is what lets it go.
    repository.change("main", &[("web/two.yaml", None), ("web/three.yaml", None)])?;
    fleet.reconcile("infra").await?;
    let finding = cli.until_broken_at("web", "prune").await?;
    let approve = finding["next"]["kubectl"].as_str().context("no command is given")?.to_owned();
    let mut kubectl = Command::new(Tools::build()?.kubectl());
    let output = kubectl.env("KUBECONFIG", &cli.kubeconfig).args(approve.split(' ')).output()?;
    ensure!(output.status.success(), "kubectl {approve}: {}", String::from_utf8_lossy(&output.stderr));
    wait_for("the approved prune to be done", PATIENCE, || async {
        let names = cli.expect(0, &["objects", "web", "-o", "name"])?.stdout;
        ensure!(names.contains("configmap/one") && !names.contains("configmap/two"), "{names}");
        cli.expect(0, &["why", "web"])?;
        Ok(Some(()))
    })
    .await
}
