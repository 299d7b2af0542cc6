//! Hooks and tests on a real node: the result of their containers decides about versions, and the hub has their output.

use anyhow::{Context as _, Result, ensure};
use farwater_api::{GitRepository, ServiceDeployment, history::HistoryEntry, hooks::HookRun};
use farwater_testkit::{
    Site,
    images::BUSYBOX,
    site::{CLUSTER, PATIENCE, SERVICE},
    wait_for,
};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

const JUNIT: &str = "<testsuites>\n<testsuite name=\"smoke\">\n<testcase name=\"answers\"/>\n<testcase name=\"adds up\">\n\
                     <failure message=\"4\"/>\n</testcase>\n</testsuite>\n</testsuites>\n";

fn script(lines: &str) -> Value {
    json!(["/bin/sh", "-c", lines])
}

/// A test that prints its location, writes a JUnit file to its log, and ends with 3.
fn failing_test() -> Value {
    let lines: Vec<String> = JUNIT.lines().map(|line| format!("echo '{line}'")).collect();
    let script = script(&format!("echo begins; {}; echo ends; exit 3", lines.join("; ")));
    json!({"name": "smoke", "image": BUSYBOX, "command": script, "timeout": "1m", "retries": 1})
}

fn hanging_test() -> Value {
    json!({"name": "hangs", "image": BUSYBOX, "command": script("echo hanging; sleep 100000"), "timeout": "5s"})
}

/// A migration that takes a while and says so.
const MIGRATION: &str = r#"
apiVersion: batch/v1
kind: Job
metadata: {name: migrate, annotations: {helm.sh/hook: "pre-install,pre-upgrade"}}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, image: "localhost/farwater/busybox:test", imagePullPolicy: Never, command: [/bin/sh, -c, "sleep 2; echo migrated"]}]
"#;
const SETTINGS: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {a: '1'}\n";

async fn deploy(site: &Site, tests: Value) -> Result<()> {
    let repository = site.git.create("apps")?;
    repository.commit(
        "main",
        &[("web/migrate.yaml", MIGRATION), ("web/settings.yaml", SETTINGS)],
    )?;
    let spec = serde_json::from_value(json!({"url": site.git.url("apps")}))?;
    site.ours()
        .await?
        .create(&PostParams::default(), &GitRepository::new("apps", spec))
        .await?;
    let spec = json!({
        "clusterRef": {"name": CLUSTER}, "targetNamespace": SERVICE, "sourceRef": {"name": "apps"}, "path": "web", "tests": tests,
    });
    let service = ServiceDeployment::new(SERVICE, serde_json::from_value(spec)?);
    site.ours().await?.create(&PostParams::default(), &service).await?;
    Ok(())
}

/// Waits until `Ready` has this reason. Returns the message.
async fn until(site: &Site, reason: &str) -> Result<String> {
    let last = std::sync::Mutex::new(String::new());
    let what = format!("the service to be {reason}");
    let waited = wait_for(&what, 2 * PATIENCE, || async {
        let service: ServiceDeployment = site.ours().await?.get(SERVICE).await?;
        let conditions = service.status.unwrap_or_default().conditions;
        let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
        *last.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = format!("{ready:?}");
        Ok(ready.filter(|ready| ready.reason == reason).map(|ready| ready.message))
    });
    waited.await.with_context(|| format!("last: {last:?}"))
}

fn hooks(site: &Site) -> Result<Vec<HookRun>> {
    Ok(serde_json::from_str(
        &site.farwater(&["hooks", SERVICE, "-o", "json"])?,
    )?)
}

fn message(runs: &[HookRun], name: &str) -> String {
    let found = runs.iter().find(|run| run.report.name() == name);
    found
        .map(|run| format!("{:?}: {}", run.report.state, run.report.message))
        .unwrap_or_default()
}

