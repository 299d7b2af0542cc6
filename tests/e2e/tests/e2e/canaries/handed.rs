//! Values for services, and everything that is made from them.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use farwater_api::{
    ADMIN_NAMESPACE, GitRepository, Receiver, SOURCE_CREDENTIALS, ServiceContext, ServiceDeployment, ServiceSet,
    URL_PREFIX, parameters::ParametersAnswer,
};
use farwater_e2e::{Fleet, condition, config_map, sops::encrypt};
use farwater_testkit::{
    deliveries::{Host, Push, Sender},
    git::{Auth, GitServer, Repository},
};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
    client::Body,
};
use serde_json::{Value, json};

use super::{
    canary::{Marks, canary, count, keys, lines, values},
    objects::create_secret,
};

fn encrypted(recipient: &str, head: &str, input: &str) -> Result<String> {
    let lines: String = values(input)
        .iter()
        .map(|(key, value)| format!("  {key}: {value}\n"))
        .collect();
    encrypt(recipient, &format!("{head}{lines}"))
}

/// Script of a plugin that creates a Secret with all parameters.
const TELL: &str =
    r#"printf 'apiVersion: v1\nkind: Secret\nmetadata: {name: of-plugin}\ndata: {all: %s}\n' "$(base64 -w0 "$1")""#;
/// Script of a plugin that prints them in an error, longer than the kept part of an error.
const COMPLAIN: &str = r#"for n in 1 2 3 4 5 6 7 8 9; do cat "$1" >&2; echo >&2; done; exit 1"#;

/// Files of other projects: folders, programs, a repository.
pub struct Places {
    folder: tempfile::TempDir,
    pub other: GitServer,
}

impl Places {
    pub async fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let place = folder.path();
        fs::create_dir_all(place.join("files/team/db"))?;
        for (key, value) in values("files") {
            fs::write(
                place.join("files/team/db").join(key),
                value.as_str().unwrap_or_default(),
            )?;
        }
        fs::write(
            place.join("safe.json"),
            json!({"values": values("program")}).to_string(),
        )?;
        let read = "/bin/cat > /dev/null; /bin/cat \"$0\"";
        let allow = |path: &str| json!([{"namespaces": [ADMIN_NAMESPACE], "paths": [path]}]);
        let backends = json!({"backends": [
            {"name": "mounted", "files": {"folder": place.join("files")}, "allow": allow("team")},
            {"name": "variables", "environment": {"variables": {"all": keys("environment")}}, "allow": allow("all")},
            {"name": "safe", "program": {"command": ["/bin/sh", "-c", read, place.join("safe.json")]}, "allow": allow("all")},
        ]});
        fs::write(place.join("backends.yaml"), backends.to_string())?;
        let plugin = |name: &str, script: &str| json!({"name": name, "command": ["/bin/sh", "-c", script, "sh", "{parameters}"]});
        let plugins = json!({"plugins": [plugin("tell", TELL), plugin("complain", COMPLAIN)]});
        fs::write(place.join("plugins.yaml"), plugins.to_string())?;
        let other = GitServer::start().await?;
        other
            .create("other")?
            .commit("main", &[("a.yaml", &config_map("a", "one"))])?;
        other.set_auth(Auth::Bearer(canary("prefix", 0)));
        Ok(Self { folder, other })
    }

    pub fn path(&self, name: &str) -> Result<String> {
        Ok(self.folder.path().join(name).to_str().context("a path")?.to_owned())
    }
}

