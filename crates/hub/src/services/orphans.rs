//! Orphans: the objects that a removed service leaves in its cluster. Its report is deleted with it, so an Event tells
//! people once.

use farwater_api::objects::{ObjectRef, ObjectReport, SyncState};

use crate::notify::events::EventText;

const REASON: &str = "Orphaned";
/// Maximum names in one message; the rest is counted.
const NAMED: usize = 50;
/// Maximum bytes of the names: an Event's message has room for them and for the sentence around them.
const NAMED_BYTES: usize = 3584;

/// For a removal that the agent has confirmed: names what it left.
pub fn left_by_agent(cluster: &str, objects: &[ObjectReport]) -> Option<EventText> {
    let objects = there(objects);
    if objects.is_empty() {
        return None;
    }
    let message = format!(
        "{} in cluster {cluster} without a service: {}",
        count(&objects),
        names(&objects)
    );
    Some(EventText {
        is_warning: false,
        reason: REASON.into(),
        message,
    })
}

/// For a removal that did not wait for its silent agent.
pub fn left_by_hub(cluster: &str, objects: &[ObjectReport]) -> EventText {
    let why = format!("the agent of cluster {cluster} is silent and releases the objects when it is back");
    let message = match there(objects).as_slice() {
        [] => format!("{why}; it has not said which they are"),
        objects => format!("{why}; by its last report {}: {}", count(objects), names(objects)),
    };
    EventText {
        is_warning: true,
        reason: REASON.into(),
        message,
    }
}

/// Objects that were not applied are not in the cluster, or are not the service's.
fn there(objects: &[ObjectReport]) -> Vec<&ObjectRef> {
    let is_there = |one: &&ObjectReport| !matches!(one.sync, SyncState::Refused | SyncState::Waiting);
    objects.iter().filter(is_there).map(|one| &one.object).collect()
}

fn count(objects: &[&ObjectRef]) -> String {
    match objects.len() {
        1 => "1 object stays".to_owned(),
        number => format!("{number} objects stay"),
    }
}

fn names(objects: &[&ObjectRef]) -> String {
    let mut names = String::new();
    for (index, object) in objects.iter().enumerate() {
        let name = object.to_string();
        if index == NAMED || names.len() + name.len() > NAMED_BYTES {
            names.push_str(&format!(" and {} more", objects.len() - index));
            break;
        }
        if index > 0 {
            names.push_str(", ");
        }
        names.push_str(&name);
    }
    names
}

#[cfg(test)]
mod tests {
    use farwater_api::objects::Health;

    use super::*;

    fn objects(number: usize, name: &str) -> Vec<ObjectReport> {
        let object = |n: usize| ObjectRef {
            group: String::new(),
            version: "v1".to_owned(),
            kind: "ConfigMap".to_owned(),
            namespace: "web".to_owned(),
            name: format!("{name}{n}"),
        };
        let report = |n| ObjectReport {
            object: object(n),
            sync: SyncState::Synced,
            health: Health::Unknown,
            message: String::new(),
            waits_for: None,
        };
        (0..number).map(report).collect()
    }

    #[test]
    fn fifty_objects_are_named_and_all_are_counted() {
        assert_eq!(left_by_agent("east", &[]), None);
        let said = |number| left_by_agent("east", &objects(number, "m")).unwrap().message;
        assert_eq!(
            said(1),
            "1 object stays in cluster east without a service: ConfigMap web/m0"
        );
        assert_eq!(
            said(2),
            "2 objects stay in cluster east without a service: ConfigMap web/m0, ConfigMap web/m1"
        );
        assert!(said(50).ends_with("ConfigMap web/m49"), "{}", said(50));
        assert!(said(60).starts_with("60 objects stay") && said(60).ends_with("ConfigMap web/m49 and 10 more"));
        // Names may be long, but an Event's message may not.
        let long = left_by_hub("east", &objects(50, &"x".repeat(200))).message;
        assert!(long.len() < 4096 && long.ends_with(" more"), "{}", long.len());
    }

    #[test]
    fn a_silent_agent_may_never_have_named_an_object() {
        let silent = "the agent of cluster east is silent and releases the objects when it is back";
        assert_eq!(
            left_by_hub("east", &[]).message,
            format!("{silent}; it has not said which they are")
        );
        let mut reports = objects(2, "m");
        reports[1].sync = SyncState::Refused;
        let known = left_by_hub("east", &reports).message;
        assert_eq!(
            known,
            format!("{silent}; by its last report 1 object stays: ConfigMap web/m0")
        );
    }
}
