//! `farwater get`: resources of any kind that the hub serves, once or as they change.

use std::collections::HashMap;

use http::Method;
use serde_json::{Value, json};

use crate::{
    connection::{PAGE, Session, missing},
    failure::{Failure, Result},
    format::{self, Format},
    kinds::{self, Kind},
    scope::{ScopeArgs, is_label, is_name},
    table::{Column, Table},
    terminal::{Terminal, print, say},
    text,
    watch::{Change, follow},
};

const AS_TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const AS_JSON: &str = "application/json";

#[derive(Debug, clap::Args)]
pub struct GetArgs {
    /// What to show: a kind, its short name, a category such as `farwater`, several joined by commas, or KIND/NAME.
    kind: String,
    /// Names; every object if absent.
    names: Vec<String>,
    #[command(flatten)]
    scope: ScopeArgs,
    /// Only objects whose labels match, for example `tier=web,env!=test`.
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,
    /// What the output looks like.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    /// Goes on showing changes until interrupted.
    #[arg(short, long)]
    watch: bool,
}

/// What is asked, of one kind.
struct Query<'a> {
    kind: Kind,
    namespace: Option<&'a str>,
    names: Vec<String>,
    selector: Option<&'a str>,
    output: Format,
    /// Several kinds are shown: names say which.
    qualified: bool,
}

pub async fn run(args: GetArgs, session: &Session) -> Result<u8> {
    let (words, mut names) = match args.kind.split_once('/') {
        Some((kind, name)) => (kind, vec![name.to_owned()]),
        None => (args.kind.as_str(), Vec::new()),
    };
    names.extend(args.names.iter().cloned());
    if let Some(bad) = names.iter().find(|name| !is_path_segment(name)) {
        return Err(Failure::usage(format!("{bad:?} can't be a name")));
    }
    if args.scope.all_namespaces && !names.is_empty() {
        return Err(Failure::usage("a name is looked up in one namespace, not in all of them")
            .next("leave -A out, or select by label: -l LABELS"));
    }
    let namespace = args.scope.namespace(session);
    if let Some(bad) = namespace.filter(|namespace| !is_label(namespace)) {
        return Err(Failure::usage(format!("{bad:?} can't be a namespace")));
    }
    let kinds = kinds::resolve(session, words).await?;
    if args.watch && (kinds.len() > 1 || names.len() > 1) {
        return Err(Failure::usage("-w follows one kind, or one object"));
    }
    let qualified = kinds.len() > 1;
    let mut shown = false;
    for kind in kinds {
        let query = Query {
            kind,
            namespace,
            names: names.clone(),
            selector: args.selector.as_deref(),
            output: args.output,
            qualified,
        };
        if shown && matches!(args.output, Format::Table | Format::Wide) {
            print("\n")?;
        }
        shown |= show(session, &query, args.watch).await?;
    }
    if !shown && qualified {
        say("nothing found");
    }
    Ok(crate::exit::YES)
}

