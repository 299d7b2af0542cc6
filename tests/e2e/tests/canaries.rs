//! Two hundred secrets, planted wherever one may come in, and looked for wherever anything is said or kept.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use farwater_api::{
    ADMIN_NAMESPACE, GitRepository, Receiver, SOURCE_CREDENTIALS, ServiceContext, ServiceDeployment, ServiceSet,
    URL_PREFIX, parameters::ParametersAnswer,
};
use farwater_e2e::{
    Fleet,
    collector::Collector,
    condition, config_map, files_with,
    sops::{encrypt, until_age_key},
};
use farwater_testkit::{
    Launch, Tools,
    deliveries::{Host, Push, Sender},
    git::{Auth, GitServer, Repository},
    ports, prometheus, shared,
};
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace, Secret};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
    client::Body,
};
use serde_json::{Map, Value, json};

/// Where they come in, and how many.
const INPUTS: [(&str, usize); 15] = [
    // Keys that a service picks: of a Secret of the hub, of each kind of backend, of a Secret in the cluster.
    ("own", 20),
    ("files", 20),
    ("environment", 10),
    ("program", 10),
    ("cluster", 10),
    // By a context: its Secret, its own configuration, and deep in it.
    ("shared", 20),
    ("context", 25),
    ("deep", 25),
    // In Git, encrypted: a manifest, and a chart's values.
    ("sops", 10),
    ("values", 10),
    // Secrets that the cluster gets too.
    ("handed", 20),
    // For a plugin.
    ("plugin", 20),
    // Credentials: of one repository, of all below a prefix, and of webhooks.
    ("password", 1),
    ("prefix", 1),
    ("token", 4),
];

/// How each begins, as it is and in base64 wherever it stands there: what is cut at one end still has it.
const MARKS: [&str; 4] = ["canary-", "Y2FuYXJ5", "NhbmFyeS", "jYW5hcn"];

fn canary(input: &str, n: usize) -> String {
    let half = format!("canary-{input}-{n:03}");
    format!("{half}.{half}")
}

fn count(input: &str) -> usize {
    INPUTS.iter().find(|(name, _)| *name == input).map_or(0, |(_, count)| *count)
}

fn key(input: &str, n: usize) -> String {
    format!("{input}{n}")
}

fn keys(input: &str) -> Vec<String> {
    (0..count(input)).map(|n| key(input, n)).collect()
}

/// By key.
fn values(input: &str) -> Map<String, Value> {
    (0..count(input)).map(|n| (key(input, n), canary(input, n).into())).collect()
}

/// Lines of YAML, each a key and where a template finds its value.
fn lines(input: &str, place: &str) -> String {
    keys(input).iter().map(|key| format!("  {key}: {{{{ {place}.{key} | quote }}}}\n")).collect()
}

#[track_caller]
fn check_clean(what: &str, text: &str) -> Result<()> {
    let mut found = MARKS.iter().filter_map(|mark| text.find(mark));
    let Some(at) = found.next() else { return Ok(()) };
    let (before, after) = text.split_at(at);
    let before: String = before.chars().rev().take(200).collect::<Vec<_>>().into_iter().rev().collect();
    anyhow::bail!("{what} shows one: {before}»{}", after.chars().take(200).collect::<String>())
}

fn encrypted(recipient: &str, head: &str, input: &str) -> Result<String> {
    let lines: String = values(input).iter().map(|(key, value)| format!("  {key}: {value}\n")).collect();
    encrypt(recipient, &format!("{head}{lines}"))
}

/// Makes a Secret of all parameters.
const TELL: &str =
    r#"printf 'apiVersion: v1\nkind: Secret\nmetadata: {name: of-plugin}\ndata: {all: %s}\n' "$(base64 -w0 "$1")""#;
/// Complains with them, more than is kept of a complaint.
const COMPLAIN: &str = r#"for n in 1 2 3 4 5 6 7 8 9; do cat "$1" >&2; echo >&2; done; exit 1"#;

