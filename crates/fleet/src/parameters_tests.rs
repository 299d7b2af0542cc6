use farwater_api::parameters::{ChangedKeys, changed_keys};
use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Objects as in the API, by kind and name. Data of Secrets is text here; null stands for bytes that are not text.
type World = BTreeMap<(&'static str, String), Value>;

fn world(objects: Value) -> World {
    let mut world = World::new();
    for (kind, of_kind) in [
        (CONTEXTS, &objects["contexts"]),
        (CONFIG_MAPS, &objects["configMaps"]),
        (SECRETS, &objects["secrets"]),
        (CLUSTERS, &objects["clusters"]),
    ] {
        for (name, object) in of_kind.as_object().into_iter().flatten() {
            world.insert((kind, name.clone()), object.clone());
        }
    }
    world
}

fn texts(object: &Value) -> Texts {
    let data = object["data"].as_object().into_iter().flatten();
    Texts(
        data.map(|(key, text)| (key.clone(), text.as_str().map(str::to_owned)))
            .collect(),
    )
}

fn objects(spec: &ServiceDeploymentSpec, world: &World) -> Objects {
    let find = |kind, name: &str| world.get(&(kind, name.to_owned()));
    let Wanted {
        contexts,
        config_maps,
        mut secrets,
    } = wanted(spec);
    let read = |name: &String| {
        find(CONTEXTS, name).map(|object| Arc::new(serde_json::from_value(object["spec"].clone()).unwrap()))
    };
    let contexts = contexts.into_iter().map(|name| (name.clone(), read(&name))).collect();
    secrets.extend(wanted_through(spec, &contexts));
    let map = |name: String| {
        (
            name.clone(),
            find(CONFIG_MAPS, &name).map(|object| Arc::new(texts(object))),
        )
    };
    let secret = |name: SecretName| {
        let found = match &name.backend {
            Some(_) => Err(Unknown::Failed("it does not answer".to_owned())),
            None => Ok(find(SECRETS, &name.name).map(|object| Arc::new(texts(object)))),
        };
        (name, found)
    };
    Objects {
        contexts,
        config_maps: config_maps.into_iter().map(map).collect(),
        secrets: secrets.into_iter().map(secret).collect(),
    }
}

fn spec(parts: Value) -> ServiceDeploymentSpec {
    let mut spec = json!({
        "clusterRef": {"name": "east"}, "targetNamespace": "web", "sourceRef": {"name": "infra"},
    });
    for (field, value) in parts.as_object().unwrap() {
        spec[field] = value.clone();
    }
    serde_json::from_value(spec).unwrap()
}

fn resolve_in(spec: &ServiceDeploymentSpec, world: &World) -> Resolution {
    let cluster = world.get(&(CLUSTERS, "east".to_owned())).cloned().unwrap_or_default();
    let strings = |map: &Value| -> BTreeMap<String, String> { serde_json::from_value(map.clone()).unwrap_or_default() };
    let (labels, annotations) = (
        strings(&cluster["metadata"]["labels"]),
        strings(&cluster["metadata"]["annotations"]),
    );
    let metadata = cluster["spec"]["metadata"].as_object().cloned().unwrap_or_default();
    resolve(Inputs {
        uid: "uid-1",
        namespace: "team-a",
        name: "web",
        spec,
        cluster: ClusterInput {
            uid: "uid-2",
            namespace: "farwater-admin",
            name: "east",
            labels: &labels,
            annotations: &annotations,
            metadata: &metadata,
            version: cluster["status"]["kubernetesVersion"].as_str(),
        },
        objects: &objects(spec, world),
    })
}

/// Lines such as `configuration.host = 1 < ConfigMap sizes, host; instead of …`, followed by the problems.
fn tell(resolution: &Resolution) -> Vec<String> {
    let always = [
        "cluster.id",
        "cluster.name",
        "cluster.handle",
        "cluster.namespace",
        "service.",
    ];
    let values = resolution
        .values
        .iter()
        .filter(|value| !always.iter().any(|name| value.name.starts_with(name)));
    let told = values.map(|value| {
        let shown = value
            .value
            .as_ref()
            .map_or_else(|| "secret".to_owned(), ToString::to_string);
        let others: Vec<_> = value.instead_of.iter().map(ToString::to_string).collect();
        let others = if others.is_empty() {
            String::new()
        } else {
            format!("; instead of {}", others.join(" and "))
        };
        format!("{} = {shown} < {}{others}", value.name, value.origin)
    });
    told.chain(resolution.problems.iter().map(|problem| format!("! {problem}")))
        .collect()
}

#[track_caller]
fn check(parts: Value, objects: Value, expected: &[&str]) {
    assert_eq!(tell(&resolve_in(&spec(parts), &world(objects))), expected);
}

fn everything() -> Value {
    json!({
        "contexts": {
            "network": {"spec": {"configuration": {"domain": "example.com", "zones": ["a", "b"]}, "secretRefs": [
                {"name": "dns", "keys": ["token"]}]}},
            "hidden": {"spec": {"configuration": {"key": {"part": "hunter2"}}, "sensitive": true}},
        },
        "configMaps": {"sizes": {"data": {"cpu": "1", "memory": "2"}}},
        "secrets": {
            "database": {"data": {"password": "hunter2", "user": "web", "raw": null}},
            "dns": {"data": {"token": "hunter3", "other": "x"}},
        },
        "clusters": {"east": {
            "metadata": {"labels": {"region": "eu", "example.com/env": "test"}, "annotations": {"note": "n"}},
            "spec": {"metadata": {"vpc": {"id": 7}}},
            "status": {"kubernetesVersion": "v1.36.3"},
        }},
    })
}

#[test]
fn a_document_has_the_names_that_templates_know() {
    let parts = json!({
        "configuration": {"host": "web.example.com"},
        "parameters": [
            {"from": {"context": "network"}},
            {"from": {"configMap": "sizes"}, "keys": ["cpu"]},
            {"from": {"secret": "database"}, "keys": ["password"], "prefix": "db_"},
            {"from": {"cluster": "Labels"}, "keys": ["region", "example.com/env"]},
            {"from": {"cluster": "Annotations"}, "keys": ["note"]},
            {"from": {"cluster": "Metadata"}},
            {"from": {"cluster": "Version"}},
        ],
    });
    let resolution = resolve_in(&spec(parts), &world(everything()));
    assert_eq!(
        json!(resolution.parameters.values),
        json!({
            "configuration": {"host": "web.example.com", "cpu": "1", "db_password": "hunter2"},
            "contexts": {"network": {"domain": "example.com", "zones": ["a", "b"], "token": "hunter3"}},
            "cluster": {
                "id": "uid-2", "name": "east", "handle": "east", "namespace": "farwater-admin",
                "labels": {"region": "eu", "example.com/env": "test"}, "tags": {"region": "eu", "example.com/env": "test"},
                "annotations": {"note": "n"}, "metadata": {"vpc": {"id": 7}},
                "version": "v1.36.3", "currentVersion": "v1.36.3",
            },
            "service": {"id": "uid-1", "name": "web", "namespace": "web"},
        })
    );
    assert_eq!(
        resolution.parameters.secret,
        ["/configuration/db_password", "/contexts/network/token"]
    );
    assert_eq!(
        tell(&resolution),
        [
            "cluster.annotations.note = \"n\" < Cluster east, metadata.annotations[note]",
            "cluster.labels.region = \"eu\" < Cluster east, metadata.labels[region]",
            "cluster.labels[\"example.com/env\"] = \"test\" < Cluster east, metadata.labels[example.com/env]",
            "cluster.metadata.vpc = {\"id\":7} < Cluster east, spec.metadata[vpc]",
            "cluster.version = \"v1.36.3\" < Cluster east, status.kubernetesVersion",
            "configuration.cpu = \"1\" < ConfigMap sizes, cpu",
            "configuration.db_password = secret < Secret database, password",
            "configuration.host = \"web.example.com\" < ServiceDeployment web, spec.configuration",
            "contexts.network.domain = \"example.com\" < ServiceContext network, domain",
            "contexts.network.token = secret < Secret dns, token, by ServiceContext network",
            "contexts.network.zones = [\"a\",\"b\"] < ServiceContext network, zones",
        ]
    );
    let handed: Vec<String> = resolution
        .handed
        .iter()
        .map(|handed| format!("{} {}/{} {}", handed.kind, handed.namespace, handed.name, handed.key))
        .collect();
    assert_eq!(
        handed,
        [
            "clusters.farwater.dev farwater-admin/east Annotations/note",
            "clusters.farwater.dev farwater-admin/east Labels/example.com/env",
            "clusters.farwater.dev farwater-admin/east Labels/region",
            "clusters.farwater.dev farwater-admin/east Metadata/*",
            "clusters.farwater.dev farwater-admin/east Version/*",
            "configmaps team-a/sizes cpu",
            "secrets team-a/database password",
            "secrets team-a/dns token",
            "servicecontexts.farwater.dev team-a/network ",
        ]
    );
}

#[test]
fn what_is_stated_counts_before_what_is_named_as_a_whole() {
    check(
        json!({"configuration": {"cpu": "own"}, "parameters": [
            {"from": {"configMap": "sizes"}}, {"from": {"configMap": "more"}}, {"from": {"configMap": "sizes"}, "keys": ["memory"]}]}),
        json!({"configMaps": {"sizes": {"data": {"cpu": "1", "memory": "1"}}, "more": {"data": {"memory": "2", "disk": "2"}}}}),
        &[
            "configuration.cpu = \"own\" < ServiceDeployment web, spec.configuration; instead of ConfigMap sizes, cpu",
            "configuration.disk = \"2\" < ConfigMap more, disk",
            "configuration.memory = \"1\" < ConfigMap sizes, memory; instead of ConfigMap more, memory and ConfigMap sizes, memory",
        ],
    );
    check(
        json!({"parameters": [{"from": {"context": "c"}}]}),
        json!({
            "contexts": {"c": {"spec": {"configuration": {"a": "context"}, "secretRefs": [
                {"name": "one"}, {"name": "two"}, {"name": "two", "keys": ["picked"]}]}}},
            "secrets": {"one": {"data": {"a": "1", "b": "1", "picked": "1"}}, "two": {"data": {"b": "2", "picked": "2"}}},
        }),
        &[
            "contexts.c.a = \"context\" < ServiceContext c, a; instead of Secret one, a, by ServiceContext c",
            "contexts.c.b = secret < Secret two, b, by ServiceContext c; instead of Secret one, b, by ServiceContext c",
            "contexts.c.picked = secret < Secret two, picked, by ServiceContext c; instead of Secret two, picked, by ServiceContext c \
             and Secret one, picked, by ServiceContext c",
        ],
    );
}

#[test]
fn a_name_that_is_stated_twice_is_a_problem() {
    check(
        json!({"configuration": {"password": "x"}, "parameters": [{"from": {"secret": "database"}, "keys": ["password"]}]}),
        everything(),
        &[
            "configuration.password = \"x\" < ServiceDeployment web, spec.configuration; instead of Secret database, password",
            "! configuration.password is stated twice, by ServiceDeployment web, spec.configuration and by Secret database, password: \
             state it once, or put a prefix before the keys of one",
        ],
    );
    check(
        json!({"parameters": [{"from": {"context": "network"}, "keys": ["domain"]}, {"from": {"context": "network"}, "keys": ["domain", "zones"]}]}),
        everything(),
        &[
            "contexts.network.domain = \"example.com\" < ServiceContext network, domain; instead of ServiceContext network, domain",
            "contexts.network.zones = [\"a\",\"b\"] < ServiceContext network, zones",
            "! contexts.network.domain is stated twice, by ServiceContext network, domain and by ServiceContext network, domain: state \
             it once, or put a prefix before the keys of one",
        ],
    );
}

#[test]
fn what_is_missing_is_a_problem_and_no_empty_value() {
    check(
        json!({"parameters": [
            {"from": {"context": "nowhere"}}, {"from": {"configMap": "nowhere"}}, {"from": {"secret": "nowhere"}, "keys": ["a"]},
            {"from": {"context": "network"}, "keys": ["domain", "nothing"]}, {"from": {"configMap": "sizes"}, "keys": ["disk"]},
            {"from": {"secret": "database"}, "keys": ["raw"]}, {"from": {"cluster": "Labels"}, "keys": ["zone"]},
            {"from": {"secret": "kv/app", "backend": "vault"}, "keys": ["a"]}, {"from": {}}]}),
        everything(),
        &[
            "contexts.network.domain = \"example.com\" < ServiceContext network, domain",
            "! spec.parameters[8]: from names exactly one of context, configMap, secret, clusterSecret and cluster",
            "! ConfigMap nowhere does not exist in namespace team-a",
            "! Secret nowhere does not exist in namespace team-a",
            "! ServiceContext nowhere does not exist in namespace team-a",
            "! ConfigMap sizes has no key disk",
            "! Labels of Cluster east has no key zone",
            "! ServiceContext network has no key nothing",
            "! Secret kv/app of backend vault can't be read: it does not answer",
            "! Secret database: key raw holds bytes that are no text (UTF-8); pick the keys that do",
        ],
    );
    let absent = json!({"contexts": {"c": {"spec": {"secretRefs": [{"name": "gone"}]}}}});
    check(
        json!({"parameters": [{"from": {"context": "c"}, "keys": ["a"]}]}),
        absent,
        // Whether the missing Secret has the key is unknown.
        &["! Secret gone of ServiceContext c does not exist in namespace team-a"],
    );
    check(
        json!({"parameters": [{"from": {"cluster": "Version"}}]}),
        json!({"clusters": {"east": {}}}),
        &["! Cluster east can't be read: its agent has not said yet which version of Kubernetes it has"],
    );
}

#[test]
fn what_the_cluster_has_is_named_and_left_to_the_agent() {
    let parts = json!({"configuration": {"host": "web"}, "parameters": [
        {"from": {"clusterSecret": "db"}, "keys": ["password"], "prefix": "db/"}, {"from": {"configMap": "sizes"}, "keys": ["cpu"]}]});
    let resolution = resolve_in(&spec(parts), &world(everything()));
    assert_eq!(
        tell(&resolution),
        [
            "configuration.cpu = \"1\" < ConfigMap sizes, cpu",
            "configuration.host = \"web\" < ServiceDeployment web, spec.configuration",
            "configuration[\"db/password\"] = secret < ClusterSecret db, password",
        ]
    );
    let mut parameters = resolution.parameters;
    assert_eq!(parameters.values["configuration"], json!({"host": "web", "cpu": "1"}));
    assert_eq!(parameters.secret, [""; 0]);
    let [from] = &parameters.from_cluster[..] else {
        panic!("{:?}", parameters.from_cluster)
    };
    assert_eq!(
        (&*from.secret, &*from.key, &*from.name),
        ("db", "password", "db/password")
    );
    let name = from.name.clone();
    parameters.fill(&name, "hunter2".to_owned());
    assert_eq!(parameters.values["configuration"]["db/password"], "hunter2");
    assert_eq!(parameters.secrets().collect::<Vec<_>>(), ["hunter2"]);
    check(
        json!({"configuration": {"password": "x"}, "parameters": [
            {"from": {"clusterSecret": "db"}}, {"from": {"clusterSecret": "db"}, "keys": ["password"]}]}),
        json!({}),
        &[
            "configuration.password = \"x\" < ServiceDeployment web, spec.configuration; instead of ClusterSecret db, password",
            "! spec.parameters[0]: a Secret of the cluster is picked by keys: the hub does not know which it has",
            "! configuration.password is stated twice, by ServiceDeployment web, spec.configuration and by ClusterSecret db, password: \
             state it once, or put a prefix before the keys of one",
        ],
    );
}

#[test]
fn what_is_not_handed_over_may_be_broken() {
    let objects = json!({
        "contexts": {"c": {"spec": {"configuration": {"a": 1}, "secretRefs": [{"name": "gone", "keys": ["b"]}, {"name": "gone-too"}]}}},
        "secrets": {"s": {"data": {"a": "x", "raw": null}}},
    });
    check(
        json!({"parameters": [{"from": {"context": "c"}, "keys": ["a"]}, {"from": {"secret": "s"}, "keys": ["a"]}]}),
        objects,
        &[
            "configuration.a = secret < Secret s, a",
            "contexts.c.a = 1 < ServiceContext c, a",
        ],
    );
}

#[test]
fn a_document_has_a_largest_size() {
    let big = "x".repeat(100 << 10);
    let spec = spec(
        json!({"parameters": [{"from": {"configMap": "one"}}, {"from": {"configMap": "two"}}, {"from": {"configMap": "three"}}]}),
    );
    let map = |key: &str| json!({"data": {key: big}});
    let mut objects = json!({"configMaps": {"one": map("a"), "two": map("b"), "three": {"data": {"c": ""}}}});
    assert_eq!(resolve_in(&spec, &world(objects.clone())).problems, []);
    objects["configMaps"]["three"] = map("c");
    let problems = resolve_in(&spec, &world(objects)).problems;
    assert!(
        matches!(problems[..], [Problem::TooLarge { bytes }] if bytes > 300 << 10),
        "{problems:?}"
    );
}

#[test]
fn whose_contexts_pick_very_many_keys_is_handed_the_objects_as_wholes() {
    let data = |n: usize| -> Value {
        (0..256)
            .map(|k| (format!("k{n}-{k}"), json!("x")))
            .collect::<Map<_, _>>()
            .into()
    };
    let check = |count: usize, expected: usize| {
        let keys = |n: usize| data(n).as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        let refs: Vec<Value> = (0..count)
            .map(|n| json!({"name": format!("s{n}"), "keys": keys(n)}))
            .collect();
        let secrets: Map<_, _> = (0..count)
            .map(|n| (format!("s{n}"), json!({"data": data(n)})))
            .collect();
        let world = world(json!({"contexts": {"many": {"spec": {"secretRefs": refs}}}, "secrets": secrets}));
        let resolution = resolve_in(&spec(json!({"parameters": [{"from": {"context": "many"}}]})), &world);
        assert_eq!((resolution.problems, resolution.handed.len()), (vec![], expected));
        assert_eq!(
            resolution.parameters.values["contexts"]["many"]
                .as_object()
                .unwrap()
                .len(),
            count * 256
        );
    };
    check(7, 1 + 7 * 256);
    check(8, 1 + 8);
}

#[test]
fn statements_that_make_no_sense_are_told_with_their_place() {
    let told = |parts: Value| {
        let wrong = check_service(&spec(parts)).into_iter();
        wrong.map(|(field, why)| format!("{field}: {why}")).collect::<Vec<_>>()
    };
    assert_eq!(
        told(json!({"configuration": {"a": "1"}, "parameters": [{"from": {"secret": "s"}, "keys": ["b"]}]})),
        [""; 0]
    );
    assert_eq!(
        told(json!({"configuration": {"a b": "1", "c": "1"}, "parameters": [
            {"from": {}}, {"from": {"secret": "s", "configMap": "c"}}, {"from": {"context": "c", "backend": "v"}},
            {"from": {"context": "c"}, "prefix": "x"}, {"from": {"cluster": "Annotations"}}, {"from": {"cluster": "Version"}, "keys": ["a"]},
            {"from": {"secret": "s"}, "keys": ["c"]}, {"from": {"secret": "s"}, "keys": ["c"], "prefix": "s."},
            {"from": {"configMap": "m"}, "keys": ["s.c"]}, {"from": {"context": "c"}}, {"from": {"context": "c"}, "keys": ["a"]},
            {"from": {"context": "d"}, "keys": ["a", "a"]}, {"from": {"secret": "s", "backend": "v"}, "keys": ["\u{0}"]}]})),
        [
            "configuration[a b]: a name consists of letters, digits, '-', '_' and '.', and has at most 253 of them",
            "parameters[0]: from names exactly one of context, configMap, secret, clusterSecret and cluster",
            "parameters[1]: from names exactly one of context, configMap, secret, clusterSecret and cluster",
            "parameters[2]: from.backend says which backend has the secret; name one",
            "parameters[3]: a prefix is for keys of ConfigMaps and Secrets; these have names of their own",
            "parameters[4]: annotations are picked by keys: most of them are other programs' notes",
            "parameters[5]: a version has no keys",
            "parameters[6]: c is stated twice, by spec.configuration and by spec.parameters[6]",
            "parameters[8]: s.c is stated twice, by spec.parameters[7] and by spec.parameters[8]",
            "parameters[10]: contexts.c is stated twice, by spec.parameters[9] and by spec.parameters[10]",
            "parameters[11]: a is stated twice, by spec.parameters[11] and by spec.parameters[11]",
            "parameters[12]: a name or a key has a control character in it",
        ]
    );
    let context = |spec: Value| check_context(&serde_json::from_value(spec).unwrap());
    assert_eq!(
        context(json!({"configuration": {"a": 1}, "secretRefs": [{"name": "s", "keys": ["b"]}]})),
        []
    );
    let twice = context(json!({"configuration": {"a": "hunter2"}, "secretRefs": [{"name": "s", "keys": ["a"]}]}));
    let why = "a is stated twice, by spec.configuration and by spec.secretRefs[0]";
    assert_eq!(twice, [("secretRefs[0]".to_owned(), why.to_owned())]);
    let control = context(json!({"secretRefs": [{"name": "s"}, {"name": "s\u{7}"}]}));
    assert_eq!(
        control,
        [(
            "secretRefs[1]".to_owned(),
            "a name or a key has a control character in it".to_owned()
        )]
    );
}

/// Few names and keys, so that statements collide.
fn any_name() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "b", "c"]).prop_map(str::to_owned)
}

