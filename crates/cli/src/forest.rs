//! Draws the fleet as a tree of lines. It reads nothing from outside, so that tests can compare pictures.

use farwater_api::{
    ServiceDeployment,
    objects::{Health, ObjectReport, SyncState},
};
use farwater_fleet::{
    conditions::find,
    why::{ClusterEvidence, ago},
    words::{counted, verb},
};
use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::{
    commands::tree::Fleet,
    terminal::{Colour, Terminal},
    text,
};

/// A state as symbol, word and colour. The symbol and the word are enough without the colour.
struct Mark {
    symbol: &'static str,
    word: String,
    colour: Colour,
}

impl Mark {
    fn new(symbol: &'static str, word: impl Into<String>, colour: Colour) -> Self {
        Self {
            symbol,
            word: word.into(),
            colour,
        }
    }
}

pub fn render(fleet: &Fleet, terminal: Terminal, now: Timestamp) -> String {
    let mut drawing = Drawing {
        terminal,
        lines: String::new(),
    };
    let mut rest: Vec<&ServiceDeployment> = fleet.services.iter().collect();
    rest.sort_by_key(|service| (service.namespace(), service.name_any()));
    for ((namespace, name), cluster) in &fleet.clusters {
        let (here, elsewhere) = rest
            .into_iter()
            .partition(|service| runs_on(service, namespace, name, fleet));
        rest = elsewhere;
        drawing.cluster(&format!("{namespace}/{name}"), Some(cluster), now);
        drawing.services(&here, namespace, fleet);
    }
    // The services left over name clusters that do not exist, or that the user may not read.
    while let Some(first) = rest.first() {
        let name = first.spec.cluster_ref.name.clone();
        let (here, elsewhere) = rest
            .into_iter()
            .partition(|service| service.spec.cluster_ref.name == name);
        rest = elsewhere;
        drawing.cluster(&name, None, now);
        drawing.services(&here, "", fleet);
    }
    drawing.lines
}

/// Whether the service runs on this cluster, by the hub's rule: the named namespace, else the service's own, else the
/// administrators'.
fn runs_on(service: &ServiceDeployment, namespace: &str, name: &str, fleet: &Fleet) -> bool {
    let reference = &service.spec.cluster_ref;
    if reference.name != name {
        return false;
    }
    let own = service.namespace().unwrap_or_default();
    match &reference.namespace {
        Some(stated) => stated == namespace,
        None if own == namespace => true,
        None => namespace == farwater_api::ADMIN_NAMESPACE && !fleet.clusters.contains_key(&(own, name.to_owned())),
    }
}

struct Drawing {
    terminal: Terminal,
    lines: String,
}

impl Drawing {
    fn cluster(&mut self, title: &str, cluster: Option<&ClusterEvidence>, now: Timestamp) {
        let Some(cluster) = cluster else {
            return self.line("", title, &Mark::new("?", "not readable", Colour::Doubtful), "");
        };
        let heard = cluster.heard.map(|time| format!("heard {} ago", ago(time, now)));
        let mark = match (cluster.is_ready, &heard) {
            (true, _) => Mark::new("●", "Ready", Colour::Good),
            (_, None) => Mark::new("○", "never joined", Colour::Doubtful),
            _ => Mark::new("✗", "silent", Colour::Bad),
        };
        let suspended = cluster.suspended.then(|| "suspended".to_owned());
        let details: Vec<String> = [cluster.kubernetes_version.clone(), heard, suspended]
            .into_iter()
            .flatten()
            .collect();
        self.line("", title, &mark, &details.join("  "));
    }

    fn services(&mut self, services: &[&ServiceDeployment], home: &str, fleet: &Fleet) {
        for (i, service) in services.iter().enumerate() {
            let last = i + 1 == services.len();
            let namespace = service.namespace().unwrap_or_default();
            let name = service.name_any();
            let title = if namespace == home {
                name
            } else {
                format!("{namespace}/{name}")
            };
            let (mark, detail) = judge_service(service);
            self.line(if last { "└─ " } else { "├─ " }, &title, &mark, &detail);
            let report = service
                .uid()
                .and_then(|uid| fleet.objects.get(&uid))
                .map(Vec::as_slice)
                .unwrap_or_default();
            for (j, object) in report.iter().enumerate() {
                let stem = if last { "   " } else { "│  " };
                let branch = if j + 1 == report.len() { "└─ " } else { "├─ " };
                let place =
                    if object.object.namespace.is_empty() || object.object.namespace == service.spec.target_namespace {
                        object.object.name.clone()
                    } else {
                        format!("{}/{}", object.object.namespace, object.object.name)
                    };
                let title = format!("{} {place}", object.object.kind);
                self.line(
                    &format!("{stem}{branch}"),
                    &title,
                    &judge_object(object),
                    &object.message,
                );
            }
        }
    }

