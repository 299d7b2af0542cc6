//! Converts an Application to a service.

use serde_json::{Map, Value, json};

use super::{
    super::{
        Converted, Fields, NotConverted, Place, Told, drift, metadata, mounts::Mounts, name_of, namespace_of,
        service::Service,
    },
    Input, KEEPERS, KEPT,
    options::{self, Around},
    origin::{self, Origin},
};

/// Namespace for objects that name none, as in kubectl.
const NO_NAMESPACE: &str = "default";
/// Folder of the files of a second source, followed by a number.
const FOLDER: &str = "farwater-source";

/// Name and target of an Application, if something other than itself determines them.
pub(super) struct Given<'a> {
    /// Path of the spec in the object, for messages.
    pub path: &'a str,
    /// Its origin, for messages.
    pub shown: String,
    pub name: String,
    /// Release name of its charts. None: it differs by cluster.
    pub release: Option<String>,
    /// Target. None: the destination determines it.
    pub place: Option<Place>,
}

pub(super) fn convert(object: &Value, input: &mut Input<'_>) -> Result<Converted, NotConverted> {
    let mut told = Told::default();
    let shown = format!("Application {}/{}", namespace_of(object), name_of(object));
    let name = name_of(object).to_owned();
    let release = Some(name.clone());
    let given = Given {
        path: "spec",
        shown,
        name,
        release,
        place: None,
    };
    if !object["operation"].is_null() {
        told.note("operation", "is left out: it describes the sync in progress");
    }
    let objects = build(&object["metadata"], object["spec"].clone(), given, input, &mut told)?;
    Ok(told.with(objects))
}

/// The service, after the sources that it needs.
pub(super) fn build(
    meta: &Value,
    spec: Value,
    given: Given<'_>,
    input: &mut Input<'_>,
    told: &mut Told,
) -> Result<Vec<Value>, NotConverted> {
    let mut spec = Fields::new(given.path, spec)?;
    let project = spec.text("project")?.unwrap_or_else(|| "default".to_owned());
    let namespace = input.namespace(&project);
    if namespace.contains('.') || namespace.len() > 63 {
        return Err(NotConverted::impossible(
            spec.at("project"),
            "no namespace can be called so; name one with -n",
        ));
    }
    let (place, target) = destination(spec.map("destination")?, given.place, input, told)?;
    let mut metadata = metadata(meta, &KEEPERS, KEPT, told);
    metadata.remove("namespace");
    let name = format!("{}{}", given.name, input.terms.name_suffix);
    input
        .taken
        .claim(("ServiceDeployment", &namespace, &name), &given.shown, &given.shown)?;
    let mut service = Service::new(metadata, name, namespace, place);
    service.set("targetNamespace", target);

    let objects = files(&mut spec, &mut service, given.release.as_deref(), input, told)?;
    syncing(&mut spec, &mut service, told)?;
    told.note(
        "metadata.finalizers",
        "deleting the service leaves its objects where they are, so that going back is safe; spec.deletionPolicy: Delete says otherwise",
    );
    spec.pass(
        &["info", "revisionHistoryLimit"],
        "no counterpart: the hub keeps the last 20 versions",
        told,
    );
    spec.finish(told);

    Ok(objects.into_iter().chain([service.into_object()?]).collect())
}

/// Target, and namespace for objects that name none.
fn destination(
    mut destination: Fields,
    given: Option<Place>,
    input: &Input<'_>,
    told: &mut Told,
) -> Result<(Place, String), NotConverted> {
    let path = destination.path.clone();
    let (name, server) = (destination.text("name")?, destination.text("server")?);
    let namespace = destination.text("namespace")?;
    destination.finish(told);
    let place = match given {
        Some(place) => place,
        None => {
            let stated = name
                .or(server)
                .ok_or_else(|| NotConverted::impossible(&path, "it names no cluster"))?;
            input
                .cluster(&stated)
                .map_err(|why| NotConverted::impossible(&path, why))?
        }
    };
    let namespace = namespace.unwrap_or_else(|| {
        told.note(
            &format!("{path}.namespace"),
            format!("{NO_NAMESPACE} is stated, for objects that name no namespace"),
        );
        NO_NAMESPACE.to_owned()
    });
    Ok((place, namespace))
}

