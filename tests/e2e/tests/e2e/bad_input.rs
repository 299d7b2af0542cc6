//! Mistakes in commits, and what the user sees: a message in `kubectl get` and `farwater why` with the place, the cause
//! and the remedy. Everything else continues, nothing is pruned, and a commit fixes it.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use farwater_e2e::{Fleet, cli::Cli, config_map};
use farwater_testkit::{Plane, shared};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, ResourceExt as _, api::ListParams};

/// A mistake: bad files in a service's folder beside its good objects, and the message for its user.
struct Mistake {
    service: &'static str,
    /// Files in the service's folder.
    file: &'static str,
    text: String,
    /// Place, cause and remedy in the message.
    says: &'static [&'static str],
    /// Whether nothing of the folder can be used, so that all objects stay unchanged.
    spoils_all: bool,
}

fn mistake(service: &'static str, text: impl Into<String>, says: &'static [&'static str]) -> Mistake {
    Mistake {
        service,
        file: "bad.yaml",
        text: text.into(),
        says,
        spoils_all: false,
    }
}

fn spoiling(service: &'static str, file: &'static str, text: &str, says: &'static [&'static str]) -> Mistake {
    Mistake {
        file,
        spoils_all: true,
        ..mistake(service, text, says)
    }
}

/// Files that can't be read as manifests. Other missing objects are not pruned either, because the content of these
/// files is unknown.
fn unreadable() -> Vec<Mistake> {
    let named = |more: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: was}}\n{more}");
    // Nine levels of nine aliases: 400 million nodes from half a kilobyte.
    let mut bomb = named("data:\n  a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for level in 1..9 {
        let nine = vec![format!("*a{}", level - 1); 9].join(", ");
        bomb += &format!("  a{level}: &a{level} [{nine}]\n");
    }
    let inflated = named(&format!("data: {{value: {}}}\n", "x".repeat(3 << 20)));
    let numbers: String = (0..500_000).map(|n| format!("{n} ")).collect();
    let huge = named(&format!("data: {{value: {numbers}}}\n"));
    let conflict = "<<<<<<< HEAD\ndata: {value: ours}\n=======\ndata: {value: theirs}\n>>>>>>> next\n";
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
    vec![
        mistake(
            "bomb",
            bomb,
            &["bomb/bad.yaml:", "alias bomb", "use fewer aliases, or split it"],
        ),
        mistake(
            "huge",
            huge,
            &["huge/bad.yaml:1", "bytes long", "at most 3145728: split it"],
        ),
        mistake(
            "twice",
            named("data: {value: one}\ndata: {value: two}\n"),
            &[
                "twice/bad.yaml:5",
                "key \"data\" is given twice, first on line 4",
                "keep one",
            ],
        ),
        mistake(
            "kindless",
            "apiVersion: v1\nmetadata: {name: was}\n",
            &[
                "kindless/bad.yaml:1",
                "has no kind",
                "an object needs apiVersion, kind and metadata.name",
            ],
        ),
        mistake(
            "nameless",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {labels: {app: web}}\n",
            &["nameless/bad.yaml:1", "has no metadata.name", "an object needs"],
        ),
        mistake(
            "generated",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {generateName: was-}\n",
            &[
                "generated/bad.yaml:1",
                "each apply would make another object",
                "give it a metadata.name",
            ],
        ),
        mistake(
            "number",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: 007}\n",
            &["number/bad.yaml:1", "metadata.name that is not a string", "quote it"],
        ),
        mistake(
            "same",
            format!("{}---\n{}", config_map("was", "one"), config_map("was", "two")),
            &[
                "ConfigMap was is written twice",
                "same/bad.yaml:1",
                "same/bad.yaml:6",
                "keep one",
            ],
        ),
        mistake(
            "broken",
            named("data:\n\tvalue: one\n"),
            &["broken/bad.yaml:5", "not valid YAML: tabs disallowed"],
        ),
        mistake(
            "merge",
            named(conflict),
            &["merge/bad.yaml:4", "conflict markers of an unfinished merge"],
        ),
        mistake(
            "template",
            named("data:\n  value: {{ .Values.x }}\n"),
            &[
                "template/bad.yaml:5",
                "looks like a template: Helm's belong in a chart",
                ".liquid",
            ],
        ),
        mistake(
            "listed",
            "- apiVersion: v1\n  kind: ConfigMap\n",
            &["listed/bad.yaml:1", "is a list, not an object"],
        ),
        mistake(
            "pointer",
            pointer,
            &[
                "pointer/bad.yaml:1",
                "is a Git LFS pointer",
                "keep manifests out of LFS",
            ],
        ),
        spoiling(
            "dangling",
            "bad.yaml",
            "-> gone.yaml",
            &["dangling/bad.yaml", "symlink", "gone.yaml"],
        ),
        spoiling("inflated", "bad.yaml", &inflated, &["compress more than 1000 to 1"]),
        spoiling(
            "kustomized",
            "kustomization.yaml",
            "resources: [gone.yaml]\n",
            &["kustomized/kustomization.yaml:1", "gone.yaml does not exist"],
        ),
        spoiling(
            "chart",
            "Chart.yaml",
            "apiVersion: v2\nname: web\n",
            &["chart.metadata.version is required"],
        ),
    ]
}

