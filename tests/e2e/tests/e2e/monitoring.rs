//! Metrics of hub and agent in a real Prometheus, and whether alerts and dashboards use existing metrics.

use std::{collections::BTreeSet, fs, path::PathBuf};

use anyhow::{Context as _, Result, ensure};
use farwater_api::{Cluster, GitRepository};
use farwater_e2e::{
    Fleet, PATIENCE, config_map,
    dashboard::{Dashboard, Query, Values, quote},
};
use farwater_testkit::{
    Launch, Prometheus, ports,
    prometheus::{get, promtool},
    shared, wait_for,
};
use kube::{Api, api::PostParams};
use serde_json::{Value, json};

fn repository() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn read(path: &str) -> Result<String> {
    let path = repository().join(path);
    fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

/// Name, expression and runbook of every alert.
fn alerts() -> Result<Vec<(String, String, String)>> {
    let rules: Value = serde_saphyr::from_str(&read("deploy/monitoring/alerts.yaml")?)?;
    let groups = rules["groups"].as_array().context("there are groups")?;
    let rules = groups
        .iter()
        .flat_map(|group| group["rules"].as_array().into_iter().flatten());
    let text = |value: &Value| {
        value
            .as_str()
            .map(str::to_owned)
            .with_context(|| format!("{value} is no text"))
    };
    rules
        .map(|rule| {
            Ok((
                text(&rule["alert"])?,
                text(&rule["expr"])?,
                text(&rule["annotations"]["runbook_url"])?,
            ))
        })
        .collect()
}

fn dashboards() -> Result<Vec<Dashboard>> {
    let files = fs::read_dir(repository().join("deploy/monitoring/dashboards"))?;
    files
        .map(|file| {
            let dashboard: Value = serde_json::from_slice(&fs::read(file?.path())?)?;
            Dashboard::read(&dashboard)
        })
        .collect()
}

/// Our metrics in an expression.
fn metrics_of(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("farwater_") || word.starts_with("process_"))
}

#[test]
fn every_alert_fires_when_it_should_and_has_its_runbook() -> Result<()> {
    let folder = repository().join("deploy/monitoring");
    let path = |name: &str| folder.join(name).display().to_string();
    promtool(&["check", "rules", &path("alerts.yaml")], "")?;
    promtool(&["test", "rules", &path("alerts-test.yaml")], "")?;
    let tests: Value = serde_saphyr::from_str(&read("deploy/monitoring/alerts-test.yaml")?)?;
    let tests = tests["tests"].as_array().context("there are tests")?;
    let tested: Vec<&Value> = tests
        .iter()
        .flat_map(|test| test["alert_rule_test"].as_array().unwrap())
        .collect();
    let alerts = alerts()?;
    ensure!(alerts.len() > 10);
    for (alert, _, runbook) in &alerts {
        let expected = |fires: bool| {
            let of = |test: &&&Value| test["alertname"] == **alert;
            let mut numbers = tested
                .iter()
                .filter(of)
                .filter_map(|test| Some(test["exp_alerts"].as_array()?.len()));
            numbers.any(|number| (number > 0) == fires)
        };
        ensure!(
            expected(true) && expected(false),
            "{alert} is not shown to fire, or not to"
        );
        let page = runbook
            .strip_prefix("https://farwater.dev/runbooks/")
            .context("a runbook of ours")?;
        let text = read(&format!("docs/runbooks/{page}.md"))?;
        ensure!(
            ["**Means.**", "**Look.**", "**Do"]
                .iter()
                .all(|part| text.contains(part)),
            "{page} lacks a part"
        );
    }
    let pages = fs::read_dir(repository().join("docs/runbooks"))?.count();
    let named: BTreeSet<_> = alerts.iter().map(|(.., runbook)| runbook).collect();
    ensure!(
        pages == named.len(),
        "{pages} runbooks for {} that alerts name",
        named.len()
    );
    Ok(())
}