/// What others have: folders, programs, a repository.
struct Places {
    folder: tempfile::TempDir,
    other: GitServer,
}

impl Places {
    async fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let place = folder.path();
        fs::create_dir_all(place.join("files/team/db"))?;
        for (key, value) in values("files") {
            fs::write(place.join("files/team/db").join(key), value.as_str().unwrap_or_default())?;
        }
        fs::write(place.join("safe.json"), json!({"values": values("program")}).to_string())?;
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
        other.create("other")?.commit("main", &[("a.yaml", &config_map("a", "one"))])?;
        other.set_auth(Auth::Bearer(canary("prefix", 0)));
        Ok(Self { folder, other })
    }

    fn path(&self, name: &str) -> Result<String> {
        Ok(self.folder.path().join(name).to_str().context("a path")?.to_owned())
    }
}

async fn create_secret(client: &Client, namespace: &str, object: Value) -> Result<()> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    secrets.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}

/// Secrets of the hub, a context, and sources with credentials.
async fn plant(fleet: &Fleet, places: &Places) -> Result<()> {
    for input in ["own", "shared", "handed", "plugin"] {
        let secret = json!({"metadata": {"name": input}, "stringData": values(input)});
        create_secret(&fleet.client, ADMIN_NAMESPACE, secret).await?;
    }
    let mut configuration = values("context");
    configuration.insert("deep".to_owned(), json!({"list": [values("deep")]}));
    let spec = json!({"configuration": configuration, "secretRefs": [{"name": "shared"}], "sensitive": true});
    let contexts: Api<ServiceContext> = fleet.api();
    contexts.create(&PostParams::default(), &ServiceContext::new("hidden", serde_json::from_value(spec)?)).await?;

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
        sources.create(&PostParams::default(), &GitRepository::new(name, serde_json::from_value(spec)?)).await?;
    }
    until_source(fleet, "other", "True").await
}

async fn until_source(fleet: &Fleet, name: &str, ready: &str) -> Result<()> {
    let sources: Api<GitRepository> = fleet.api();
    fleet
        .until(&format!("source {name} to be Ready={ready}"), || async {
            let status = sources.get(name).await?.status.unwrap_or_default();
            Ok((condition(&status.conditions, "Ready") == Some(ready)).then_some(()))
        })
        .await
}

/// What the service `app` is made of. The others can't be rendered or applied, and say why.
fn files(recipient: &str) -> Result<Vec<(String, String)>> {
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
        // Also in the midst of a text, in an object that is no Secret.
        ("app/raw/told.yaml.liquid", map("told", "url: \"db://{{ configuration.own0 }}@db\"")),
        ("app/raw/opened.yaml", encrypted(recipient, manifest, "sops")?),
        ("app/chart/Chart.yaml", chart.to_owned()),
        ("app/chart/values.yaml.liquid", "password: {{ configuration.own1 | quote }}\n".to_owned()),
        ("app/chart/secrets.yaml", encrypted(recipient, "size: small\ndata:\n", "values")?),
        ("app/chart/templates/secret.yaml", of_chart.to_owned()),
        ("app/plugin/empty.txt", String::new()),
        // One that says a value where it fails, one that complains with all of them, YAML that is none, a file that is named like
        // one, and a key that the API server refuses.
        ("bad/chart/Chart.yaml", chart.to_owned()),
        ("bad/chart/values.yaml.liquid", "password: {{ configuration.own2 | quote }}\n".to_owned()),
        ("bad/chart/templates/a.yaml", "{{ fail (printf \"%s is too short\" .Values.password) }}".to_owned()),
        ("bad/plugin/empty.txt", String::new()),
        ("bad/yaml/a.yaml.liquid", "{{ configuration.own3 }}: one\n{{ configuration.own3 }}: two\n".to_owned()),
        ("bad/overlay/kustomization.yaml.liquid", "resources: [\"{{ configuration.own5 }}.yaml\"]\n".to_owned()),
        ("bad/key/a.yaml.liquid", map("odd", "\"{{ configuration.own6 }}!\": x")),
    ];
    Ok(files.into_iter().map(|(path, text)| (path.to_owned(), text)).collect())
}