/// Secrets of the hub, a context, and sources with credentials.
pub async fn plant(fleet: &Fleet, places: &Places) -> Result<()> {
    for input in ["own", "shared", "handed", "plugin"] {
        let secret = json!({"metadata": {"name": input}, "stringData": values(input)});
        create_secret(&fleet.client, ADMIN_NAMESPACE, secret).await?;
    }
    let mut configuration = values("context");
    configuration.insert("deep".to_owned(), json!({"list": [values("deep")]}));
    let spec = json!({"configuration": configuration, "secretRefs": [{"name": "shared"}], "sensitive": true});
    let contexts: Api<ServiceContext> = fleet.api();
    contexts
        .create(
            &PostParams::default(),
            &ServiceContext::new("hidden", serde_json::from_value(spec)?),
        )
        .await?;

    let (username, password) = ("farwater".to_owned(), canary("password", 0));
    let git = json!({"metadata": {"name": "git"}, "stringData": {"username": username, "password": password}});
    create_secret(&fleet.client, ADMIN_NAMESPACE, git).await?;
    fleet.git.set_auth(Auth::Basic { username, password });
    let below = json!({
        "metadata": {"name": "below", "annotations": {URL_PREFIX: places.other.origin()}},
        "type": SOURCE_CREDENTIALS,
        "stringData": {"bearerToken": canary("prefix", 0)},
    });
    create_secret(&fleet.client, ADMIN_NAMESPACE, below).await?;
    let infra = json!({"url": fleet.git.url("infra"), "secretRef": {"name": "git"}});
    let sources: Api<GitRepository> = fleet.api();
    for (name, spec) in [("infra", infra), ("other", json!({"url": places.other.url("other")}))] {
        sources
            .create(
                &PostParams::default(),
                &GitRepository::new(name, serde_json::from_value(spec)?),
            )
            .await?;
    }
    until_source(fleet, "other", "True").await
}

pub async fn until_source(fleet: &Fleet, name: &str, ready: &str) -> Result<()> {
    let sources: Api<GitRepository> = fleet.api();
    fleet
        .until(&format!("source {name} to be Ready={ready}"), || async {
            let status = sources.get(name).await?.status.unwrap_or_default();
            Ok((condition(&status.conditions, "Ready") == Some(ready)).then_some(()))
        })
        .await
}

/// Files of the service `app`. The other services can't be rendered or applied, and report why.
pub fn files(recipient: &str) -> Result<Vec<(String, String)>> {
    let mut made = "apiVersion: v1\nkind: Secret\nmetadata: {name: made}\nstringData:\n".to_owned();
    for input in ["own", "files", "environment", "program", "cluster"] {
        made += &lines(input, "configuration");
    }
    made += &lines("shared", "contexts.hidden");
    made += &lines("context", "contexts.hidden");
    made += &lines("deep", "contexts.hidden.deep.list[0]");
    let chart = "apiVersion: v2\nname: shop\nversion: 1.0.0\n";
    let of_chart = "apiVersion: v1\nkind: Secret\nmetadata: {name: of-chart}\nstringData:\n  password: {{ .Values.password }}\n\
                    {{ range $k, $v := .Values.data }}  {{ $k }}: {{ $v }}\n{{ end }}";
    let map = |name: &str, data: &str| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{{data}}}\n")
    };
    let manifest = "apiVersion: v1\nkind: Secret\nmetadata: {name: opened}\nstringData:\n";
    let files = [
        ("app/raw/a.yaml", config_map("a", "one")),
        ("app/raw/made.yaml.liquid", made),
        // Also in the middle of a text, in an object that is not a Secret.
        (
            "app/raw/told.yaml.liquid",
            map("told", "url: \"db://{{ configuration.own0 }}@db\""),
        ),
        ("app/raw/opened.yaml", encrypted(recipient, manifest, "sops")?),
        ("app/chart/Chart.yaml", chart.to_owned()),
        (
            "app/chart/values.yaml.liquid",
            "password: {{ configuration.own1 | quote }}\n".to_owned(),
        ),
        (
            "app/chart/secrets.yaml",
            encrypted(recipient, "size: small\ndata:\n", "values")?,
        ),
        ("app/chart/templates/secret.yaml", of_chart.to_owned()),
        ("app/plugin/empty.txt", String::new()),
        // A plugin that prints a value in its error, one that prints all of them, invalid YAML, a file with a value as
        // its name, and a key that the API server refuses.
        ("bad/chart/Chart.yaml", chart.to_owned()),
        (
            "bad/chart/values.yaml.liquid",
            "password: {{ configuration.own2 | quote }}\n".to_owned(),
        ),
        (
            "bad/chart/templates/a.yaml",
            "{{ fail (printf \"%s is too short\" .Values.password) }}".to_owned(),
        ),
        ("bad/plugin/empty.txt", String::new()),
        (
            "bad/yaml/a.yaml.liquid",
            "{{ configuration.own3 }}: one\n{{ configuration.own3 }}: two\n".to_owned(),
        ),
        (
            "bad/overlay/kustomization.yaml.liquid",
            "resources: [\"{{ configuration.own5 }}.yaml\"]\n".to_owned(),
        ),
        ("bad/key/a.yaml.liquid", map("odd", "\"{{ configuration.own6 }}!\": x")),
    ];
    Ok(files.into_iter().map(|(path, text)| (path.to_owned(), text)).collect())
}