    /// Cuts the line to the terminal's width before colouring it: a cut afterwards could leave a colour on.
    fn line(&mut self, stem: &str, title: &str, mark: &Mark, detail: &str) {
        let head = format!("{stem}{} ", mark.symbol);
        let title = text::plain(title);
        let state = format!("  {}", mark.word);
        let used = text::width(&head) + text::width(&title) + text::width(&state) + 2;
        let room = self
            .terminal
            .width
            .map_or(usize::MAX, |width| width.saturating_sub(used));
        let detail = text::plain(detail);
        let detail = if room < 4 { "".into() } else { text::fit(&detail, room) };
        let paint = |colour, text: &str| self.terminal.paint(colour, text);
        let mut line = format!(
            "{stem}{} {title}{}",
            paint(mark.colour, mark.symbol),
            paint(mark.colour, &state)
        );
        if !detail.is_empty() {
            line += &format!("  {}", paint(Colour::Faint, &detail));
        }
        self.lines += line.trim_end();
        self.lines.push('\n');
    }
}

fn judge_service(service: &ServiceDeployment) -> (Mark, String) {
    let status = service.status.clone().unwrap_or_default();
    let ready = find(&status.conditions, "Ready");
    let holds = |type_: &str| find(&status.conditions, type_).is_some_and(|c| c.status == "True");
    let revision = status.applied_revision.as_deref().map(text::short_revision);
    let counts = status.objects.filter(|counts| counts.total > 0);
    let counts = counts.map(|counts| format!("{}/{} healthy", counts.healthy, counts.total));
    let message = ready
        .map(|c| text::short_commits(&c.message).into_owned())
        .filter(|message| !message.is_empty());
    let held = status.held_prune.as_ref().map(|held| {
        let wait = verb(&held.count, "waits", "wait");
        format!("{} {wait} for approval", counted(held.count, "deletion"))
    });

    let (mark, message) = if service.metadata.deletion_timestamp.is_some() {
        (Mark::new("⌫", "being deleted", Colour::Doubtful), message)
    } else {
        match ready.map(|c| c.status.as_str()) {
            // A healthy service needs no message.
            Some("True") => (Mark::new("✓", "Healthy", Colour::Good), None),
            Some("False") if holds("Stalled") => (Mark::new("✗", "Failed", Colour::Bad), message),
            Some("Unknown") if service.spec.suspend => (Mark::new("‖", "Suspended", Colour::Doubtful), message),
            Some("Unknown") => (Mark::new("‖", "Held", Colour::Doubtful), message),
            Some("False") if holds("PruneHeld") => (Mark::new("‖", "PruneHeld", Colour::Doubtful), None),
            _ => (Mark::new("…", "Progressing", Colour::Doubtful), message),
        }
    };

    let pinned = service.spec.pin.as_ref().map(|_| "pinned".to_owned());
    // A suspension isn't listed: the message names one that is in force, and one that has ended doesn't matter any
    // more.
    let details: Vec<String> = [revision, counts, held, pinned, message]
        .into_iter()
        .flatten()
        .collect();
    (mark, details.join("  "))
}