fn stated() -> Value {
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

/// All of them are where they are meant to be, else nothing is shown by not finding them.
async fn check_arrived(there: &Api<Secret>) -> Result<()> {
    let data = async |name: &str| anyhow::Ok(there.get(name).await?.data.unwrap_or_default());
    let mut expected = vec![("made", "own"), ("made", "files"), ("made", "environment"), ("made", "program")];
    expected.extend([("made", "cluster"), ("made", "shared"), ("made", "context"), ("made", "deep")]);
    expected.extend([("opened", "sops"), ("of-chart", "values"), ("handed", "handed")]);
    for (name, input) in expected {
        let data = data(name).await?;
        for (key, value) in values(input) {
            let found = data.get(&key).map(|value| String::from_utf8_lossy(&value.0).into_owned());
            ensure!(found.as_deref() == value.as_str(), "{key} of {name} is {found:?}");
        }
    }
    let of_chart = data("of-chart").await?;
    ensure!(of_chart.get("password").is_some_and(|value| value.0 == canary("own", 1).as_bytes()));
    let of_plugin = data("of-plugin").await?;
    let all = String::from_utf8_lossy(&of_plugin.get("all").context("what the plugin got")?.0).into_owned();
    ensure!(values("plugin").values().all(|value| all.contains(value.as_str().unwrap_or("nothing"))), "{all}");
    Ok(())
}

/// A set that is handed the same: of its service the hub keeps what counts.
async fn stamp(fleet: &Fleet) -> Result<()> {
    let mut template = stated();
    let more = json!({"targetNamespace": fleet.namespace("stamped"), "sourceRef": {"name": "infra"}, "path": "app"});
    template.as_object_mut().context("a spec")?.extend(more.as_object().context("a spec")?.clone());
    let spec = serde_json::from_value(json!({"clusterSelector": {}, "template": {"spec": template}}))?;
    fleet.api::<ServiceSet>().create(&PostParams::default(), &ServiceSet::new("stamped", spec)).await?;
    let is_assigned =
        |service: &ServiceDeployment| service.status.as_ref().is_some_and(|status| status.assigned_revision.is_some());
    fleet.until_service("stamped-east", "be assigned", is_assigned).await.map(drop)
}

/// Services that fail with a value at hand tell of the failure, and of no value.
async fn check_errors(fleet: &Fleet) -> Result<()> {
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
        fleet.deploy_with(&format!("bad-{name}"), "east", "infra", &format!("bad/{name}"), stated).await?;
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
        check_clean(&name, &serde_json::to_string(&service)?)?;
        check_clean(&format!("objects of {name}"), &serde_json::to_string(&fleet.objects(&name).await?)?)?;
    }
    Ok(())
}

/// A webhook of each host, and a delivery that another token has signed.
async fn deliver_all(fleet: &Fleet, infra: &Repository) -> Result<()> {
    let commit = infra.branch("main").context("a commit")?;
    let url = fleet.git.url("infra");
    let before = "1".repeat(commit.len());
    let push = Push { url: &url, branch: "main", before: &before, after: &commit, size: 100 };
    let receivers: Api<Receiver> = fleet.api();
    for (n, host) in Host::ALL.into_iter().enumerate() {
        let name = host.receiver_type().as_str();
        let secret = json!({"metadata": {"name": name}, "stringData": {"token": canary("token", n)}});
        create_secret(&fleet.client, ADMIN_NAMESPACE, secret).await?;
        let spec = json!({"type": host.receiver_type(), "resources": [{"name": "infra"}], "secretRef": {"name": name}});
        receivers.create(&PostParams::default(), &Receiver::new(name, serde_json::from_value(spec)?)).await?;
        let served = format!("receiver {name} to be served");
        let path =
            fleet.until(&served, || async { Ok(receivers.get(name).await?.status.unwrap_or_default().webhook_path) });
        let path = path.await?;
        for (token, expected) in [(canary("token", n), 202), (canary("token", n + 1), 403)] {
            let request = Sender::new(host, &token).push(&path, push);
            let answer = fleet.client.send(request.map(Body::from)).await?;
            ensure!(answer.status().as_u16() == expected, "{name}: {}", answer.status());
        }
    }
    Ok(())
}

