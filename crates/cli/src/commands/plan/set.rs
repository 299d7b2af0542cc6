//! Shows what a ServiceSet would make of its clusters.

use std::path::Path;

use farwater_api::{
    GROUP, VERSION,
    service_set::{SetError, SetPlan},
};
use http::Method;
use serde_json::{Value, json};

use crate::{
    commands::convert::read_file,
    connection::Session,
    exit,
    failure::{Failure, Result},
    format::{self, Answer},
    scope::NamedSet,
    terminal::{Colour, Terminal, print, say},
    text,
};

/// Most clusters of each kind that are listed. The counts cover the others.
const SHOWN: usize = 50;

/// `file`: holds the proposed set. None: the set as it is in the hub.
pub async fn run(named: &NamedSet<'_>, file: Option<&Path>, output: Answer, session: &Session) -> Result<u8> {
    let (namespace, (plural, kind, name)) = (named.namespace, named.stated());
    let path = format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{plural}/{name}/plan");
    let attempt = format!("plan {kind} {namespace}/{name}");
    let mut answer = match file {
        None => session.read(&attempt, &path).await?,
        Some(file) => {
            let set = read_set(file, kind, (namespace, name))?;
            session
                .ask(&attempt, Method::POST, &path, "application/json", Some(&set))
                .await?
        }
    };
    let raw = answer["status"].take();
    let plan: SetPlan = serde_json::from_value(raw.clone())
        .map_err(|error| Failure::new(exit::INTERNAL, "the plan can't be read").evidence(error.to_string()))?;
    match output {
        Answer::Json => print(&format::json(&raw)?)?,
        Answer::Yaml => print(&format::yaml(&raw)?)?,
        Answer::Text => {
            print(&draw(&plan, &format!("{kind} {namespace}/{name}"), Terminal::detect()))?;
            if let Some(brake) = &plan.brake {
                say(&format!(
                    "nothing would be deleted in the fleet until an administrator has looked: {brake}"
                ));
            }
        }
    }
    let counts = plan.counts;
    Ok(if counts.added + counts.changed + counts.dropped + counts.errors == 0 {
        exit::YES
    } else {
        exit::NO
    })
}

/// Reads the object of this kind and name from a file.
fn read_set(file: &Path, kind: &str, (namespace, name): (&str, &str)) -> Result<Value> {
    let text = read_file(file)?;
    let unusable = |why: String| Failure::usage(format!("{} can't be read", file.display())).evidence(why);
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).map_err(|error| unusable(error.to_string()))?;
    let is_it = |object: &Value| {
        let metadata = &object["metadata"];
        let is_there = metadata["namespace"].as_str().is_none_or(|given| given == namespace);
        object["kind"] == kind && metadata["name"] == name && is_there
    };
    let mut found = documents
        .into_iter()
        .find(is_it)
        .ok_or_else(|| unusable(format!("it has no {kind} {name}")))?;
    found["metadata"]["namespace"] = json!(namespace);
    Ok(found)
}

fn draw(plan: &SetPlan, title: &str, terminal: Terminal) -> String {
    let mut picture = String::new();
    let mut line = |colour: Option<Colour>, line: &str| {
        let line = text::plain(line).into_owned();
        let line = terminal
            .width
            .map_or(line.clone(), |width| text::fit(&line, width).into_owned());
        picture += &colour.map_or(line.clone(), |colour| terminal.paint(colour, &line));
        picture.push('\n');
    };

    line(None, title);
    let added = plan.added.iter().map(|cluster| format!("  + {cluster}"));
    let changed = plan
        .changed
        .iter()
        .map(|one| format!("  ~ {}  {}", one.cluster, one.fields.join(", ")));
    let dropped = plan.dropped.iter().map(|cluster| format!("  - {cluster}"));
    let errors = plan
        .errors
        .iter()
        .map(|SetError { cluster, message }| format!("  ! {cluster}  {message}"));
    let counts = plan.counts;
    let parts: [(Colour, Vec<String>, usize); 4] = [
        (Colour::Good, added.collect(), counts.added),
        (Colour::Doubtful, changed.collect(), counts.changed),
        (Colour::Bad, dropped.collect(), counts.dropped),
        (Colour::Bad, errors.collect(), counts.errors),
    ];
    for (colour, lines, count) in parts {
        for told in lines.iter().take(SHOWN) {
            line(Some(colour), told);
        }
        if let Some(more) = count.checked_sub(SHOWN).filter(|more| *more > 0) {
            line(Some(Colour::Faint), &format!("    and {more} more"));
        }
    }
    line(
        None,
        &format!(
            "{} added, {} changed, {} dropped, {} unchanged, {} with errors",
            counts.added, counts.changed, counts.dropped, counts.unchanged, counts.errors
        ),
    );
    picture
}

#[cfg(test)]
mod tests {
    use farwater_api::service_set::{PlanCounts, PlannedChange};

    use super::*;

    #[test]
    fn a_plan_of_a_set_names_clusters_and_counts_the_rest() {
        let plan = SetPlan {
            counts: PlanCounts {
                added: 52,
                changed: 1,
                unchanged: 7,
                dropped: 1,
                errors: 1,
            },
            added: (0..52).map(|n| format!("farwater-admin/c{n:02}")).collect(),
            changed: vec![PlannedChange {
                cluster: "farwater-admin/x".to_owned(),
                fields: vec!["path".to_owned(), "labels".to_owned()],
            }],
            dropped: vec!["farwater-admin/y".to_owned()],
            errors: vec![SetError {
                cluster: "farwater-admin/z".to_owned(),
                message: "no region".to_owned(),
            }],
            brake: None,
        };
        let drawn = draw(&plan, "ServiceSet team-a/web", Terminal::default());
        let lines: Vec<&str> = drawn.lines().collect();
        assert_eq!(
            (lines[0], lines[1], lines[50]),
            (
                "ServiceSet team-a/web",
                "  + farwater-admin/c00",
                "  + farwater-admin/c49"
            )
        );
        assert_eq!(
            &lines[51..],
            [
                "    and 2 more",
                "  ~ farwater-admin/x  path, labels",
                "  - farwater-admin/y",
                "  ! farwater-admin/z  no region",
                "52 added, 1 changed, 1 dropped, 7 unchanged, 1 with errors",
            ]
        );
    }
}