/// Sources and their rendering. The first source with files is the service's own; files of the others go below it.
fn files(
    spec: &mut Fields,
    service: &mut Service,
    release: Option<&str>,
    input: &mut Input<'_>,
    told: &mut Told,
) -> Result<Vec<Value>, NotConverted> {
    let mut stated = spec.maps("sources")?;
    let single = spec.map("source")?;
    // Argo CD reads `source` only if `sources` is empty.
    if stated.is_empty() {
        stated.push(single);
    }
    spec.lose(
        &["sourceHydrator"],
        "has no counterpart; name the branch that it writes in source",
        told,
    );
    let origins = stated
        .iter_mut()
        .map(|fields| origin::read(fields, &service.namespace, input, told))
        .collect::<Result<Vec<Origin>, _>>()?;

    let Rendered {
        own,
        renderers,
        beside,
        patches,
    } = render(stated, &origins, release, input, told)?;
    let own = own.ok_or_else(|| NotConverted::impossible(spec.at("sources"), "none of them has a path or a chart"))?;
    if renderers.len() > 1 && !patches.is_empty() {
        let why = "patches of one of several sources would change what comes of the others too; state them in a kustomization";
        return Err(NotConverted::impossible(spec.at("sources"), why));
    }
    service.set("sourceRef", own.reference.clone());
    match &own.chart {
        Some(chart) => service.set("chart", chart.clone()),
        None => service.set("path", own.path.clone()),
    }
    if !beside.is_empty() {
        service.set("sources", beside);
    }
    if renderers.iter().any(|renderer| *renderer != json!({})) {
        service.set("renderers", renderers);
    }
    service.patches = patches;
    let mut objects: Vec<Value> = Vec::new();
    for origin in origins.iter().filter(|origin| is_used(origin, service)) {
        if !objects.contains(&origin.object) {
            objects.push(origin.object.clone());
        }
    }
    Ok(objects)
}

/// How the sources with files are rendered.
#[derive(Default)]
struct Rendered<'a> {
    /// The service's own source. None: no source has files.
    own: Option<&'a Origin>,
    renderers: Vec<Value>,
    /// The other sources, with their places below the service's own.
    beside: Vec<Value>,
    patches: Vec<Value>,
}

fn render<'a>(
    stated: Vec<Fields>,
    origins: &'a [Origin],
    release: Option<&str>,
    input: &mut Input<'_>,
    told: &mut Told,
) -> Result<Rendered<'a>, NotConverted> {
    let mut mounts = Mounts::default();
    let mut rendered = Rendered::default();
    for (origin, mut fields) in origins.iter().zip(stated) {
        if origin.has_files {
            let mut around = Around {
                input,
                origins,
                origin,
                release,
                mounts: &mut mounts,
            };
            let rendering = options::convert(&mut fields, &mut around, told)?;
            rendered.add(origin, rendering.renderer);
            rendered.patches.extend(rendering.patches);
        }
        fields.finish(told);
    }
    rendered.beside.extend(mounts.into_sources());
    Ok(rendered)
}

impl<'a> Rendered<'a> {
    /// Adds a source: as the service's own if it is the first, otherwise in a folder below that.
    fn add(&mut self, origin: &'a Origin, mut renderer: Map<String, Value>) {
        if let Some(own) = self.own {
            let folder = format!("{FOLDER}-{}", self.renderers.len() + 1);
            let mount = if own.path.is_empty() {
                folder.clone()
            } else {
                format!("{}/{folder}", own.path)
            };
            self.beside.push(mounted(origin, &mount));
            renderer.insert("path".to_owned(), folder.into());
        } else {
            self.own = Some(origin);
        }
        self.renderers.push(Value::from(renderer));
    }
}