/// Names of roles hold colons; what may not be in a name is what would change the path.
fn is_path_segment(name: &str) -> bool {
    is_name(name)
        || (!name.is_empty()
            && !matches!(name, "." | "..")
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:@".contains(&b)))
}

/// Whether there was anything to show.
async fn show(session: &Session, query: &Query<'_>, watch: bool) -> Result<bool> {
    let terminal = Terminal::detect();
    let list = fetch(session, query).await?;
    let mut rows = match query.output {
        Format::Table | Format::Wide => {
            let mut rows = Rows::new(query, &list);
            if rows.table.rows.is_empty() && !watch {
                let place = query.namespace.filter(|_| query.kind.namespaced).map(|ns| format!(" in namespace {ns}"));
                if !query.qualified {
                    say(&format!("no {} found{}", query.kind.plural, place.unwrap_or_default()));
                }
                return Ok(false);
            }
            print(&rows.table.render(terminal))?;
            Some(rows)
        }
        _ => {
            print(&documents(query, &list, watch)?)?;
            None
        }
    };
    if !watch {
        return Ok(true);
    }
    let mut seen = versions(&list);
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
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
    if matches!(query.output, Format::Table | Format::Wide) { AS_TABLE } else { AS_JSON }
}

fn parameters(query: &Query<'_>) -> Vec<String> {
    let mut parameters = Vec::new();
    if let Some(selector) = query.selector {
        parameters.push(format!("labelSelector={}", encode(selector)));
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

/// Percent-encoding of a query's value (RFC 3986: unreserved characters stay).
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

/// The list, whole; of names, a list made of the single objects.
async fn fetch(session: &Session, query: &Query<'_>) -> Result<Value> {
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
        let mut page = session.ask(&attempt, Method::GET, &path, accept, None).await?;
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
        let path = query.kind.path(query.namespace, Some(name));
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
    let names: Vec<&str> =
        list["items"].as_array().into_iter().flatten().filter_map(|o| o["metadata"]["name"].as_str()).collect();
    missing(&query.kind.kind, &query.kind.plural, namespace, name, &names)
}

/// The rows or objects of a list.
fn items(list: &Value) -> Vec<Value> {
    let found = list["rows"].as_array().or_else(|| list["items"].as_array());
    found.cloned().unwrap_or_default()
}

/// A list's row as a watch would have sent it.
fn wrap(list: &Value, item: Value) -> Value {
    if list["kind"] == "Table" { json!({"kind": "Table", "rows": [item]}) } else { item }
}

fn uid_and_version(item: &Value) -> Option<(String, String)> {
    let metadata = if item["cells"].is_array() { &item["object"]["metadata"] } else { &item["metadata"] };
    Some((metadata["uid"].as_str()?.to_owned(), metadata["resourceVersion"].as_str()?.to_owned()))
}

fn versions(list: &Value) -> HashMap<String, String> {
    let single = list["rows"].is_null() && list["items"].is_null();
    let items = if single { vec![list.clone()] } else { items(list) };
    items.iter().filter_map(uid_and_version).collect()
}

fn emit(query: &Query<'_>, object: &Value, deleted: bool, rows: Option<&mut Rows>, terminal: Terminal) -> Result<()> {
    match (rows, query.output) {
        (Some(rows), _) => {
            rows.replace(query, object);
            if deleted {
                rows.mark_deleted();
            }
            print(&rows.table.render_rows(terminal))
        }
        (None, Format::Json) => print(&format::json_line(object)?),
        (None, Format::Yaml) => print(&format!("---\n{}", format::yaml(object)?)),
        (None, _) => print(&name_line(query, object)),
    }
}

fn name_line(query: &Query<'_>, object: &Value) -> String {
    let name = query.kind.qualified(object["metadata"]["name"].as_str().unwrap_or_default());
    format!("{}\n", text::plain(&name))
}

fn documents(query: &Query<'_>, list: &Value, stream: bool) -> Result<String> {
    let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    // A list leaves the type of its items out.
    let typed: Vec<Value> = items
        .iter()
        .map(|item| {
            let mut item = item.clone();
            let version = if query.kind.group.is_empty() {
                query.kind.version.clone()
            } else {
                format!("{}/{}", query.kind.group, query.kind.version)
            };
            item["apiVersion"] = version.into();
            item["kind"] = query.kind.kind.clone().into();
            item
        })
        .collect();
    if query.output == Format::Name {
        return Ok(typed.iter().map(|object| name_line(query, object)).collect());
    }
    if stream {
        let document = |object| {
            if query.output == Format::Json {
                format::json_line(object)
            } else {
                Ok(format!("---\n{}", format::yaml(object)?))
            }
        };
        return typed.iter().map(document).collect();
    }
    let single = query.names.len() == 1;
    let whole = match typed.first() {
        Some(object) if single => object.clone(),
        _ => json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": typed}),
    };
    if query.output == Format::Json { format::json(&whole) } else { format::yaml(&whole) }
}

/// The server's table, as far as it is shown.
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
        let wide = query.output == Format::Wide;
        let shown: Vec<usize> =
            (0..definitions.len()).filter(|&i| wide || definitions[i]["priority"].as_i64().unwrap_or(0) == 0).collect();
        let name = |i: usize| definitions[i]["name"].as_str().unwrap_or_default();
        let namespaces = query.kind.namespaced && query.namespace.is_none();
        let mut columns = Vec::new();
        if namespaces {
            columns.push(Column::fixed("Namespace"));
        }
        columns.extend(shown.iter().map(|&i| match name(i) {
            "Name" | "Age" | "Ready" => Column::fixed(name(i)),
            other => Column { elastic: true, ..Column::fixed(&text::plain(other)) },
        }));
        let revision = (!wide).then(|| shown.iter().copied().find(|&i| name(i) == "Revision")).flatten();
        let mut rows = Self { table: Table::new(columns), shown, revision, namespaces };
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
                    _ if query.output == Format::Wide => text,
                    _ => text::short_commits(&text).into_owned(),
                });
            }
            self.table.push(cells);
        }
    }
}

impl Rows {
    /// A row of what is gone must not read as one of what is there.
    fn mark_deleted(&mut self) {
        for name in self.table.rows.iter_mut().filter_map(|row| row.get_mut(usize::from(self.namespaces))) {
            name.push_str(" (deleted)");
        }
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