fn any_keys() -> impl Strategy<Value = Vec<String>> {
    prop::collection::btree_set(any_name(), 0..3).prop_map(|keys| keys.into_iter().collect())
}

fn any_map() -> impl Strategy<Value = Value> {
    prop::collection::btree_map(any_name(), prop::option::weighted(0.9, 0u8..3), 0..4).prop_map(|map| {
        let text = |number: u8| Value::from(format!("v{number}"));
        map.into_iter()
            .map(|(key, number)| (key, number.map_or(Value::Null, text)))
            .collect::<Map<_, _>>()
            .into()
    })
}

fn any_texts() -> impl Strategy<Value = Value> {
    prop::collection::btree_map(any_name(), (0u8..3).prop_map(|number| format!("v{number}")), 0..4)
        .prop_map(|map| json!(map))
}

fn any_context() -> impl Strategy<Value = Value> {
    let references = prop::collection::vec((any_name(), any_keys()), 0..3);
    (any_texts(), references, prop::bool::weighted(0.2)).prop_map(|(configuration, references, sensitive)| {
        let references: Vec<Value> = references
            .into_iter()
            .map(|(name, keys)| json!({"name": name, "keys": keys}))
            .collect();
        json!({"spec": {"configuration": configuration, "secretRefs": references, "sensitive": sensitive}})
    })
}