pub fn stated() -> Value {
    let backend = |name: &str, path: &str| json!({"from": {"secret": path, "backend": name}});
    json!({
        "configuration": {"host": "web.example.com"},
        "secrets": [{"name": "handed"}],
        "parameters": [
            {"from": {"context": "hidden"}}, {"from": {"secret": "own"}}, {"from": {"secret": "plugin"}},
            backend("mounted", "team/db"), backend("variables", "all"), backend("safe", "all"),
            {"from": {"clusterSecret": "made-here"}, "keys": keys("cluster")},
        ],
        "renderers": [
            {"path": "raw"}, {"path": "chart", "helm": {"valuesFiles": ["secrets.yaml"]}},
            {"path": "plugin", "type": "Plugin", "plugin": "tell"},
        ],
    })
}

/// Checks that all values are where they belong. Otherwise it would prove nothing that they are not found elsewhere.
pub async fn check_arrived(there: &Api<Secret>) -> Result<()> {
    let data = async |name: &str| anyhow::Ok(there.get(name).await?.data.unwrap_or_default());
    let mut expected = vec![
        ("made", "own"),
        ("made", "files"),
        ("made", "environment"),
        ("made", "program"),
    ];
    expected.extend([
        ("made", "cluster"),
        ("made", "shared"),
        ("made", "context"),
        ("made", "deep"),
    ]);
    expected.extend([("opened", "sops"), ("of-chart", "values"), ("handed", "handed")]);
    for (name, input) in expected {
        let data = data(name).await?;
        for (key, value) in values(input) {
            let found = data
                .get(&key)
                .map(|value| String::from_utf8_lossy(&value.0).into_owned());
            ensure!(found.as_deref() == value.as_str(), "{key} of {name} is {found:?}");
        }
    }
    let of_chart = data("of-chart").await?;
    ensure!(
        of_chart
            .get("password")
            .is_some_and(|value| value.0 == canary("own", 1).as_bytes())
    );
    let of_plugin = data("of-plugin").await?;
    let all = String::from_utf8_lossy(&of_plugin.get("all").context("what the plugin got")?.0).into_owned();
    ensure!(
        values("plugin")
            .values()
            .all(|value| all.contains(value.as_str().unwrap_or("nothing"))),
        "{all}"
    );
    Ok(())
}

/// A set with the same values. The hub stores the relevant parts for its service.
pub async fn stamp(fleet: &Fleet) -> Result<()> {
    let mut template = stated();
    let more = json!({"targetNamespace": fleet.namespace("stamped"), "sourceRef": {"name": "infra"}, "path": "app"});
    template
        .as_object_mut()
        .context("a spec")?
        .extend(more.as_object().context("a spec")?.clone());
    let spec = serde_json::from_value(json!({"clusterSelector": {}, "template": {"spec": template}}))?;
    fleet
        .api::<ServiceSet>()
        .create(&PostParams::default(), &ServiceSet::new("stamped", spec))
        .await?;
    let is_assigned = |service: &ServiceDeployment| {
        service
            .status
            .as_ref()
            .is_some_and(|status| status.assigned_revision.is_some())
    };
    fleet
        .until_service("stamped-east", "be assigned", is_assigned)
        .await
        .map(drop)
}