/// A hub and an agent with metrics without a token.
struct Scraped {
    fleet: Fleet,
    hub: String,
    agent: String,
}

impl Scraped {
    async fn start() -> Result<Self> {
        let (hub, agent) = (
            format!("127.0.0.1:{}", ports::free()?),
            format!("127.0.0.1:{}", ports::free()?),
        );
        let mut fleet = Fleet::launch(Launch::arguments(&["--metrics-listen", &hub])).await?;
        fleet
            .join_with(
                "east",
                shared(1).await?,
                Launch::arguments(&["--health-listen", &agent]),
            )
            .await?;
        Ok(Self { fleet, hub, agent })
    }

    /// Waits until a series of the hub has this value.
    async fn until(&self, series: &str, value: f64) -> Result<()> {
        let url = format!("http://{}/metrics", self.hub);
        wait_for(&format!("{series} to be {value}"), PATIENCE, || async {
            let text = get(&url).await?;
            let found = text
                .lines()
                .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
            let found = found.with_context(|| format!("there is no {series}:\n{text}"))?;
            Ok((found.parse::<f64>()? == value).then_some(()))
        })
        .await
    }
}

/// The series of a query's answer. Some of them must have each label that Grafana uses. Not all have it, because `or
/// vector(0)` adds one without labels.
async fn answer(prometheus: &Prometheus, query: &Query, expression: &str) -> Result<Vec<Value>> {
    let place = &query.place;
    let series = prometheus.query(expression).await.with_context(|| place.clone())?;
    ensure!(!series.is_empty(), "{place}: {expression} is answered by nothing");
    for label in &query.labels {
        let has_label = |one: &Value| one["metric"][label].as_str().is_some_and(|value| !value.is_empty());
        ensure!(
            series.iter().any(has_label),
            "{place}: no series of {expression} has the label {label}: {series:?}"
        );
    }
    Ok(series)
}

