//! `farwater get`: resources of any kind that the hub serves, once or as they change.

mod granted;
mod output;
mod sort;

use std::collections::HashMap;

use farwater_api::json_path::Path;
use http::Method;
use serde_json::{Value, json};

use granted::Part;
use output::Output;

use crate::{
    connection::{PAGE, Session, missing},
    exit,
    failure::{Failure, Result},
    kinds::{self, Kind},
    scope::{ScopeArgs, is_label, is_name},
    table::{Column, Table},
    terminal::{Terminal, print, say},
    text,
    watch::{Change, follow},
};

const AS_TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const AS_JSON: &str = "application/json";

/// How selectors are written.
const SELECTORS: &str =
    "selectors are those of kubectl: -l 'env in (prod,test),!old', --field-selector metadata.name!=web";

#[derive(Debug, clap::Args)]
pub struct GetArgs {
    /// Resources to show: a kind, its short name, `sources`, a category such as `farwater`, several joined by commas, or
    /// KIND/NAME.
    kind: String,
    /// Names; every object if absent.
    names: Vec<String>,
    #[command(flatten)]
    scope: ScopeArgs,
    /// Only objects whose labels match, for example `tier=web,env!=test`.
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,
    /// Only objects whose fields match, for example `metadata.name!=web`.
    #[arg(long, value_name = "FIELDS")]
    field_selector: Option<String>,
    #[command(flatten)]
    columns: ColumnArgs,
    /// Sorts by a field, for example `.metadata.creationTimestamp`. Not with -w: changes are shown as they come.
    #[arg(long, value_name = "PATH", value_parser = Path::parse, conflicts_with = "watch")]
    sort_by: Option<Path>,
    /// Output format: table, wide, json, yaml, name, or jsonpath=TEMPLATE as in kubectl.
    #[arg(short, long, value_name = "FORMAT", value_parser = output::parse, default_value = "table", hide_default_value = true)]
    output: Output,
    /// Includes `metadata.managedFields` in JSON and YAML.
    #[arg(long)]
    show_managed_fields: bool,
    /// Shows changes until interrupted.
    #[arg(short, long)]
    watch: bool,
}

/// Columns beside those of the hub's table.
#[derive(Clone, Debug, Default, clap::Args)]
struct ColumnArgs {
    /// Adds a column with all labels.
    #[arg(long)]
    show_labels: bool,
    /// Adds a column for each of these labels, for example `-L env,region`.
    #[arg(short = 'L', long, value_name = "LABELS", value_delimiter = ',')]
    label_columns: Vec<String>,
}

/// A query for one kind.
struct Query<'a> {
    kind: Kind,
    namespace: Option<&'a str>,
    names: Vec<String>,
    /// Several kinds are shown, so names are qualified by kind.
    qualified: bool,
    args: &'a GetArgs,
}

impl Query<'_> {
    fn is_table(&self) -> bool {
        matches!(self.args.output, Output::Table | Output::Wide)
    }
}

pub async fn run(args: GetArgs, session: &Session) -> Result<u8> {
    let (words, mut names) = match args.kind.split_once('/') {
        Some((kind, name)) => (kind, vec![name.to_owned()]),
        None => (args.kind.as_str(), Vec::new()),
    };
    names.extend(args.names.iter().cloned());
    check(&args, &names)?;

    let namespace = args.scope.namespace(session);
    if let Some(bad) = namespace.filter(|namespace| !is_label(namespace)) {
        return Err(Failure::usage(format!("{bad:?} can't be a namespace")));
    }
    let kinds = kinds::resolve(session, words).await?;
    if args.watch && (kinds.len() > 1 || names.len() > 1) {
        return Err(Failure::usage("-w follows one kind, or one object"));
    }

    let mut parts = Vec::new();
    for kind in kinds {
        let names = names.clone();
        let whole = Part { kind, namespace, names };
        parts.extend(granted::divide(session, &args, whole).await?);
    }
    let qualified = parts.len() > 1;
    let queries = parts.into_iter().map(|part| Query {
        kind: part.kind,
        namespace: part.namespace,
        names: part.names,
        qualified,
        args: &args,
    });
    let is_table = matches!(args.output, Output::Table | Output::Wide);
    if args.watch || is_table {
        let mut shown = false;
        for query in queries {
            if shown {
                print("\n")?;
            }
            shown |= show(session, &query).await?;
        }
        if !shown && qualified {
            say("nothing found");
        }
        return Ok(exit::YES);
    }

    // One document for all kinds.
    let mut objects = Vec::new();
    for query in queries {
        let list = fetch(session, &query).await?;
        objects.extend(items(&list).into_iter().map(|object| typed(&query, object)));
    }
    if let Some(path) = &args.sort_by {
        objects = sort::by(path, objects, |object| object)?;
    }
    print(&args.output.documents(objects, names.len() == 1 && !qualified)?)?;
    Ok(exit::YES)
}