fn any_cluster() -> impl Strategy<Value = Value> {
    (any_texts(), any_texts(), any_texts(), prop::option::of(0u8..3)).prop_map(
        |(labels, annotations, metadata, version)| {
            let version = version.map(|version| format!("v1.{version}"));
            json!({
                "metadata": {"labels": labels, "annotations": annotations}, "spec": {"metadata": metadata},
                "status": {"kubernetesVersion": version},
            })
        },
    )
}

fn any_object(kind: &'static str) -> BoxedStrategy<Value> {
    match kind {
        CONTEXTS => any_context().boxed(),
        CLUSTERS => any_cluster().boxed(),
        _ => any_map().prop_map(|data| json!({"data": data})).boxed(),
    }
}

fn any_place() -> impl Strategy<Value = (&'static str, String)> {
    prop_oneof![
        (prop::sample::select(vec![CONTEXTS, CONFIG_MAPS, SECRETS]), any_name()),
        Just((CLUSTERS, "east".to_owned())),
    ]
}

fn any_world() -> impl Strategy<Value = World> {
    prop::collection::btree_set(any_place(), 3..10).prop_flat_map(|places| {
        let objects: Vec<_> = places
            .into_iter()
            .map(|place| (Just(place.clone()), any_object(place.0)))
            .collect();
        objects.prop_map(|objects| objects.into_iter().collect::<World>())
    })
}

