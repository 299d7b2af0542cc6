//! Renders the charts with the real helm. They create the objects that `farwater install` and `farwater cluster join`
//! apply, and refuse invalid values.

use std::{collections::BTreeMap, fs, path::Path, process::Output};

use anyhow::{Context as _, Result, ensure};
use farwater_manifests::{Agent, Database, Exposure, Hub, Limits, Tls};
use farwater_testkit::{
    process::bare_command,
    tools::{Tools, repository_root},
};
use serde_json::{Value, json};

const PIN: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn helm(home: &Path, arguments: &[&str], chart: &str, values: &Value) -> Result<Output> {
    let file = home.join("values.yaml");
    fs::write(&file, serde_json::to_vec(values)?)?;
    let mut command = bare_command(Tools::find_all()?.helm());
    command
        .args(arguments)
        .arg(repository_root()?.join("deploy/charts").join(chart));
    command.arg("--values").arg(file).env("HOME", home);
    command.output().context("run helm")
}

/// Objects by name.
type Objects = BTreeMap<String, Value>;

/// Without Namespaces, because helm creates the release's itself.
fn by_name(objects: impl IntoIterator<Item = Value>) -> Objects {
    let named = objects.into_iter().filter(|object| object["kind"] != "Namespace");
    named
        .map(|object| (format!("{} {}", object["kind"], object["metadata"]["name"]), object))
        .collect()
}