/// Objects that the cluster refuses. Other missing objects would be pruned, because all files are readable.
fn refused() -> Vec<Mistake> {
    vec![
        mistake(
            "unknown",
            "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: was}\n",
            &[
                "Widget.example.com was",
                "which the cluster does not serve",
                "check apiVersion and kind",
            ],
        ),
        mistake(
            "retired",
            "apiVersion: extensions/v1beta1\nkind: Ingress\nmetadata: {name: was}\n",
            &[
                "Ingress.extensions was",
                "which the cluster does not serve",
                "check apiVersion and kind",
            ],
        ),
        mistake(
            "mistyped",
            "apiVersion: v1\nkind: Service\nmetadata: {name: was}\nspec: {ports: [{port: http}]}\n",
            &["Service ", "/was", "port"],
        ),
        mistake(
            "misspelt",
            "apiVersion: v1\nkind: Service\nmetadata: {name: was}\nspec: {prots: [{port: 80}]}\n",
            &["Service ", "/was", "prots"],
        ),
        mistake(
            "misnamed",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: Was_Here}\n",
            &["ConfigMap ", "/Was_Here", "metadata.name"],
        ),
    ]
}

/// Uid and value of each ConfigMap of a service, by name.
type Objects = BTreeMap<String, (String, String)>;

async fn objects(plane: &Plane, namespace: &str) -> Result<Objects> {
    let api: Api<ConfigMap> = Api::namespaced(plane.client().await?, namespace);
    let maps = api
        .list(&ListParams::default())
        .await?
        .into_iter()
        .filter(|map| map.name_any() != "kube-root-ca.crt");
    let of = |map: ConfigMap| {
        let value = map
            .data
            .as_ref()
            .and_then(|data| data.get("value"))
            .cloned()
            .unwrap_or_default();
        (map.name_any(), (map.uid().unwrap_or_default(), value))
    };
    Ok(maps.map(of).collect())
}

/// Checks the messages for the user of a broken service, in all places.
async fn check_messages(fleet: &Fleet, cli: &Cli, mistake: &Mistake) -> Result<()> {
    let Mistake { service, says, .. } = mistake;
    let first = says.first().copied().unwrap_or_default();
    fleet.until_condition(service, "Ready", "False", first).await?;
    let table = cli.kubectl(&["get", "sd", service, "-n", "farwater-admin"])?;
    let why = cli.expect(1, &["why", service])?.stdout;
    for (place, text) in [("kubectl get sd", &table), ("farwater why", &why)] {
        let missing: Vec<_> = says.iter().filter(|part| !text.contains(**part)).collect();
        ensure!(
            missing.is_empty(),
            "{place} of {service} does not say {missing:?}:\n{text}"
        );
    }
    ensure!(why.contains("next: "), "{why}");
    Ok(())
}

