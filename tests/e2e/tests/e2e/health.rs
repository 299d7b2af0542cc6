//! On a real node: an unhealthy service is explained with the kubelet's message.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use farwater_api::{GitRepository, ServiceDeployment};
use farwater_testkit::{
    Site,
    images::BUSYBOX,
    site::{CLUSTER, PATIENCE, SERVICE},
    wait_for,
};
use kube::api::PostParams;
use serde_json::json;

fn deployment(name: &str, container: &str) -> String {
    format!(
        "apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{{name: main, {container}}}]
"
    )
}

async fn until(site: &Site, arguments: &[&str], texts: &[&str]) -> Result<String> {
    let last = std::sync::Mutex::new(String::new());
    let what = format!("farwater {} to say {texts:?}", arguments.join(" "));
    let said = wait_for(&what, 2 * PATIENCE, || async {
        // It ends with 1 if something is wrong, which is expected here.
        let said = match site.farwater(arguments) {
            Ok(said) => said,
            Err(error) => format!("{error:#}"),
        };
        let found = texts.iter().all(|text| said.contains(text));
        *last.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = said.clone();
        Ok(found.then_some(said))
    });
    said.await
        .with_context(|| format!("last: {}", last.lock().map(|last| last.clone()).unwrap_or_default()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn why_names_the_image_that_is_not_there_and_the_exit_code() -> Result<()> {
    let site = Site::start().await?;
    site.install()?;
    site.join()?;
    site.poll_every("1s").await?;
    let repository = site.git.create("apps")?;
    let absent = deployment("absent", "image: 'localhost/farwater/nowhere:1'");
    let ends = deployment(
        "ends",
        &format!("image: '{BUSYBOX}', imagePullPolicy: Never, command: [/bin/sh, -c, 'exit 3']"),
    );
    repository.commit("main", &[("web/absent.yaml", &absent), ("web/ends.yaml", &ends)])?;
    let spec = serde_json::from_value(json!({"url": site.git.url("apps")}))?;
    site.ours()
        .await?
        .create(&PostParams::default(), &GitRepository::new("apps", spec))
        .await?;
    let spec = json!({"clusterRef": {"name": CLUSTER}, "targetNamespace": SERVICE, "sourceRef": {"name": "apps"}, "path": "web"});
    site.ours()
        .await?
        .create(
            &PostParams::default(),
            &ServiceDeployment::new(SERVICE, serde_json::from_value(spec)?),
        )
        .await?;

    let begun = Instant::now();
    let why = until(
        &site,
        &["why", SERVICE],
        &["ImagePullBackOff", "CrashLoopBackOff, exit code 3"],
    )
    .await?;
    eprintln!("after {:.1} s:\n{why}", begun.elapsed().as_secs_f64());
    ensure!(why.contains("Pod absent-") && why.contains("Pod ends-"), "{why}");
    let objects = until(&site, &["objects", SERVICE], &["ImagePullBackOff"]).await?;
    ensure!(objects.contains("nowhere"), "{objects}");
    Ok(())
}