/// The same service with other values at the same places.
fn check_plan(fleet: &Fleet, files: &[(String, String)]) -> Result<()> {
    let local = tempfile::tempdir()?;
    for (path, text) in files {
        let Some(path) = path.strip_prefix("app/") else { continue };
        let path = local.path().join(path);
        fs::create_dir_all(path.parent().context("a folder")?)?;
        let is_template = path.extension().is_some_and(|ending| ending == "liquid");
        let swapped = text.replace("configuration.own0", "configuration.own7").replace("own1 ", "own8 ");
        fs::write(path, if is_template { &swapped } else { text })?;
    }
    let folder = local.path().to_str().context("a path")?;
    for more in [&[][..], &["-o", "json"], &["-o", "wide"]] {
        let ran = fleet.cli().run(&[&["plan", "app", "--local", folder][..], more].concat())?;
        check_clean("a plan", &format!("{}\n{}", ran.stdout, ran.stderr))?;
    }
    let told = fleet.cli().expect(1, &["plan", "app", "-o", "json", "--local", folder])?.stdout;
    ensure!(told.contains("hmac:") && told.contains("of-chart") && told.contains("\"told\""), "{told}");
    Ok(())
}

fn check_command_line(fleet: &Fleet, more: &[&[&str]]) -> Result<()> {
    let mut said = String::new();
    let all = [
        &["explain", "parameters", "app", "-o", "wide"][..],
        &["explain", "parameters", "app", "-o", "json"],
        &["explain", "digest", "app"],
        &["plan", "app", "-o", "json"],
        &["plan", "app"],
        &["why", "app", "-o", "json"],
        &["why", "bad-plugin"],
        &["get", "sd,fwc,fwgit", "-o", "yaml"],
        &["get", "receivers", "-o", "yaml"],
        &["get", "secrets,servicecontexts"],
        &["history", "app", "-o", "json"],
        &["objects", "app", "-o", "json"],
        &["objects", "bad-key"],
        &["hooks", "app", "-o", "json"],
        &["tree"],
        &["doctor"],
    ];
    for arguments in all.iter().chain(more) {
        let ran = fleet.cli().run(arguments)?;
        said += &format!("{arguments:?} {}\n{}\n{}\n", ran.code, ran.stdout, ran.stderr);
    }
    check_clean("the command line", &said)?;
    ensure!(said.contains("configuration.own0") && said.contains("Secret own has no key own1"), "{said}");
    Ok(())
}