/// Whether a source is needed. One that is only named for files that nothing refers to is not.
fn is_used(origin: &Origin, service: &Service) -> bool {
    let beside = service
        .spec
        .get("sources")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    service.spec["sourceRef"] == origin.reference
        || beside.into_iter().any(|source| source["sourceRef"] == origin.reference)
}

fn mounted(origin: &Origin, mount: &str) -> Value {
    let mut source = Map::from_iter([
        ("sourceRef".to_owned(), origin.reference.clone()),
        ("mountPath".to_owned(), mount.into()),
    ]);
    match &origin.chart {
        Some(chart) => drop(source.insert("chart".to_owned(), chart.clone())),
        None if !origin.path.is_empty() => drop(source.insert("path".to_owned(), origin.path.clone().into())),
        None => {}
    }
    source.into()
}

/// Options of the sync: its time, and the fields that others may change.
fn syncing(spec: &mut Fields, service: &mut Service, told: &mut Told) -> Result<(), NotConverted> {
    let mut policy = spec.map("syncPolicy")?;
    let path = policy.path.clone();
    let automated = policy.take("automated");
    let mut automatic = Fields::new(format!("{path}.automated"), automated.clone())?;
    let is_switched_off = automatic.take("enabled") == Value::Bool(false);
    if automated.is_null() || is_switched_off {
        service.suspended = Some((format!("{path}.automated"), "it was synced by hand in Argo CD"));
        told.note(
            &format!("{path}.automated"),
            "it is synced by hand: the service is suspended, and `farwater resume` makes it automatic",
        );
    }
    let prunes = automatic.flag("prune")?;
    let heals = automatic.flag("selfHeal")?;
    automatic.pass(
        &["allowEmpty"],
        "no counterpart: a prune that would leave a service empty waits for an approval",
        told,
    );
    automatic.finish(told);

    let options = policy.texts("syncOptions")?;
    let stated = read_options(&options, &format!("{path}.syncOptions"), service, told);
    policy.pass(
        &["retry"],
        "no counterpart: what fails is tried again without an end",
        told,
    );
    policy.lose(
        &["managedNamespaceMetadata"],
        "has no counterpart in a service; state the namespace with its labels in a ManagedNamespace, or among the manifests",
        told,
    );
    policy.finish(told);

    service.set("prune", prunes && !stated.spares);
    ignored(spec, service, (heals, stated.keeps_ignored), told)
}

/// The options of a sync that concern other fields of the service.
#[derive(Default)]
struct Stated {
    /// Nothing is pruned.
    spares: bool,
    /// Newer versions leave ignored fields as they are.
    keeps_ignored: bool,
}

/// A table of the options.
fn read_options(options: &[String], path: &str, service: &mut Service, told: &mut Told) -> Stated {
    let mut stated = Stated::default();
    for option in options {
        let (name, value) = option.split_once('=').unwrap_or((option, "true"));
        match (name, value) {
            ("ApplyOutOfSyncOnly" | "ServerSideApply" | "SkipDryRunOnMissingResource" | "PruneLast" | "CreateNamespace", "true")
            | ("Validate" | "Delete" | "Prune", "true")
            | ("Replace" | "Force" | "RespectIgnoreDifferences" | "FailOnSharedResource", "false") => {}
            ("RespectIgnoreDifferences", _) => stated.keeps_ignored = true,
            ("Force", "true") => {
                service.apply.insert("immutable".to_owned(), "Recreate".into());
                told.note(path, format!("{option}: an object is recreated only where it can't be changed"));
            }
            ("Prune", _) => {
                stated.spares = true;
                told.note(path, format!("{option}: nothing is pruned; farwater.dev/prune says it of one object"));
            }
            ("Delete", _) => {}
            ("Replace", _) => told.lose(
                path,
                format!("{option}: objects are applied, and fields that others added stay; farwater.dev/method: Replace says it of one object"),
            ),
            ("FailOnSharedResource", _) => {
                told.note(path, format!("{option}: always so, an object of another service is never taken from it"));
            }
            ("CreateNamespace", _) => told.note(path, format!("{option}: the target namespace is made if it is missing")),
            _ => told.note(path, format!("{} has no counterpart", super::short(option))),
        }
    }
    stated
}