/// Services that fail while they have a value. They report the failure without the value.
pub async fn check_errors(fleet: &Fleet, marks: &Marks) -> Result<()> {
    let plugin = json!([{"type": "Plugin", "plugin": "complain"}]);
    let bad = [
        ("chart", Value::Null),
        ("plugin", plugin),
        ("yaml", Value::Null),
        ("overlay", Value::Null),
        ("key", Value::Null),
    ];
    for (name, renderers) in &bad {
        let mut stated = json!({"parameters": [{"from": {"secret": "own"}}]});
        if renderers.is_array() {
            stated["renderers"] = renderers.clone();
        }
        fleet
            .deploy_with(&format!("bad-{name}"), "east", "infra", &format!("bad/{name}"), stated)
            .await?;
    }
    for (name, _) in &bad {
        let name = format!("bad-{name}");
        let is_told = |service: &ServiceDeployment| {
            let status = serde_json::to_string(&service.status).unwrap_or_default();
            status.contains("(secret)")
        };
        let service = fleet.until_service(&name, "tell what is wrong", is_told).await?;
        let status = service.status.clone().unwrap_or_default();
        ensure!(condition(&status.conditions, "Ready") == Some("False"), "{status:?}");
        marks.check(&name, &serde_json::to_string(&service)?)?;
        marks.check(
            &format!("objects of {name}"),
            &serde_json::to_string(&fleet.objects(&name).await?)?,
        )?;
    }
    Ok(())
}

/// A webhook of each host, and a delivery with a wrong signature.
pub async fn deliver_all(fleet: &Fleet, infra: &Repository) -> Result<()> {
    let commit = infra.branch("main").context("a commit")?;
    let url = fleet.git.url("infra");
    let before = "1".repeat(commit.len());
    let push = Push {
        url: &url,
        branch: "main",
        before: &before,
        after: &commit,
        size: 100,
    };
    let receivers: Api<Receiver> = fleet.api();
    for (n, host) in Host::ALL.into_iter().enumerate() {
        let name = host.receiver_type().as_str();
        let secret = json!({"metadata": {"name": name}, "stringData": {"token": canary("token", n)}});
        create_secret(&fleet.client, ADMIN_NAMESPACE, secret).await?;
        let spec = json!({"type": host.receiver_type(), "resources": [{"name": "infra"}], "secretRef": {"name": name}});
        receivers
            .create(
                &PostParams::default(),
                &Receiver::new(name, serde_json::from_value(spec)?),
            )
            .await?;
        let served = format!("receiver {name} to be served");
        let path = fleet.until(&served, || async {
            Ok(receivers.get(name).await?.status.unwrap_or_default().webhook_path)
        });
        let path = path.await?;
        for (token, expected) in [(canary("token", n), 202), (canary("token", n + 1), 403)] {
            let request = Sender::new(host, &token).push(&path, push);
            let answer = fleet.client.send(request.map(Body::from)).await?;
            ensure!(answer.status().as_u16() == expected, "{name}: {}", answer.status());
        }
    }
    Ok(())
}