/// What the hub and the agent say to whoever asks them, and to whom they tell it by themselves.
async fn check_answers(fleet: &Fleet, agent: &str, collector: &Collector) -> Result<()> {
    let ask = async |path: &str| {
        Ok::<_, anyhow::Error>(fleet.client.request_text(http::Request::get(path).body(Vec::new())?).await?)
    };
    let group = "/apis/farwater.dev/v1alpha1";
    let service = format!("{group}/namespaces/{ADMIN_NAMESPACE}/servicedeployments");
    let mut paths = vec!["/metrics".to_owned()];
    for tail in ["", "/parameters", "/objects", "/history", "/hooks"] {
        paths.push(format!("{service}/app{tail}"));
    }
    paths.extend(["bad-chart", "bad-plugin", "bad-key"].map(|name| format!("{service}/{name}/objects")));
    // As the page asks: lists, and what comes afterwards.
    for kind in ["clusters", "servicedeployments"] {
        paths.push(format!("{group}/{kind}?limit=500"));
        paths.push(format!("{group}/{kind}?watch=true&resourceVersion=0&timeoutSeconds=1&allowWatchBookmarks=true"));
    }
    for kind in ["receivers", "gitrepositories", "servicecontexts"] {
        paths.push(format!("{group}/namespaces/{ADMIN_NAMESPACE}/{kind}"));
    }
    for path in &paths {
        let text = ask(path).await?;
        // Whoever may read the context itself reads what is in it, and nobody else.
        if !path.ends_with("servicecontexts") {
            check_clean(path, &text)?;
        }
    }
    let own = prometheus::get(&format!("http://{agent}/metrics")).await?;
    ensure!(own.contains("farwater_agent_"), "{own}");
    check_clean("the agent's metrics", &own)?;
    let events: Api<Event> = fleet.api();
    check_clean("events", &serde_json::to_string(&events.list(&ListParams::default()).await?.items)?)?;
    let told = collector.told();
    let has_log = |of: &str| told.logs.iter().any(|(service, _)| service == of);
    ensure!(has_log("farwater-hub") && has_log("farwater-agent") && !told.spans.is_empty());
    for body in &told.bodies {
        check_clean("what is told to a collector", &String::from_utf8_lossy(body))?;
    }
    Ok(())
}

/// Neither files of hub or agent, with their logs, nor what plugins leave, nor the agent's own Secrets and whatever else it has in
/// the cluster.
async fn check_kept(fleet: &Fleet, client: Client) -> Result<()> {
    let all = fleet.hub.dir().parent().context("a folder")?;
    let mut found = files_with(all, &MARKS)?;
    for entry in fs::read_dir(std::env::temp_dir())?.flatten() {
        if entry.file_name().to_string_lossy().starts_with("farwater-plugin-") {
            // Another test's may go meanwhile.
            found.extend(files_with(&entry.path(), &MARKS).unwrap_or_default());
        }
    }
    ensure!(found.is_empty(), "in the clear: {found:?}");
    for log in ["hub.log", "agent-east.log"] {
        ensure!(files_with(all, &["DEBUG"])?.iter().any(|found| found.ends_with(log)), "{log} was not searched");
    }
    let state = fleet.state_dir("east");
    ensure!(state.join("rendered").is_dir() && state.join("work").is_dir(), "the agent keeps renders elsewhere");
    let kept = fs::read_dir(state.join("rendered"))?.count();
    ensure!(kept == 0, "{kept} renders are kept, and they are compressed");

    let own: Api<Secret> = Api::namespaced(client.clone(), "farwater-system");
    let kept = own.list(&ListParams::default()).await?.items;
    let of_parameters = |name: &str| name.starts_with("farwater-parameters-");
    ensure!(kept.iter().any(|secret| secret.metadata.name.as_deref().is_some_and(of_parameters)));
    for secret in kept {
        for value in secret.data.into_iter().flatten().map(|(_, value)| value.0) {
            check_clean(&format!("{:?}", secret.metadata.name), &String::from_utf8_lossy(&value))?;
        }
    }
    let maps: Api<ConfigMap> = Api::namespaced(client, &fleet.namespace("app"));
    for map in maps.list(&ListParams::default()).await?.items {
        let is_meant = map.metadata.name.as_deref() == Some("told");
        ensure!(is_meant != check_clean("the cluster", &serde_json::to_string(&map)?).is_ok(), "{map:?}");
    }
    Ok(())
}