/// Checks that no object was deleted, and that good objects were updated.
async fn check_objects(plane: &Plane, fleet: &Fleet, mistake: &Mistake, before: &Objects) -> Result<()> {
    let now = objects(plane, &fleet.namespace(mistake.service)).await?;
    for (name, (uid, _)) in before {
        ensure!(
            now.get(name).is_some_and(|(now, _)| now == uid),
            "{name} of {} went: {now:?}",
            mistake.service
        );
    }
    let goes_on = now["good"].1 == "two" || mistake.spoils_all;
    ensure!(goes_on, "good objects of {} were not updated: {now:?}", mistake.service);
    Ok(())
}

/// All mistakes at once, each in its own service. One commit makes them, and another one fixes them.
async fn make_and_mend(plane: &Plane, mistakes: &[Mistake], takes_one_away: bool) -> Result<()> {
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let (one, was) = (config_map("good", "one"), config_map("goes", "one"));
    let path = |mistake: &Mistake, file: &str| format!("{}/{file}", mistake.service);
    let good: Vec<_> = mistakes
        .iter()
        .flat_map(|m| [(path(m, "good.yaml"), &one), (path(m, "goes.yaml"), &was)])
        .collect();
    let good: Vec<_> = good.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let repository = fleet.repository("infra", &good).await?;
    let first = repository.branch("main").context("the repository has no commit")?;
    let mut before = BTreeMap::new();
    for Mistake { service, .. } in mistakes {
        fleet.deploy(service, "east", "infra", service).await?;
    }
    for Mistake { service, .. } in mistakes {
        fleet.until_applied(service, &first).await?;
        before.insert(*service, objects(plane, &fleet.namespace(service)).await?);
    }

    let two = config_map("good", "two");
    let mut changes = Vec::new();
    for mistake in mistakes {
        changes.push((path(mistake, mistake.file), Some(mistake.text.as_str())));
        changes.push((path(mistake, "good.yaml"), Some(two.as_str())));
        if takes_one_away {
            changes.push((path(mistake, "goes.yaml"), None));
        }
    }
    let changes: Vec<_> = changes.iter().map(|(path, text)| (path.as_str(), *text)).collect();
    repository.change("main", &changes)?;
    fleet.reconcile("infra").await?;
    let cli = fleet.cli();
    let mut wrong = Vec::new();
    for mistake in mistakes {
        let kept = check_objects(plane, &fleet, mistake, &before[mistake.service]);
        let checked = check_messages(&fleet, &cli, mistake).await.and(kept.await);
        wrong.extend(checked.err().map(|error| format!("{error:#}")));
    }
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n\n"));
    }

    let mut mends = Vec::new();
    for mistake in mistakes {
        mends.push((path(mistake, mistake.file), None));
        mends.push((path(mistake, "goes.yaml"), Some(was.as_str())));
    }
    let mends: Vec<_> = mends.iter().map(|(path, text)| (path.as_str(), *text)).collect();
    let mended = repository.change("main", &mends)?;
    fleet.reconcile("infra").await?;
    for Mistake { service, .. } in mistakes {
        fleet.until_applied(service, &mended).await?;
        let now = objects(plane, &fleet.namespace(service)).await?;
        let uids = |all: &Objects| all.values().map(|(uid, _)| uid.clone()).collect::<Vec<_>>();
        ensure!(
            uids(&now) == uids(&before[service]),
            "{service} has other objects now: {now:?}"
        );
        ensure!(now["good"].1 == "two", "{service}: {now:?}");
        cli.expect(0, &["why", service])?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_cannot_be_read_are_named_and_take_nothing_away() -> Result<()> {
    make_and_mend(shared(1).await?, &unreadable(), true).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_that_the_cluster_does_not_take_are_named_and_stop_nothing_else() -> Result<()> {
    make_and_mend(shared(1).await?, &refused(), false).await
}