/// Sends all queries that Grafana sends for a dashboard, with all values of its variables and with one of each. Returns
/// the queries.
async fn ask_all(prometheus: &Prometheus, dashboard: &Dashboard) -> Result<BTreeSet<String>> {
    let (mut all, mut one) = (Values::new(), Values::new());
    let mut asked = BTreeSet::new();
    for variable in &dashboard.variables {
        let expression = variable.query.fill(&Values::new())?;
        let series = answer(prometheus, &variable.query, &expression).await?;
        let value = series.iter().find_map(|one| one["metric"][&variable.label].as_str());
        all.insert(variable.name.clone(), variable.all.clone());
        one.insert(variable.name.clone(), quote(value.context("a variable has a value")?));
        asked.insert(expression);
    }
    for query in &dashboard.queries {
        for expression in BTreeSet::from([query.fill(&all)?, query.fill(&one)?]) {
            answer(prometheus, query, &expression).await?;
            asked.insert(expression);
        }
    }
    Ok(asked)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_query_of_alerts_and_dashboards_is_answered_by_a_scrape() -> Result<()> {
    let scraped = Scraped::start().await?;
    let files = config_map("a", "one");
    let repository = scraped.fleet.repository("infra", &[("app/a.yaml", &files)]).await?;
    scraped.fleet.deploy("app", "east", "infra", "app").await?;
    scraped
        .fleet
        .until_applied("app", &repository.branch("main").unwrap_or_default())
        .await?;
    // A failed request, because some panels show requests by their code.
    ensure!(scraped.fleet.api::<GitRepository>().get_opt("nothing").await?.is_none());
    for address in [&scraped.hub, &scraped.agent] {
        let text = get(&format!("http://{address}/metrics")).await?;
        let said = promtool(&["check", "metrics"], &text)?;
        ensure!(said.trim().is_empty(), "{said}");
    }

    let prometheus = Prometheus::start(&format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{}]\nscrape_configs:\n\
         - {{job_name: farwater-hub, static_configs: [{{targets: ['{}']}}]}}\n\
         - {{job_name: farwater-agent, static_configs: [{{targets: ['{}']}}]}}\n",
        self::repository()
            .join("deploy/monitoring/alerts.yaml")
            .canonicalize()?
            .display(),
        scraped.hub,
        scraped.agent,
    ))
    .await?;
    wait_for("some scrapes of both", PATIENCE, || async {
        let scrapes = prometheus.query("count_over_time(up[5m]) >= 4 and up == 1").await?;
        Ok((scrapes.len() == 2).then_some(()))
    })
    .await?;
    let names = prometheus.ask("/api/v1/label/__name__/values").await?;
    let names: BTreeSet<&str> = names
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let promised = [
        "farwater_reconciles_total",
        "farwater_reconcile_errors_total",
        "farwater_queue_depth",
        "farwater_build_info",
    ];
    for name in promised {
        ensure!(names.contains(name), "{name} is not scraped");
    }
    let dashboards = dashboards()?;
    ensure!(dashboards.len() == 4);
    let mut queries = BTreeSet::new();
    for dashboard in &dashboards {
        queries.extend(ask_all(&prometheus, dashboard).await?);
    }
    ensure!(queries.len() > 30);
    let alerts = alerts()?;
    for (_, expression, _) in &alerts {
        prometheus.query(expression).await?;
    }
    for expression in queries.iter().chain(alerts.iter().map(|(_, expression, _)| expression)) {
        for metric in metrics_of(expression) {
            ensure!(names.contains(metric), "{metric} of {expression} is not scraped");
        }
    }
    let rules = prometheus.ask("/api/v1/rules").await?;
    let groups = rules["groups"].as_array().context("there are groups")?;
    for rule in groups
        .iter()
        .flat_map(|group| group["rules"].as_array().into_iter().flatten())
    {
        ensure!(rule["health"] == "ok" || rule["health"] == "unknown", "{rule}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_figures_follow_what_happens() -> Result<()> {
    let mut scraped = Scraped::start().await?;
    scraped.until("farwater_clusters{state=\"ready\"}", 1.0).await?;
    let files = config_map("a", "one");
    let repository = scraped.fleet.repository("infra", &[("app/a.yaml", &files)]).await?;
    scraped.fleet.deploy("app", "east", "infra", "app").await?;
    scraped.until("farwater_services{state=\"ready\"}", 1.0).await?;
    scraped.until("farwater_sources{state=\"ready\"}", 1.0).await?;

    // An object that the API server refuses.
    repository.change(
        "main",
        &[(
            "app/b.yaml",
            Some("apiVersion: v1\nkind: Nonsense\nmetadata: {name: b}\n"),
        )],
    )?;
    scraped.fleet.reconcile("infra").await?;
    scraped.until("farwater_services{state=\"failing\"}", 1.0).await?;
    scraped.until("farwater_services{state=\"ready\"}", 0.0).await?;
    repository.change("main", &[("app/b.yaml", None)])?;
    scraped.fleet.reconcile("infra").await?;
    scraped.until("farwater_services{state=\"ready\"}", 1.0).await?;

    // A remote that does not exist.
    let gone = serde_json::from_value(serde_json::json!({"url": "http://127.0.0.1:9/nowhere.git"}))?;
    scraped
        .fleet
        .api()
        .create(&kube::api::PostParams::default(), &GitRepository::new("gone", gone))
        .await?;
    scraped.until("farwater_sources_stale", 1.0).await?;
    scraped
        .fleet
        .api::<GitRepository>()
        .delete("gone", &kube::api::DeleteParams::default())
        .await?;
    scraped.until("farwater_sources_stale", 0.0).await?;

    // A cluster without its agent, which the restarted hub reports, too.
    scraped.fleet.agent("east")?.kill9();
    scraped.until("farwater_clusters{state=\"silent\"}", 1.0).await?;
    scraped.fleet.hub.restart().await?;
    scraped.until("farwater_services{state=\"ready\"}", 1.0).await?;
    scraped.until("farwater_clusters{state=\"silent\"}", 1.0).await?;
    scraped.fleet.agent("east")?.restart()?;
    scraped.until("farwater_clusters{state=\"ready\"}", 1.0).await?;
    Ok(())
}

/// The series of a scrape: names with labels, without values.
async fn series(address: &str) -> Result<BTreeSet<String>> {
    let text = get(&format!("http://{address}/metrics")).await?;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    Ok(lines
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(series, _)| series.to_owned())
        .collect())
}