const CANT: &str = "names fields by expressions, or elements of lists, which can't be ignored here";

/// Fields that others may change. `heals`: drift is corrected. `keeps`: newer versions leave these fields as well.
fn ignored(
    spec: &mut Fields,
    service: &mut Service,
    (heals, keeps): (bool, bool),
    told: &mut Told,
) -> Result<(), NotConverted> {
    let all = spec.at("ignoreDifferences");
    let mut made = Vec::new();
    let mut is_whole = true;
    for rule in spec.maps("ignoreDifferences")? {
        let read = read_rule(rule, keeps, told)?;
        is_whole &= read.is_whole;
        made.extend(read.rule);
    }
    if !is_whole {
        told.note(
            &all,
            format!("{CANT}: drift is reported, and not corrected, until spec.apply.drift says otherwise"),
        );
    }
    if !made.is_empty() {
        if !keeps {
            told.note(&all, "these fields are left as they are when a newer version is applied, too, as with RespectIgnoreDifferences");
        }
        service.apply.insert("ignoreDifferences".to_owned(), Value::Array(made));
    }
    // By default, changes by others are reverted.
    if !heals || !is_whole {
        service.apply.insert("drift".to_owned(), "Report".into());
    }
    Ok(())
}

/// A rule of ignored fields.
struct IgnoreRule {
    /// None: it names nothing that can be ignored here.
    rule: Option<Value>,
    /// Whether all that it names can be ignored here.
    is_whole: bool,
}

fn read_rule(mut rule: Fields, keeps: bool, told: &mut Told) -> Result<IgnoreRule, NotConverted> {
    let path = rule.path.clone();
    let mut selects = Map::new();
    // Without a group, the rule means the core group.
    selects.insert("group".to_owned(), rule.text("group")?.unwrap_or_default().into());
    let mut is_plain = true;
    for name in ["kind", "namespace", "name"] {
        if let Some(text) = rule.text(name)? {
            is_plain &= text == "*" || !text.contains(['*', '?', '[']);
            selects.insert(name.to_owned(), text.into());
        }
    }
    is_plain &= selects["group"] == "*" || !selects["group"].as_str().unwrap_or_default().contains(['*', '?', '[']);
    let (paths, managers) = (rule.texts("jsonPointers")?, rule.texts("managedFieldsManagers")?);
    let expressions = rule.texts("jqPathExpressions")?;
    rule.finish(told);
    let pointed = drift::pointers(&paths);
    let read: Vec<Option<String>> = expressions.iter().map(|text| drift::pointer_of_jq(text)).collect();
    let is_whole = is_plain && pointed.is_some() && read.iter().all(Option::is_some);
    if !is_whole && keeps {
        told.lose(&path, format!("{CANT}, and newer versions would set them"));
    }
    let pointers: Vec<String> = pointed
        .into_iter()
        .flatten()
        .chain(read.into_iter().flatten())
        .collect();
    let names_some = is_plain && !(pointers.is_empty() && managers.is_empty());
    let rule = names_some.then(|| {
        for (field, texts) in [("jsonPointers", pointers), ("managedFieldsManagers", managers)] {
            if !texts.is_empty() {
                selects.insert(field.to_owned(), json!(texts));
            }
        }
        Value::from(selects)
    });
    Ok(IgnoreRule { rule, is_whole })
}
