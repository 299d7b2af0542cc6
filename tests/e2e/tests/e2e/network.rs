//! Real networks between an agent and its hub: proxies, a company's authority, IPv6, and wrong clocks.

use std::{
    fs,
    net::Ipv6Addr,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use farwater_api::{AGENT_NAMESPACE, Cluster, IDENTITY_SECRET};
use farwater_e2e::{Fleet, PATIENCE, condition, config_map};
use farwater_testkit::{
    Agent, Hub, Launch, Plane,
    authority::{Authority, Pair},
    faketime,
    farwater::JoinToken,
    ports, shared,
    squid::{Options, Squid},
    wait_for,
};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, api::DeleteParams};

/// A name that only the proxy can resolve.
const NAME: &str = "hub.corp.test";

/// Deploys a service to a joined cluster, and waits until it is applied.
async fn deploy(fleet: &Fleet, cluster: &str, plane: &Plane) -> Result<()> {
    let repository = fleet
        .repository("infra", &[("app/a.yaml", &config_map("a", "one"))])
        .await?;
    fleet.deploy("web", cluster, "infra", "app").await?;
    fleet
        .until_applied("web", &repository.branch("main").unwrap_or_default())
        .await?;
    let api: Api<ConfigMap> = Api::namespaced(plane.client().await?, &fleet.namespace("web"));
    ensure!(api.get("a").await?.data.is_some_and(|data| data["value"] == "one"));
    Ok(())
}

/// A fleet whose hub has a name that only a proxy can resolve.
async fn fleet_behind_a_proxy() -> Result<Fleet> {
    let dir = tempfile::tempdir()?;
    let hub = Hub::start_with(&dir.path().join("hub"), &["--tls-san", NAME]).await?;
    Fleet::of(hub, dir).await
}

fn write(dir: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = dir.join(name);
    fs::write(&path, text)?;
    Ok(path)
}