/// Refuses combinations of options before a request is made.
fn check(args: &GetArgs, names: &[String]) -> Result<()> {
    if let Some(bad) = names.iter().find(|name| !is_path_segment(name)) {
        return Err(Failure::usage(format!("{bad:?} can't be a name")));
    }
    if args.scope.all_namespaces && !names.is_empty() {
        return Err(
            Failure::usage("a name is looked up in one namespace, not in all of them")
                .next("leave -A out, or select by label: -l LABELS"),
        );
    }
    if !names.is_empty() && (args.selector.is_some() || args.field_selector.is_some()) {
        return Err(
            Failure::usage("names and selectors exclude each other").next("leave the names or the selector out")
        );
    }
    let has_columns = args.columns.show_labels || !args.columns.label_columns.is_empty();
    if has_columns && !matches!(args.output, Output::Table | Output::Wide) {
        return Err(Failure::usage("--show-labels and -L add columns to a table").next("leave them or -o out"));
    }
    Ok(())
}

/// Names of roles contain colons. Only characters that would change the path are refused.
fn is_path_segment(name: &str) -> bool {
    is_name(name)
        || (!name.is_empty()
            && !matches!(name, "." | "..")
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:@".contains(&b)))
}

/// Shows the objects. Returns whether there were any.
async fn show(session: &Session, query: &Query<'_>) -> Result<bool> {
    let terminal = Terminal::detect();
    let watch = query.args.watch;
    let list = fetch(session, query).await?;
    let mut rows = match query.is_table() {
        true => {
            let mut rows = Rows::new(query, &list);
            if rows.table.rows.is_empty() && !watch {
                let place = query
                    .namespace
                    .filter(|_| query.kind.namespaced)
                    .map(|ns| format!(" in namespace {ns}"));
                if !query.qualified {
                    say(&format!("no {} found{}", query.kind.plural, place.unwrap_or_default()));
                }
                return Ok(false);
            }
            print(&rows.table.render(terminal))?;
            Some(rows)
        }
        false => {
            for object in items(&list) {
                print(&query.args.output.streamed(&typed(query, object))?)?;
            }
            None
        }
    };

    if !watch {
        return Ok(true);
    }

    let mut seen = versions(&list);
    let version = list["metadata"]["resourceVersion"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let path = watch_path(query);
    follow(session, &path, accept(query), version, async |change| match change {
        Change::Event { object, deleted } => {
            seen.extend(versions(&object));
            emit(query, &object, deleted, rows.as_mut(), terminal)?;
            Ok(None)
        }
        Change::Relist => {
            let list = fetch(session, query).await?;
            let fresh = versions(&list);
            for object in items(&list) {
                let uid = uid_and_version(&object);
                if uid.is_some_and(|(uid, version)| seen.get(&uid) != Some(&version)) {
                    emit(query, &wrap(&list, object), false, rows.as_mut(), terminal)?;
                }
            }
            seen = fresh;
            Ok(list["metadata"]["resourceVersion"].as_str().map(str::to_owned))
        }
    })
    .await?;
    Ok(true)
}

fn accept(query: &Query<'_>) -> &'static str {
    if query.is_table() { AS_TABLE } else { AS_JSON }
}

fn parameters(query: &Query<'_>) -> Vec<String> {
    let mut parameters = Vec::new();
    for (name, selector) in [
        ("labelSelector", &query.args.selector),
        ("fieldSelector", &query.args.field_selector),
    ] {
        parameters.extend(selector.as_ref().map(|selector| format!("{name}={}", encode(selector))));
    }
    if query.is_table() && query.args.sort_by.is_some() {
        parameters.push("includeObject=Object".to_owned());
    }
    parameters
}

fn watch_path(query: &Query<'_>) -> String {
    let mut parameters = parameters(query);
    if let Some(name) = query.names.first() {
        parameters.push(format!("fieldSelector={}", encode(&format!("metadata.name={name}"))));
    }
    format!("{}?{}", query.kind.path(query.namespace, None), parameters.join("&"))
}

/// Percent-encodes a query value (RFC 3986: unreserved characters stay).
fn encode(value: &str) -> String {
    let mut encoded = String::new();
    for b in value.bytes() {
        if b.is_ascii_alphanumeric() || b"-._~".contains(&b) {
            encoded.push(char::from(b))
        } else {
            encoded += &format!("%{b:02X}")
        }
    }
    encoded
}

/// The complete list; for names, a list built from the single objects. Rows of a table are sorted as requested.
async fn fetch(session: &Session, query: &Query<'_>) -> Result<Value> {
    let mut list = fetch_unsorted(session, query).await?;
    if let (Some(path), Some(rows)) = (&query.args.sort_by, list["rows"].as_array_mut()) {
        *rows = sort::by(path, std::mem::take(rows), |row| &row["object"])?;
    }
    Ok(list)
}

async fn fetch_unsorted(session: &Session, query: &Query<'_>) -> Result<Value> {
    let accept = accept(query);
    if !query.names.is_empty() {
        return fetch_names(session, query, accept).await;
    }

    let attempt = format!("list {}", query.kind.plural);
    let mut whole: Option<Value> = None;
    let mut next = String::new();
    loop {
        let mut parameters = parameters(query);
        parameters.push(format!("limit={PAGE}"));
        if !next.is_empty() {
            parameters.push(format!("continue={}", encode(&next)));
        }
        let path = format!("{}?{}", query.kind.path(query.namespace, None), parameters.join("&"));
        let mut page = match session.ask(&attempt, Method::GET, &path, accept, None).await {
            Err(failure) if failure.code == exit::USAGE => return Err(failure.next(SELECTORS)),
            page => page?,
        };
        next = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
        match &mut whole {
            None => whole = Some(page),
            Some(whole) => {
                for key in ["rows", "items"] {
                    if let (Some(all), Some(more)) = (whole[key].as_array_mut(), page[key].as_array_mut()) {
                        all.append(more);
                    }
                }
            }
        }
        if next.is_empty() {
            return Ok(whole.unwrap_or_default());
        }
    }
}

async fn fetch_names(session: &Session, query: &Query<'_>, accept: &str) -> Result<Value> {
    let mut whole: Option<Value> = None;
    for name in &query.names {
        let attempt = format!("read {} {name}", query.kind.kind);
        let path = format!(
            "{}?{}",
            query.kind.path(query.namespace, Some(name)),
            parameters(query).join("&")
        );
        let object = match session.ask(&attempt, Method::GET, &path, accept, None).await {
            Err(failure) if failure.is_missing() => return Err(not_found(session, query, name).await),
            other => other?,
        };
        let mut one = if object["kind"] == "Table" {
            object
        } else {
            json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": object["metadata"]["resourceVersion"]},
                   "items": [object]})
        };
        match &mut whole {
            None => whole = Some(one),
            Some(whole) => {
                for key in ["rows", "items"] {
                    if let (Some(all), Some(more)) = (whole[key].as_array_mut(), one[key].as_array_mut()) {
                        all.append(more);
                    }
                }
            }
        }
    }
    Ok(whole.unwrap_or_default())
}

async fn not_found(session: &Session, query: &Query<'_>, name: &str) -> Failure {
    let namespace = query.namespace.filter(|_| query.kind.namespaced).unwrap_or_default();
    let path = format!("{}?limit={PAGE}", query.kind.path(query.namespace, None));
    let list = session.read("list names", &path).await.unwrap_or_default();
    let names: Vec<&str> = list["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|o| o["metadata"]["name"].as_str())
        .collect();
    missing(&query.kind.kind, &query.kind.plural, namespace, name, &names)
}

/// The rows or objects of a list.
fn items(list: &Value) -> Vec<Value> {
    let found = list["rows"].as_array().or_else(|| list["items"].as_array());
    found.cloned().unwrap_or_default()
}

/// Wraps a list's row like an event of a watch.
fn wrap(list: &Value, item: Value) -> Value {
    if list["kind"] == "Table" {
        json!({"kind": "Table", "rows": [item]})
    } else {
        item
    }
}

fn uid_and_version(item: &Value) -> Option<(String, String)> {
    let metadata = if item["cells"].is_array() {
        &item["object"]["metadata"]
    } else {
        &item["metadata"]
    };
    Some((
        metadata["uid"].as_str()?.to_owned(),
        metadata["resourceVersion"].as_str()?.to_owned(),
    ))
}

fn versions(list: &Value) -> HashMap<String, String> {
    let single = list["rows"].is_null() && list["items"].is_null();
    let items = if single { vec![list.clone()] } else { items(list) };
    items.iter().filter_map(uid_and_version).collect()
}

fn emit(query: &Query<'_>, object: &Value, deleted: bool, rows: Option<&mut Rows>, terminal: Terminal) -> Result<()> {
    let Some(rows) = rows else {
        return print(&query.args.output.streamed(&typed(query, object.clone()))?);
    };
    rows.replace(query, object);
    if deleted {
        rows.mark_deleted();
    }
    print(&rows.table.render_rows(terminal))
}

/// Adds the type, which items of lists lack, and removes `managedFields`.
fn typed(query: &Query<'_>, mut object: Value) -> Value {
    object["apiVersion"] = query.kind.api_version().into();
    object["kind"] = query.kind.kind.clone().into();
    if !query.args.show_managed_fields
        && let Some(metadata) = object["metadata"].as_object_mut()
    {
        metadata.remove("managedFields");
    }
    object
}

/// The shown part of the server's table.
struct Rows {
    table: Table,
    /// Indexes of the server's columns that are shown.
    shown: Vec<usize>,
    revision: Option<usize>,
    namespaces: bool,
}

impl Rows {
    fn new(query: &Query<'_>, list: &Value) -> Self {
        let definitions = list["columnDefinitions"].as_array().cloned().unwrap_or_default();
        let wide = query.args.output == Output::Wide;
        let shown: Vec<usize> = (0..definitions.len())
            .filter(|&i| wide || definitions[i]["priority"].as_i64().unwrap_or(0) == 0)
            .collect();
        let name = |i: usize| definitions[i]["name"].as_str().unwrap_or_default();
        let namespaces = query.kind.namespaced && query.namespace.is_none();
        let mut columns = Vec::new();
        if namespaces {
            columns.push(Column::fixed("Namespace"));
        }
        columns.extend(shown.iter().map(|&i| match name(i) {
            "Name" | "Age" | "Ready" => Column::fixed(name(i)),
            other => Column {
                elastic: true,
                ..Column::fixed(&text::plain(other))
            },
        }));
        columns.extend(query.args.columns.label_columns.iter().map(|label| {
            // kubectl's heading: without the prefix.
            Column::fixed(&text::plain(label.rsplit('/').next().unwrap_or(label)))
        }));
        if query.args.columns.show_labels {
            columns.push(Column::fixed("Labels"));
        }
        let revision = (!wide)
            .then(|| shown.iter().copied().find(|&i| name(i) == "Revision"))
            .flatten();
        let mut rows = Self {
            table: Table::new(columns),
            shown,
            revision,
            namespaces,
        };
        rows.replace(query, list);
        rows
    }

    fn replace(&mut self, query: &Query<'_>, list: &Value) {
        self.table.rows.clear();
        for row in list["rows"].as_array().into_iter().flatten() {
            let mut cells = Vec::new();
            if self.namespaces {
                cells.push(cell(&row["object"]["metadata"]["namespace"]));
            }
            for &i in &self.shown {
                let text = cell(&row["cells"][i]);
                cells.push(match i {
                    0 if query.qualified => query.kind.qualified(&text),
                    i if Some(i) == self.revision => text::short_revision(&text),
                    _ if query.args.output == Output::Wide => text,
                    _ => text::short_commits(&text).into_owned(),
                });
            }
            let labels = &row["object"]["metadata"]["labels"];
            cells.extend(
                query
                    .args
                    .columns
                    .label_columns
                    .iter()
                    .map(|label| cell(&labels[label])),
            );
            if query.args.columns.show_labels {
                cells.push(show_labels(labels));
            }
            self.table.push(cells);
        }
    }
}

impl Rows {
    /// Marks the row of a deleted object, so that it is not taken for an existing one.
    fn mark_deleted(&mut self) {
        for name in self
            .table
            .rows
            .iter_mut()
            .filter_map(|row| row.get_mut(usize::from(self.namespaces)))
        {
            name.push_str(" (deleted)");
        }
    }
}

/// `env=prod,tier=web`
fn show_labels(labels: &Value) -> String {
    let labels: Vec<String> = labels
        .as_object()
        .into_iter()
        .flatten()
        .map(|(label, value)| format!("{label}={}", value.as_str().unwrap_or_default()))
        .collect();
    if labels.is_empty() {
        "<none>".to_owned()
    } else {
        labels.join(",")
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