fn judge_object(object: &ObjectReport) -> Mark {
    match (object.sync, object.health) {
        (SyncState::Refused, _) => Mark::new("✗", "Refused", Colour::Bad),
        (SyncState::Waiting, _) => Mark::new("…", "Waiting", Colour::Doubtful),
        (SyncState::Drifted, _) => Mark::new("≠", "Drifted", Colour::Doubtful),
        (SyncState::PruneHeld, _) => Mark::new("⌫", "PruneHeld", Colour::Doubtful),
        (SyncState::Unknown, _) => Mark::new("?", "Unknown", Colour::Doubtful),
        (SyncState::Synced, health) => {
            let (symbol, colour) = match health {
                Health::Current => ("✓", Colour::Good),
                Health::Failed => ("✗", Colour::Bad),
                Health::Terminating => ("⌫", Colour::Doubtful),
                Health::InProgress => ("…", Colour::Doubtful),
                Health::Unknown => ("?", Colour::Doubtful),
            };
            Mark::new(symbol, health.word(), colour)
        }
    }
}

#[cfg(test)]
mod tests {
    use farwater_api::Cluster;
    use serde_json::json;

    use super::*;

    fn condition(status: &str, message: &str) -> serde_json::Value {
        let one = |type_: &str, status: &str| json!({"type": type_, "status": status, "reason": "R", "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let other = if message.is_empty() { "Reconciling" } else { "Stalled" };
        if status == "True" {
            json!([one("Ready", "True")])
        } else {
            json!([one("Ready", status), one(other, "True")])
        }
    }

    fn service(namespace: &str, name: &str, cluster: &str, ready: &str, message: &str) -> ServiceDeployment {
        serde_json::from_value(json!({
            "apiVersion": "farwater.dev/v1alpha1", "kind": "ServiceDeployment",
            "metadata": {"name": name, "namespace": namespace, "uid": format!("{namespace}-{name}")},
            "spec": {"clusterRef": {"name": cluster}, "targetNamespace": name, "sourceRef": {"name": "infra"}},
            "status": {"appliedRevision": format!("main@sha1:{}", "a1".repeat(20)), "conditions": condition(ready, message),
                       "objects": {"total": 2, "healthy": 1, "progressing": 0, "failed": 1}}
        }))
        .unwrap()
    }

    fn fleet() -> Fleet {
        let east: Cluster = serde_json::from_value(json!({
            "apiVersion": "farwater.dev/v1alpha1", "kind": "Cluster",
            "metadata": {"name": "east", "namespace": "farwater-admin"}, "spec": {},
            "status": {"kubernetesVersion": "v1.33.4", "lastHeardTime": "2026-01-01T11:59:56Z", "conditions": condition("True", "")}
        }))
        .unwrap();
        let report: Vec<ObjectReport> = serde_json::from_value(json!([
            {"group": "apps", "version": "v1", "kind": "Deployment", "namespace": "web", "name": "web",
             "sync": "Synced", "health": "Failed", "message": "image\u{1b}[2J pull denied"},
            {"version": "v1", "kind": "Namespace", "name": "web", "sync": "Synced", "health": "Current"}
        ]))
        .unwrap();
        Fleet {
            clusters: [(("farwater-admin".to_owned(), "east".to_owned()), (&east).into())].into(),
            services: vec![
                service("team-a", "web", "east", "False", "Deployment web/web has failed"),
                service("farwater-admin", "database", "east", "True", ""),
                service("team-a", "lost", "west", "False", ""),
            ],
            objects: [("team-a-web".to_owned(), report)].into(),
        }
    }

    #[test]
    fn clusters_hold_services_that_hold_objects() {
        let now = "2026-01-01T12:00:00Z".parse().unwrap();
        let picture = render(&fleet(), Terminal::default(), now);
        assert_eq!(
            picture,
            "● farwater-admin/east  Ready  v1.33.4  heard 4s ago\n\
             ├─ ✓ database  Healthy  main@a1a1a1a1a1a1  1/2 healthy\n\
             └─ ✗ team-a/web  Failed  main@a1a1a1a1a1a1  1/2 healthy  Deployment web/web has failed\n   \
             ├─ ✗ Deployment web  Failed  image[2J pull denied\n   \
             └─ ✓ Namespace web  Healthy\n\
             ? west  not readable\n\
             └─ … team-a/lost  Progressing  main@a1a1a1a1a1a1  1/2 healthy\n"
        );
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let now = "2026-01-01T12:00:00Z".parse().unwrap();
        let picture = render(
            &fleet(),
            Terminal {
                width: Some(48),
                ..Terminal::default()
            },
            now,
        );
        assert!(picture.lines().all(|line| text::width(line) <= 48), "{picture}");
    }
}