/// Plans the same service with other values in the same places.
pub fn check_plan(fleet: &Fleet, marks: &Marks, files: &[(String, String)]) -> Result<()> {
    let local = tempfile::tempdir()?;
    for (path, text) in files {
        let Some(path) = path.strip_prefix("app/") else {
            continue;
        };
        let path = local.path().join(path);
        fs::create_dir_all(path.parent().context("a folder")?)?;
        let is_template = path.extension().is_some_and(|ending| ending == "liquid");
        let swapped = text
            .replace("configuration.own0", "configuration.own7")
            .replace("own1 ", "own8 ");
        fs::write(path, if is_template { &swapped } else { text })?;
    }
    let folder = local.path().to_str().context("a path")?;
    for more in [&[][..], &["-o", "json"], &["-o", "wide"]] {
        let ran = fleet
            .cli()
            .run(&[&["plan", "app", "--local", folder][..], more].concat())?;
        marks.check("a plan", &format!("{}\n{}", ran.stdout, ran.stderr))?;
    }
    let told = fleet
        .cli()
        .expect(1, &["plan", "app", "-o", "json", "--local", folder])?
        .stdout;
    ensure!(
        told.contains("hmac:") && told.contains("of-chart") && told.contains("\"told\""),
        "{told}"
    );
    Ok(())
}

/// Checks that no output about the service contains a secret value.
pub fn check_explained(fleet: &Fleet) -> Result<()> {
    let explained = fleet.cli().expect(0, &["explain", "parameters", "app", "-o", "json"])?;
    let answer: ParametersAnswer = serde_json::from_str(&explained.stdout)?;
    let secret = answer.values.iter().filter(|value| value.secret);
    let picked = [
        "own",
        "files",
        "environment",
        "program",
        "cluster",
        "plugin",
        "shared",
        "context",
    ];
    // And the only name that is nested.
    let expected = picked.iter().map(|input| count(input)).sum::<usize>() + 1;
    ensure!(
        secret.clone().count() == expected && secret.clone().all(|value| value.value.is_none()),
        "{answer:#?}"
    );
    let host = answer.values.iter().find(|value| value.name == "configuration.host");
    ensure!(
        host.and_then(|host| host.value.clone()) == Some(json!("web.example.com")),
        "{host:?}"
    );
    Ok(())
}

/// Checks that later failures are reported without values, too.
pub async fn break_rest(fleet: &Fleet, marks: &Marks, places: &Places) -> Result<()> {
    places.other.set_auth(Auth::Bearer("another".to_owned()));
    fleet.reconcile("other").await?;
    until_source(fleet, "other", "False").await?;
    let secrets: Api<Secret> = fleet.api();
    let drop_key = json!([{"op": "remove", "path": "/data/own1"}]);
    let mut pick = stated();
    pick["parameters"][1]["keys"] = json!(["own0", "own1"]);
    let pick = json!({"spec": {"parameters": pick["parameters"]}});
    fleet
        .api::<ServiceDeployment>()
        .patch("app", &PatchParams::default(), &Patch::Merge(pick))
        .await?;
    secrets
        .patch(
            "own",
            &PatchParams::default(),
            &Patch::Json::<()>(serde_json::from_value(drop_key)?),
        )
        .await?;
    fleet
        .until_condition("app", "Ready", "False", "Secret own has no key own1")
        .await?;
    let twice = json!({"spec": {
        "configuration": {"shared0": canary("shared", 0)}, "secretRefs": [{"name": "shared", "keys": ["shared0"]}],
    }});
    let contexts: Api<ServiceContext> = fleet.api();
    let refused = contexts
        .patch("hidden", &PatchParams::default(), &Patch::Merge(twice))
        .await
        .expect_err("stated twice");
    marks.check("a refusal", &refused.to_string())?;
    ensure!(refused.to_string().contains("shared0 is stated twice"), "{refused}");
    Ok(())
}

/// Checks that rendered output is on no disk. It would be compressed, so a search would not find it.
pub fn check_renders(fleet: &Fleet) -> Result<()> {
    let state = fleet.state_dir("east");
    ensure!(
        state.join("rendered").is_dir() && state.join("work").is_dir(),
        "the agent keeps renders elsewhere"
    );
    let kept = fs::read_dir(state.join("rendered"))?.count();
    ensure!(kept == 0, "{kept} renders are kept, and they are compressed");
    Ok(())
}