/// Log of an agent that can't connect, once it contains all of `parts`.
async fn says(agent: &mut Agent, parts: &[&str]) -> Result<()> {
    let log = agent.process().log().to_owned();
    wait_for(&format!("the agent to say {parts:?}"), PATIENCE, || async {
        let text = fs::read_to_string(&log)?;
        Ok(parts.iter().all(|part| text.contains(part)).then_some(()))
    })
    .await
    .with_context(|| agent.log_tail())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_reaches_its_hub_through_a_proxy_with_credentials_alone() -> Result<()> {
    let plane = shared(1).await?;
    let credentials = Some(("al".to_owned(), "canary-9d1c".to_owned()));
    let squid = Squid::start(&Options {
        names: vec![NAME.to_owned()],
        credentials,
        ..Options::default()
    })
    .await?;
    let mut fleet = fleet_behind_a_proxy().await?;
    fleet.take_turn(plane).await?;
    let url = format!("https://{NAME}:{}", fleet.hub.port());

    // Without credentials, with wrong ones, and without the proxy: the agent logs it and retries.
    let token = fleet.invite("east").await?;
    for (n, (proxy, words)) in [
        (squid.url(""), ["wants credentials (407)", "HTTPS_PROXY"]),
        (
            squid.url("al:wrong"),
            ["refuses the credentials in HTTPS_PROXY (407)", "127.0.0.1"],
        ),
    ]
    .iter()
    .enumerate()
    {
        let told = JoinToken {
            hub: url.clone(),
            ..token.clone()
        };
        let launch = Launch::environment(&[("HTTPS_PROXY", proxy)]);
        let dir = fleet.state_dir(&format!("east-{n}"));
        let mut agent = Agent::launch("east", &dir, plane.kubeconfig(), told, launch)?;
        says(&mut agent, &[words[0], words[1], "trying again"])
            .await
            .with_context(|| squid.tail())?;
        agent.process().check_running()?;
        agent.stop()?;
    }

    let launch = Launch::environment(&[("https_proxy", &squid.url("al:canary-9d1c"))]);
    let mut agent = Agent::launch(
        "east",
        &fleet.state_dir("east"),
        plane.kubeconfig(),
        JoinToken { hub: url, ..token },
        launch,
    )?;
    let clusters: Api<Cluster> = fleet.api();
    let joined = fleet.until("east to be ready", || async {
        let status = clusters.get("east").await?.status.unwrap_or_default();
        Ok((condition(&status.conditions, "Ready") == Some("True")).then_some(()))
    });
    joined
        .await
        .with_context(|| format!("{}\n{}", agent.log_tail(), squid.tail()))?;
    deploy(&fleet, "east", plane).await?;
    let log = agent.process().output();
    ensure!(
        log.contains("reached through a proxy") && !log.contains("canary"),
        "{log}"
    );
    agent.stop()?;
    // All requests through the proxy went to the hub, and none to the cluster's API server.
    let access = squid.access_log();
    ensure!(
        access.contains(&format!("CONNECT {NAME}:{}", fleet.hub.port())),
        "{}",
        squid.tail()
    );
    ensure!(access.lines().all(|line| line.contains(NAME)), "{access}");
    fleet.hub.expect_no_errors();
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_that_refuses_is_named_and_no_proxy_is_heeded() -> Result<()> {
    let plane = shared(1).await?;
    let forbidden = vec![NAME.to_owned(), "127.0.0.1".to_owned()];
    let squid = Squid::start(&Options {
        names: vec![NAME.to_owned()],
        forbidden,
        ..Options::default()
    })
    .await?;
    let mut fleet = fleet_behind_a_proxy().await?;
    fleet.take_turn(plane).await?;
    let token = fleet.invite("west").await?;
    for (host, words) in [
        (NAME, "(403)"),
        ("nowhere.corp.test", "can't connect to nowhere.corp.test"),
    ] {
        let hub = format!("https://{host}:{}", fleet.hub.port());
        let told = JoinToken { hub, ..token.clone() };
        let launch = Launch::environment(&[("HTTPS_PROXY", &squid.url(""))]);
        let mut agent = Agent::launch("west", &fleet.state_dir(host), plane.kubeconfig(), told, launch)?;
        says(&mut agent, &[squid.url("").as_str(), host, words])
            .await
            .with_context(|| squid.tail())?;
        agent.stop()?;
    }
    // The proxy in a kubeconfig is for the API server. The one in the environment is not.
    let open = Squid::start(&Options::default()).await?;
    let mut kubeconfig: serde_json::Value = serde_json::from_slice(&fs::read(plane.kubeconfig())?)?;
    kubeconfig["clusters"][0]["cluster"]["proxy-url"] = open.url("").into();
    let path = fleet.state_dir("kubeconfig");
    fs::write(&path, kubeconfig.to_string())?;
    let environment = [
        ("HTTPS_PROXY", squid.url("")),
        ("NO_PROXY", "localhost, 127.0.0.0/8".to_owned()),
    ];
    let environment: Vec<_> = environment
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    fleet
        .join_in("east", plane, &path, Launch::environment(&environment), |_| {})
        .await?;
    deploy(&fleet, "east", plane).await?;
    fleet.agent("east")?.stop()?;
    let server = kubeconfig["clusters"][0]["cluster"]["server"]
        .as_str()
        .unwrap_or_default();
    let expected = format!("CONNECT {}", server.trim_start_matches("https://"));
    let access = open.access_log();
    ensure!(
        access.contains(&expected) && access.lines().all(|line| line.contains(&expected)),
        "{}",
        open.tail()
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_company_that_looks_into_tls_is_trusted_only_when_it_is_named() -> Result<()> {
    let plane = shared(1).await?;
    let company = Authority::new("company authority")?;
    let mut fleet = fleet_behind_a_proxy().await?;
    let hub_ca = fs::read_to_string(fleet.hub.dir().join("keys/ca.crt"))?;
    let intercept = Some((company.pair().clone(), hub_ca));
    let squid = Squid::start(&Options {
        names: vec![NAME.to_owned()],
        intercept,
        ..Options::default()
    })
    .await?;
    let url = format!("https://{NAME}:{}", fleet.hub.port());
    let environment = [("HTTPS_PROXY".to_owned(), squid.url(""))];

    // With only the hub's pin, the agent ends, because a person must act. An agent with an identity keeps running, and
    // an earlier test may have left one.
    fleet.take_turn(plane).await?;
    let secrets: Api<Secret> = Api::namespaced(plane.client().await?, AGENT_NAMESPACE);
    if secrets.get_opt(IDENTITY_SECRET).await?.is_some() {
        secrets.delete(IDENTITY_SECRET, &DeleteParams::default()).await?;
    }
    let token = fleet.invite("west").await?;
    let told = JoinToken {
        hub: url.clone(),
        ..token
    };
    let launch = Launch {
        environment: environment.to_vec(),
        ..Launch::default()
    };
    let mut agent = Agent::launch("west", &fleet.state_dir("west"), plane.kubeconfig(), told, launch)?;
    agent.tolerate("is not trusted");
    says(&mut agent, &["its certificate is not trusted", "--ca-file"])
        .await
        .with_context(|| squid.tail())?;
    let ended = agent.process().wait(PATIENCE).context("it goes on")?;
    ensure!(ended.code() == Some(2), "{ended}");

    let dir = tempfile::tempdir()?;
    let file = write(dir.path(), "company.pem", company.pem())?;
    let mut launch = Launch {
        environment: environment.to_vec(),
        ..Launch::default()
    };
    launch
        .environment
        .push(("FARWATER_CA_FILE".to_owned(), file.display().to_string()));
    let joined = fleet.join_in("east", plane, plane.kubeconfig(), launch, |token| {
        token.hub.clone_from(&url);
        token.ca_pin.clear();
    });
    joined.await.with_context(|| squid.tail())?;
    deploy(&fleet, "east", plane).await?;
    // After a restart it still uses its file.
    fleet.agent("east")?.restart()?;
    fleet.agent("east")?.process().check_running()?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_is_spoken_to_with_tls() -> Result<()> {
    let plane = shared(1).await?;
    let company = Authority::new("company authority")?;
    let tls = Some(company.issue(&["127.0.0.1"], 24)?);
    let squid = Squid::start(&Options {
        names: vec![NAME.to_owned()],
        tls,
        ..Options::default()
    })
    .await?;
    let mut fleet = fleet_behind_a_proxy().await?;
    let dir = tempfile::tempdir()?;
    let file = write(dir.path(), "company.pem", company.pem())?;
    let mut launch = Launch::environment(&[("HTTPS_PROXY", &squid.url("").replace("http://", "https://"))]);
    launch.arguments = vec!["--ca-file".to_owned(), file.display().to_string()];
    let url = format!("https://{NAME}:{}", fleet.hub.port());
    let joined = fleet.join_in("east", plane, plane.kubeconfig(), launch, |token| token.hub = url);
    joined.await.with_context(|| squid.tail())?;
    deploy(&fleet, "east", plane).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hub_and_agent_meet_over_ipv6() -> Result<()> {
    let plane = shared(1).await?;
    let dir = tempfile::tempdir()?;
    let hub = Hub::start_on(
        (Ipv6Addr::LOCALHOST, ports::free()?).into(),
        &dir.path().join("hub"),
        Launch::default(),
    )
    .await?;
    let mut fleet = Fleet::of(hub, dir).await?;
    let url = format!("https://[::1]:{}", fleet.hub.port());
    ensure!(fs::read_to_string(fleet.hub.kubeconfig())?.contains(&format!("server: {url}\n")));
    // The printed command, with a cluster and a directory.
    let cli = fleet.cli();
    let printed = cli.expect(0, &["cluster", "join", "west"])?.stdout;
    ensure!(printed.contains(&format!("--hub {url} ")), "{printed}");
    fleet
        .join_in("east", plane, plane.kubeconfig(), Launch::default(), |token| {
            assert_eq!(token.hub, url)
        })
        .await?;
    deploy(&fleet, "east", plane).await?;
    ensure!(cli.expect(0, &["get", "clusters"])?.stdout.contains("east"));
    ensure!(
        cli.kubectl(&["get", "clusters.farwater.dev", "-n", "farwater-admin"])?
            .contains("east")
    );
    Ok(())
}

/// A hub with a certificate that began an hour ago and is valid for some hours. With a clock that is a day off, it is
/// too early or expired.
async fn hub_with_a_young_certificate(dir: &Path) -> Result<(Hub, Authority)> {
    let authority = Authority::new("young authority")?;
    let files = dir.join("tls");
    fs::create_dir(&files)?;
    mount(&files, &authority.issue(&["127.0.0.1"], 12)?)?;
    write(&files, "ca.crt", authority.pem())?;
    let path = |name: &str| files.join(name).display().to_string();
    let (certificate, key) = (path("tls.crt"), path("tls.key"));
    let hub = Hub::start_with(&dir.join("hub"), &["--tls-cert", &certificate, "--tls-key", &key]).await?;
    Ok((hub, authority))
}

fn mount(files: &Path, pair: &Pair) -> Result<()> {
    write(files, "tls.crt", &pair.certificate)?;
    write(files, "tls.key", &pair.key).map(drop)
}

async fn clock_is_corrected_and_shown(offset: &str, seconds: i64, words: &str) -> Result<()> {
    let plane = shared(1).await?;
    let dir = tempfile::tempdir()?;
    let (hub, _) = hub_with_a_young_certificate(dir.path()).await?;
    let mut fleet = Fleet::of(hub, dir).await?;
    // The cluster's own certificate is also only an hour old, which concerns the cluster.
    let mut kubeconfig: serde_json::Value = serde_json::from_slice(&fs::read(plane.kubeconfig())?)?;
    let cluster = kubeconfig["clusters"][0]["cluster"]
        .as_object_mut()
        .context("a cluster")?;
    cluster.remove("certificate-authority-data");
    cluster.insert("insecure-skip-tls-verify".to_owned(), true.into());
    let path = fleet.state_dir("kubeconfig");
    fs::write(&path, kubeconfig.to_string())?;

    let launch = Launch {
        environment: faketime::environment(offset)?,
        ..Launch::default()
    };
    fleet.join_in("east", plane, &path, launch, |_| {}).await?;
    deploy(&fleet, "east", plane).await?;
    let clusters: Api<Cluster> = fleet.api();
    let status = fleet
        .until("the clock to be shown", || async {
            let status = clusters.get("east").await?.status.unwrap_or_default();
            Ok(status.clock_skew_seconds.is_some().then_some(status))
        })
        .await?;
    let shown = status.clock_skew_seconds.unwrap_or_default();
    ensure!((shown - seconds).abs() < 30, "{shown}");
    ensure!(
        condition(&status.conditions, "ClockSkewed") == Some("True"),
        "{:?}",
        status.conditions
    );
    ensure!(
        condition(&status.conditions, "Ready") == Some("True"),
        "{:?}",
        status.conditions
    );
    let table = fleet.cli().expect(0, &["get", "clusters"])?.stdout;
    ensure!(table.contains(words), "{table}");
    // The same after a restart, with the machine's time.
    fleet.agent("east")?.stop()?;
    let stopped = jiff::Timestamp::now();
    fleet.agent("east")?.restart()?;
    let heard = fleet.until("the agent to be heard again", || async {
        let heard = clusters
            .get("east")
            .await?
            .status
            .and_then(|status| status.last_heard_time);
        Ok(heard.is_some_and(|heard| heard.0 > stopped).then_some(()))
    });
    heard.await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_whose_clock_is_a_day_behind_is_corrected_and_shown() -> Result<()> {
    clock_is_corrected_and_shown("-1d", -86_400, "24h behind").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_whose_clock_is_a_day_ahead_is_corrected_and_shown() -> Result<()> {
    clock_is_corrected_and_shown("+1d", 86_400, "24h ahead of").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_others_renew_is_taken_without_a_restart() -> Result<()> {
    let plane = shared(1).await?;
    let dir = tempfile::tempdir()?;
    let files = dir.path().join("tls");
    let (hub, authority) = hub_with_a_young_certificate(dir.path()).await?;
    let mut fleet = Fleet::of(hub, dir).await?;
    fleet.join("east", plane).await?;
    let log = fleet.hub.process().log().to_owned();
    let until = async |words: &str, times: usize| {
        wait_for(&format!("the hub to say {words:?}"), PATIENCE, || async {
            Ok((fs::read_to_string(&log)?.matches(words).count() >= times).then_some(()))
        })
        .await
    };
    // The certificate that a new connection gets.
    let served = async || -> Result<String> {
        let metrics = fleet
            .client
            .request_text(http::Request::get("/metrics").body(Vec::new())?)
            .await?;
        let line = metrics
            .lines()
            .find(|line| line.starts_with("farwater_tls_reload_failing "));
        Ok(line.context("the metric is missing")?.to_owned())
    };
    ensure!(served().await? == "farwater_tls_reload_failing 0");
    mount(&files, &authority.issue(&["127.0.0.1"], 24)?)?;
    until("was renewed from its files", 1).await?;

    // A certificate of another authority, and half of a certificate: both are refused, and the old one stays.
    fleet.hub.tolerate("the server's new certificate can't be used");
    let good = authority.issue(&["127.0.0.1"], 24)?;
    mount(&files, &Authority::new("another")?.issue(&["127.0.0.1"], 24)?)?;
    until("not issued by the authority that agents know", 1).await?;
    ensure!(served().await? == "farwater_tls_reload_failing 1");
    write(&files, "tls.crt", &good.certificate)?;
    until("use the key", 1).await?;
    mount(&files, &good)?;
    until("was renewed from its files", 2).await?;
    ensure!(served().await? == "farwater_tls_reload_failing 0");
    deploy(&fleet, "east", plane).await?;
    let log = fleet.agent("east")?.process().output();
    ensure!(!log.contains("not trusted"), "{log}");
    // New connections get it as well.
    fleet.agent("east")?.restart()?;
    fleet.join("west", shared(2).await?).await
}