fn any_parameter() -> impl Strategy<Value = Value> {
    let source = prop_oneof![
        any_name().prop_map(|name| json!({"context": name})),
        any_name().prop_map(|name| json!({"configMap": name})),
        any_name().prop_map(|name| json!({"secret": name})),
        prop::sample::select(vec!["Labels", "Annotations", "Metadata", "Version"])
            .prop_map(|part| json!({"cluster": part})),
    ];
    (source, any_keys(), prop::bool::weighted(0.3)).prop_map(|(from, keys, prefixed)| {
        let takes_prefix = from.get("configMap").is_some() || from.get("secret").is_some();
        let mut parameter = json!({"from": from, "keys": keys});
        if prefixed && takes_prefix {
            parameter["prefix"] = json!("p.");
        }
        parameter
    })
}

fn any_spec() -> impl Strategy<Value = ServiceDeploymentSpec> {
    (any_texts(), prop::collection::vec(any_parameter(), 0..5))
        .prop_map(|(configuration, parameters)| spec(json!({"configuration": configuration, "parameters": parameters})))
}

/// Whether the index says that the service depends on the change.
fn is_handed(resolution: &Resolution, (kind, name): &(&'static str, String), changed: &ChangedKeys) -> bool {
    let of_object = resolution
        .handed
        .iter()
        .filter(|handed| handed.kind == *kind && handed.name == *name);
    of_object.into_iter().any(|handed| match changed {
        ChangedKeys::Any => true,
        ChangedKeys::Some(keys) => !keys.is_empty() && (handed.key.is_empty() || keys.contains(&handed.key)),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// A change that the index doesn't connect with the service changes nothing for it. So only the services in the
    /// index must be resolved again.
    #[test]
    fn a_change_of_what_is_not_handed_over_changes_nothing(
        spec in any_spec(),
        before in any_world(),
        (place, after) in any_place().prop_flat_map(|place| (Just(place.clone()), prop::option::of(any_object(place.0)))),
    ) {
        let first = resolve_in(&spec, &before);
        let mut changed = before.clone();
        let keys = match (before.get(&place), &after) {
            (Some(old), Some(new)) => changed_keys(place.0, old, new),
            (None, None) => ChangedKeys::Some(BTreeSet::new()),
            _ => ChangedKeys::Any,
        };
        match after {
            Some(object) => drop(changed.insert(place.clone(), object)),
            None => drop(changed.remove(&place)),
        }
        let second = resolve_in(&spec, &changed);
        if !is_handed(&first, &place, &keys) {
            prop_assert_eq!(&first.parameters, &second.parameters);
            prop_assert_eq!(&first.problems, &second.problems);
            prop_assert_eq!(&first.handed, &second.handed);
        }
    }

    /// Each value has one origin, and secret values are only in the document.
    #[test]
    fn each_value_has_its_origin_and_no_secret_is_told(spec in any_spec(), world in any_world()) {
        let resolution = resolve_in(&spec, &world);
        let names: BTreeSet<&String> = resolution.values.iter().map(|value| &value.name).collect();
        prop_assert_eq!(names.len(), resolution.values.len());
        let document = json!(resolution.parameters.values);
        let count = |pointer: &str| document.pointer(pointer).and_then(Value::as_object).map_or(0, Map::len);
        let contexts = document["contexts"].as_object().unwrap();
        let version = usize::from(document["cluster"].get("version").is_some());
        let values = count("/configuration") + contexts.values().map(|context| context.as_object().unwrap().len()).sum::<usize>()
            + count("/cluster/labels") + count("/cluster/annotations") + count("/cluster/metadata") + version + 7;
        prop_assert_eq!(values, resolution.values.len());
        let secret = resolution.values.iter().filter(|value| value.secret);
        prop_assert_eq!(secret.clone().count(), resolution.parameters.secret.len());
        prop_assert!(secret.clone().all(|value| value.value.is_none()));
        prop_assert_eq!(resolution.parameters.secrets().count(), resolution.parameters.secret.len());
    }

    /// What admission accepts states nothing twice.
    #[test]
    fn what_was_checked_states_nothing_twice(spec in any_spec(), world in any_world()) {
        let contexts = world.iter().filter(|((kind, _), _)| *kind == CONTEXTS);
        let is_fine = |object: &Value| check_context(&serde_json::from_value(object["spec"].clone()).unwrap()).is_empty();
        if check_service(&spec).is_empty() && contexts.into_iter().all(|(_, object)| is_fine(object)) {
            let problems = resolve_in(&spec, &world).problems;
            let wrong = problems.iter().any(|problem| matches!(problem, Problem::Twice { .. } | Problem::Statement { .. }));
            prop_assert!(!wrong, "{:?}", problems);
        }
    }
}