async fn pods(site: &Site) -> Result<Vec<String>> {
    let pods = site.theirs::<Pod>(SERVICE).await?.list(&ListParams::default()).await?;
    Ok(pods.items.into_iter().filter_map(|pod| pod.metadata.name).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_test_that_fails_fails_its_version_and_its_junit_file_is_on_the_hub() -> Result<()> {
    let site = Site::start().await?;
    site.install()?;
    site.join()?;
    site.poll_every("1s").await?;
    deploy(&site, json!([failing_test(), hanging_test()])).await?;

    let told = until(&site, "TestFailed").await?;
    ensure!(
        told.contains("failed its tests: test ") && told.contains(" failed: "),
        "{told}"
    );
    let runs = hooks(&site)?;
    let smoke = message(&runs, "smoke");
    ensure!(
        smoke.starts_with("Failed: exit code 3; 1 of 2 test cases failed: adds up"),
        "{smoke}"
    );
    let hangs = message(&runs, "hangs");
    ensure!(
        hangs.starts_with("Failed: ") && hangs.contains("DeadlineExceeded"),
        "{hangs}"
    );
    let tries = pods(&site)
        .await?
        .into_iter()
        .filter(|pod| pod.starts_with("web-test-smoke-"))
        .count();
    ensure!(tries == 2, "one retry makes two tries, not {tries}");
    ensure!(message(&runs, "migrate").starts_with("Succeeded"), "{runs:?}");
    ensure!(
        runs.iter()
            .all(|run| run.report.log.is_none() && run.report.junit.is_none()),
        "only where they are asked for"
    );
    // The hook was ended, and the cluster has no pod of it any more.
    wait_for("the hanging test's pod to be gone", PATIENCE, || async {
        Ok((!pods(&site).await?.iter().any(|pod| pod.starts_with("web-test-hangs"))).then_some(()))
    })
    .await?;

    ensure!(site.farwater(&["hooks", SERVICE, "smoke", "--junit"])? == JUNIT);
    ensure!(site.farwater(&["hooks", SERVICE, "smoke", "--log"])? == "begins\nends\n");
    ensure!(site.farwater(&["hooks", SERVICE, "migrate", "--log"])? == "migrated\n");
    ensure!(site.farwater(&["hooks", SERVICE, "hangs", "--log"])? == "hanging\n");
    let history: Vec<HistoryEntry> = serde_json::from_str(&site.farwater(&["history", SERVICE, "-o", "json"])?)?;
    let results: Vec<String> = history
        .iter()
        .map(|entry| format!("{:?} {}", entry.result, entry.message))
        .collect();
    ensure!(
        results.len() == 1 && results[0].starts_with("Failed ") && results[0].contains("failed: "),
        "{results:?}"
    );
    let why = site.run(&["why", SERVICE])?;
    let why = String::from_utf8_lossy(&why.stdout).into_owned();
    ensure!(
        why.contains("failed its tests") && why.contains("hooks web -n farwater-admin"),
        "{why}"
    );
    // Applied objects stay.
    ensure!(
        site.theirs::<ConfigMap>(SERVICE)
            .await?
            .get_opt("settings")
            .await?
            .is_some()
    );

    // When the tests pass, the same version becomes healthy. Its migration does not run again.
    let migration = runs
        .iter()
        .find(|run| run.report.name() == "migrate")
        .context("the migration ran")?
        .report
        .run;
    let passing = json!([{"name": "smoke", "image": BUSYBOX, "command": script("echo fine"), "timeout": "1m"}]);
    let patch = Patch::Merge(json!({"spec": {"tests": passing}}));
    site.ours::<ServiceDeployment>()
        .await?
        .patch(SERVICE, &PatchParams::default(), &patch)
        .await?;
    until(&site, "Applied").await?;
    let runs = hooks(&site)?;
    ensure!(message(&runs, "smoke") == "Succeeded: ", "{runs:?}");
    ensure!(runs.iter().any(|run| run.report.run == migration), "{runs:?}");
    wait_for("the version to be healthy", PATIENCE, || async {
        let history: Vec<HistoryEntry> = serde_json::from_str(&site.farwater(&["history", SERVICE, "-o", "json"])?)?;
        Ok((history.len() == 1 && format!("{:?}", history[0].result) == "Healthy").then_some(()))
    })
    .await?;
    let wrong = Patch::Merge(json!({"spec": {"tests": [{"name": "smoke", "image": BUSYBOX, "timeout": "2d"}]}}));
    let refused = site
        .ours::<ServiceDeployment>()
        .await?
        .patch(SERVICE, &PatchParams::default(), &wrong)
        .await;
    ensure!(refused.is_err_and(|error| error.to_string().contains("spec.tests[0].timeout")));
    Ok(())
}