/// Sends requests as users do and creates resources: `count` of each, with new names.
async fn ask_and_make(fleet: &Fleet, round: &str, count: usize) -> Result<()> {
    let clusters: Api<Cluster> = fleet.api();
    for number in 0..count {
        let name = format!("{round}-{number}");
        clusters
            .create(
                &PostParams::default(),
                &Cluster::new(&name, serde_json::from_value(json!({}))?),
            )
            .await?;
        fleet.deploy(&name, "east", "infra", "app").await?;
        let method = http::Method::from_bytes(format!("BREW{round}{number}").as_bytes())?;
        let asked = [
            (http::Method::GET, format!("/{name}/{name}")),
            (
                http::Method::GET,
                format!("/api/v1/namespaces/{name}/configmaps/{name}"),
            ),
            (http::Method::GET, format!("/apis/{name}.dev/v1/{name}")),
            (method, format!("/api/v1/namespaces/farwater-admin/configmaps/{name}")),
        ];
        for (method, path) in asked {
            let request = http::Request::builder().method(method).uri(path).body(Vec::new())?;
            // Requests that are refused or not found.
            let _ = fleet.client.request_text(request).await;
        }
    }
    let last = format!("{round}-{}", count - 1);
    fleet.until_condition(&last, "Ready", "True", "").await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn labels_are_bounded_whatever_is_asked_and_made() -> Result<()> {
    let scraped = Scraped::start().await?;
    scraped
        .fleet
        .repository("infra", &[("app/a.yaml", &config_map("a", "one"))])
        .await?;
    ask_and_make(&scraped.fleet, "first", 3).await?;
    let before = (series(&scraped.hub).await?, series(&scraped.agent).await?);
    ask_and_make(&scraped.fleet, "then", 30).await?;
    let after = (series(&scraped.hub).await?, series(&scraped.agent).await?);
    for (before, after) in [(before.0, after.0), (before.1, after.1)] {
        let named: Vec<_> = after.iter().filter(|series| series.contains("then")).collect();
        ensure!(named.is_empty(), "named by users: {named:?}");
        // Some series appear with their first event. No series appears for each resource.
        let new: Vec<_> = after.difference(&before).collect();
        ensure!(new.len() < 30, "{} new series: {new:?}", new.len());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_line_of_a_json_log_is_an_object_with_time_level_and_message() -> Result<()> {
    let json = || Launch::arguments(&["--log-format", "json"]);
    let mut fleet = Fleet::launch(json()).await?;
    fleet.join_with("east", shared(1).await?, json()).await?;
    let repository = fleet
        .repository("infra", &[("app/a.yaml", &config_map("a", "one"))])
        .await?;
    fleet.deploy("app", "east", "infra", "app").await?;
    fleet
        .until_applied("app", &repository.branch("main").unwrap_or_default())
        .await?;
    fleet.agent("east")?.stop()?;
    let logs = [
        fleet.hub.process().log().to_owned(),
        fleet.agent("east")?.process().log().to_owned(),
    ];
    for log in logs {
        let text = fs::read_to_string(&log)?;
        ensure!(text.lines().count() > 3, "{text}");
        for line in text.lines() {
            let object: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
            let is_text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
            let parts = [
                &object["timestamp"],
                &object["level"],
                &object["target"],
                &object["message"],
            ];
            ensure!(parts.into_iter().all(is_text), "{line}");
        }
    }
    Ok(())
}