fn render(chart: &str, namespace: &str, values: &Value) -> Result<Objects> {
    let home = tempfile::tempdir()?;
    let output = helm(
        home.path(),
        &["template", "farwater", "--namespace", namespace],
        chart,
        values,
    )?;
    ensure!(
        output.status.success(),
        "helm template {chart}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout)?;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text)?;
    Ok(by_name(documents.into_iter().filter(|document| !document.is_null())))
}

/// Checks that both ways create the same objects, and that helm's lint finds nothing.
fn check(chart: &str, namespace: &str, values: &Value, wanted: Vec<Value>) -> Result<()> {
    let (rendered, wanted) = (render(chart, namespace, values)?, by_name(wanted));
    for (name, object) in &wanted {
        let found = rendered
            .get(name)
            .with_context(|| format!("{chart} has no {name} with {values}"))?;
        assert_eq!(found, object, "{chart}: {name} with {values}");
    }
    assert_eq!(rendered.len(), wanted.len(), "{chart} with {values}");
    let home = tempfile::tempdir()?;
    let output = helm(
        home.path(),
        &["lint", "--strict", "--namespace", namespace],
        chart,
        values,
    )?;
    ensure!(
        output.status.success(),
        "helm lint {chart}: {}",
        String::from_utf8_lossy(&output.stdout)
    );
    Ok(())
}

fn agent() -> Agent {
    Agent {
        image: "localhost/farwater/agent:1".to_owned(),
        hub: "https://hub.example.com:8443".to_owned(),
        ca_pin: PIN.to_owned(),
        bind_administrator: true,
        ..Agent::default()
    }
}

fn agent_values() -> Value {
    json!({"image": "localhost/farwater/agent:1", "hub": "https://hub.example.com:8443", "caPin": PIN})
}

fn with(mut values: Value, name: &str, value: Value) -> Value {
    values[name] = value;
    values
}

#[test]
fn the_agents_chart_gives_what_join_applies() -> Result<()> {
    let check = |values: Value, agent: Agent| check("farwater-agent", "farwater-system", &values, agent.objects());
    check(agent_values(), agent())?;
    let token = with(agent_values(), "joinToken", json!("fwj-secret: #1"));
    check(
        token,
        Agent {
            join_token: Some("fwj-secret: #1".to_owned()),
            ..agent()
        },
    )?;
    let unbound = with(agent_values(), "bindAdministrator", json!(false));
    check(
        unbound,
        Agent {
            bind_administrator: false,
            ..agent()
        },
    )?;
    let proxied = with(
        agent_values(),
        "environment",
        json!({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "10.0.0.0/8"}),
    );
    let environment = [("HTTPS_PROXY", "http://proxy:3128"), ("NO_PROXY", "10.0.0.0/8")];
    let environment = environment
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    check(proxied, Agent { environment, ..agent() })?;
    let limits = json!({"allowAccounts": ["team-*/deployer", "x/y"], "allowNamespaces": ["team-*"], "denyKinds": ["secrets"], "maxDeletions": 0});
    let limited = with(agent_values(), "limits", limits);
    let limits = Limits {
        allow_accounts: vec!["team-*/deployer".to_owned(), "x/y".to_owned()],
        allow_namespaces: vec!["team-*".to_owned()],
        deny_kinds: vec!["secrets".to_owned()],
        max_deletions: Some(0),
    };
    check(limited, Agent { limits, ..agent() })?;
    let proxy = "http://user:p%40ss@proxy.example.com:3128";
    let behind = with(agent_values(), "httpsProxy", json!(proxy));
    check(
        behind,
        Agent {
            https_proxy: Some(proxy.to_owned()),
            ..agent()
        },
    )?;
    let authorities = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
    let vouched = with(agent_values(), "authorities", json!(authorities));
    check(
        vouched,
        Agent {
            authorities: Some(authorities.to_owned()),
            ..agent()
        },
    )?;
    let (plugins, mounts) = (example("plugins.yaml")?, example("mounts.yaml")?);
    let stated: Value = serde_saphyr::from_str(&mounts)?;
    let plugged = with(laid_over(agent_values(), &stated), "plugins", json!(plugins));
    check(
        plugged,
        Agent {
            plugins: Some(plugins),
            mounts: serde_json::from_value(stated)?,
            ..agent()
        },
    )?;
    // Programs may come without an init container, and a container may have its own securityContext.
    let image = json!([{"name": "programs", "image": {"reference": "registry.example.com/programs:1"}}]);
    let mount = json!([{"name": "programs", "mountPath": "/plugins", "readOnly": true}]);
    let own = json!([{"name": "copy", "image": "registry.example.com/programs:1",
        "securityContext": {"runAsUser": 1_000_000, "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]);
    let values = json!({"volumes": image, "volumeMounts": mount, "initContainers": own});
    let mounts = serde_json::from_value(values.clone())?;
    check(laid_over(agent_values(), &values), Agent { mounts, ..agent() })
}

/// A file of the plugin example.
fn example(name: &str) -> Result<String> {
    Ok(fs::read_to_string(
        repository_root()?.join("examples/jsonnet").join(name),
    )?)
}

fn laid_over(mut values: Value, over: &Value) -> Value {
    for (name, value) in over.as_object().into_iter().flatten() {
        values[name] = value.clone();
    }
    values
}

fn hub() -> Hub {
    Hub {
        image: "localhost/farwater/hub:1".to_owned(),
        ..Hub::default()
    }
}

fn hub_values() -> Value {
    json!({"image": "localhost/farwater/hub:1"})
}

#[test]
fn the_hubs_chart_gives_what_install_applies() -> Result<()> {
    let check = |values: Value, hub: Hub| check("farwater-hub", "farwater-hub", &values, hub.objects());
    check(hub_values(), hub())?;
    let url = "https://hub.example.com:30443";
    let node_port = with(with(hub_values(), "url", json!(url)), "serviceType", json!("NodePort"));
    check(
        node_port,
        Hub {
            url: Some(url.to_owned()),
            exposure: Exposure::NodePort,
            ..hub()
        },
    )?;
    let balanced = with(hub_values(), "serviceType", json!("LoadBalancer"));
    check(
        balanced,
        Hub {
            exposure: Exposure::LoadBalancer,
            ..hub()
        },
    )?;
    let database = with(hub_values(), "databaseSecret", json!("database"));
    check(
        database,
        Hub {
            database: Database::Postgres {
                secret: "database".to_owned(),
            },
            ..hub()
        },
    )?;
    let certificate = with(with(hub_values(), "url", json!(url)), "tlsSecret", json!("hub-tls"));
    let tls = Tls::Secret {
        name: "hub-tls".to_owned(),
    };
    check(
        certificate,
        Hub {
            url: Some(url.to_owned()),
            tls,
            ..hub()
        },
    )?;
    let volume = with(
        with(hub_values(), "storage", json!("50Gi")),
        "storageClass",
        json!("fast"),
    );
    check(
        volume,
        Hub {
            storage: "50Gi".to_owned(),
            storage_class: Some("fast".to_owned()),
            ..hub()
        },
    )
}

#[test]
fn values_that_mean_nothing_are_refused_by_name() -> Result<()> {
    let home = tempfile::tempdir()?;
    let cases = [
        (
            "farwater-agent",
            with(agent_values(), "hub", json!("http://hub.example.com")),
            "hub",
        ),
        ("farwater-agent", with(agent_values(), "caPin", json!("abc")), "caPin"),
        (
            "farwater-agent",
            with(agent_values(), "pollInterval", json!(5)),
            "pollInterval",
        ),
        (
            "farwater-agent",
            with(agent_values(), "plugins", json!("- name: jsonnet\n")),
            "plugins",
        ),
        (
            "farwater-agent",
            with(agent_values(), "volumes", json!([{"emptyDir": {}}])),
            "volumes",
        ),
        (
            "farwater-hub",
            with(hub_values(), "serviceType", json!("Ingress")),
            "serviceType",
        ),
        ("farwater-hub", with(hub_values(), "storage", json!("much")), "storage"),
    ];
    for (chart, values, named) in cases {
        let output = helm(
            home.path(),
            &["template", "farwater", "--namespace", "farwater-system"],
            chart,
            &values,
        )?;
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && words.contains(named),
            "{chart} with {values}: {words}"
        );
    }
    let output = helm(
        home.path(),
        &["template", "farwater"],
        "farwater-agent",
        &agent_values(),
    )?;
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(words.contains("--namespace farwater-system"), "{words}");
    Ok(())
}