/// Whoever may read the hub's API reads them there; nobody else does, anywhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_planted_secrets_are_found_nowhere() -> Result<()> {
    ensure!(INPUTS.iter().map(|(_, count)| count).sum::<usize>() >= 200);
    let plane = shared(1).await?;
    let (places, collector) = (Places::new().await?, Collector::start().await?);
    let loud = |variable| collector.launch().variable(variable, "debug");
    let mut hub = loud("FARWATER_LOG_LEVEL").variable("FARWATER_SECRET_BACKENDS", &places.path("backends.yaml")?);
    for (name, value) in values("environment") {
        hub = hub.variable(&name, value.as_str().unwrap_or_default());
    }
    let mut fleet = Fleet::launch(hub).await?;
    let renderer = Tools::find_renderers()?.renderer().to_string_lossy().into_owned();
    let (plugins, metrics) = (places.path("plugins.yaml")?, format!("127.0.0.1:{}", ports::free()?));
    let agent = loud("FARWATER_LOG").variable("FARWATER_PLUGINS", &plugins);
    let agent = Launch { arguments: vec!["--health-listen".to_owned(), metrics.clone()], ..agent };
    fleet.join_with("east", plane, agent).await?;
    let recipient = until_age_key(&fleet, "east").await?;

    // What the cluster has itself.
    let (client, namespace) = (plane.client().await?, fleet.namespace("app"));
    let made = json!({"metadata": {"name": namespace}});
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &serde_json::from_value(made)?).await?;
    let made_here = json!({"metadata": {"name": "made-here"}, "stringData": values("cluster")});
    create_secret(&client, &namespace, made_here).await?;

    let files = files(&recipient)?;
    let infra = fleet.git.create("infra")?;
    infra.commit("main", &files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect::<Vec<_>>())?;
    plant(&fleet, &places).await?;
    fleet.deploy_with("app", "east", "infra", "app", stated()).await?;
    fleet.until_applied("app", &infra.branch("main").context("a commit")?).await?;
    check_arrived(&Api::namespaced(client.clone(), &namespace)).await?;
    stamp(&fleet).await?;

    let explained = fleet.cli().expect(0, &["explain", "parameters", "app", "-o", "json"])?;
    let answer: ParametersAnswer = serde_json::from_str(&explained.stdout)?;
    let secret = answer.values.iter().filter(|value| value.secret);
    let picked = ["own", "files", "environment", "program", "cluster", "plugin", "shared", "context"];
    // And the one name that is deep.
    let expected = picked.iter().map(|input| count(input)).sum::<usize>() + 1;
    ensure!(secret.clone().count() == expected && secret.clone().all(|value| value.value.is_none()), "{answer:#?}");
    let host = answer.values.iter().find(|value| value.name == "configuration.host");
    ensure!(host.and_then(|host| host.value.clone()) == Some(json!("web.example.com")), "{host:?}");
    check_plan(&fleet, &files)?;

    // What goes wrong says so without them.
    check_errors(&fleet).await?;
    deliver_all(&fleet, &infra).await?;
    places.other.set_auth(Auth::Bearer("another".to_owned()));
    fleet.reconcile("other").await?;
    until_source(&fleet, "other", "False").await?;
    let secrets: Api<Secret> = fleet.api();
    let drop_key = json!([{"op": "remove", "path": "/data/own1"}]);
    let mut pick = stated();
    pick["parameters"][1]["keys"] = json!(["own0", "own1"]);
    let pick = json!({"spec": {"parameters": pick["parameters"]}});
    fleet.api::<ServiceDeployment>().patch("app", &PatchParams::default(), &Patch::Merge(pick)).await?;
    secrets.patch("own", &PatchParams::default(), &Patch::Json::<()>(serde_json::from_value(drop_key)?)).await?;
    fleet.until_condition("app", "Ready", "False", "Secret own has no key own1").await?;
    let twice = json!({"spec": {
        "configuration": {"shared0": canary("shared", 0)}, "secretRefs": [{"name": "shared", "keys": ["shared0"]}],
    }});
    let contexts: Api<ServiceContext> = fleet.api();
    let refused =
        contexts.patch("hidden", &PatchParams::default(), &Patch::Merge(twice)).await.expect_err("stated twice");
    check_clean("a refusal", &refused.to_string())?;
    ensure!(refused.to_string().contains("shared0 is stated twice"), "{refused}");

    let render = ["render", "app", "--renderer", &renderer, "--plugins", &plugins];
    check_command_line(&fleet, &[&render])?;
    check_answers(&fleet, &metrics, &collector).await?;
    check_kept(&fleet, client).await
}
