//! Checks of the hub: whether it is ready, and what in the fleet needs a person.

use farwater_api::{GitRepository, HelmRepository, OCIRepository, ServiceDeployment};
use farwater_fleet::{
    freeze::release,
    states,
    words::{counted, verb},
};
use http::StatusCode;

use super::{
    Check, Checks, Finding, Part,
    figures::Figures,
    local::{Answered, ask},
};
use crate::{connection::Session, failure::Result};

/// Thresholds of the alerts.
const DISK_LOW: f64 = 0.15;
const DISK_FULL: f64 = 0.03;
/// Objects that wait for a controller; a start or a large commit causes as many for some moments.
const WAITING: u64 = 1_000;

pub fn add<'a>(checks: &mut Checks<'a>, session: &'a Session) {
    checks.add(Part::Hub, "ready", ready(session));
    checks.add_many(Part::Hub, "figures", fleet(session));
}

async fn ready(session: &Session) -> Finding {
    match ask(session, "ask whether the hub is ready", "/readyz?verbose").await {
        Ok(Answered {
            status: StatusCode::OK,
            body,
            ..
        }) => {
            let parts: Vec<&str> = body.lines().filter_map(|line| line.strip_prefix("[+] ")).collect();
            Finding::ok(if parts.is_empty() {
                "ready".to_owned()
            } else {
                format!("ready: {}", parts.join(", "))
            })
        }
        Ok(Answered { status, body, .. }) => {
            let parts: Vec<&str> = body.lines().filter_map(|line| line.strip_prefix("[-] ")).collect();
            let found = if parts.is_empty() {
                status.to_string()
            } else {
                parts.join(", ")
            };
            Finding::fail(
                format!("not ready: {found}"),
                "see docs/runbooks/hub-down.md; the hub's log says why",
            )
        }
        Err(failure) => failure.into(),
    }
}

async fn fleet(session: &Session) -> Vec<Check> {
    let answered = match ask(session, "read the hub's metrics", "/metrics").await {
        Ok(answered) => answered,
        Err(failure) => return vec![Check::new(Part::Hub, "figures", failure)],
    };
    match answered.status {
        StatusCode::OK => judge(&Figures::parse(&answered.body), true, &session.kubectl(&release())),
        StatusCode::FORBIDDEN => {
            let found = format!(
                "/metrics is not yours to read; of the namespace {} alone:",
                session.namespace
            );
            let told = Check::new(
                Part::Hub,
                "figures",
                Finding::warn(found, "ask for the role system:monitoring"),
            );
            match count(session).await {
                Ok(figures) => [vec![told], judge(&figures, false, &session.kubectl(&release()))].concat(),
                Err(failure) => vec![told, Check::new(Part::Hub, "services", failure)],
            }
        }
        status => {
            let finding = Finding::fail(format!("/metrics answers {status}"), "the hub's log says why");
            vec![Check::new(Part::Hub, "figures", finding)]
        }
    }
}

/// The figures of one namespace, from its resources.
async fn count(session: &Session) -> Result<Figures> {
    let namespace = Some(session.namespace.as_str());
    let (services, git, helm, oci) = tokio::join!(
        session.list::<ServiceDeployment>(namespace),
        session.list::<GitRepository>(namespace),
        session.list::<HelmRepository>(namespace),
        session.list::<OCIRepository>(namespace),
    );
    let [of_git, of_helm, of_oci] = states::SOURCES;
    let services = services?
        .into_iter()
        .map(|service| (states::SERVICES, serde_json::to_vec(&service.status).ok()));
    let git = git?
        .into_iter()
        .map(|source| (of_git, serde_json::to_vec(&source.status).ok()));
    let helm = helm?
        .into_iter()
        .map(|source| (of_helm, serde_json::to_vec(&source.status).ok()));
    let oci = oci?
        .into_iter()
        .map(|source| (of_oci, serde_json::to_vec(&source.status).ok()));
    Ok(Figures::of_resources(services.chain(git).chain(helm).chain(oci)))
}

/// `whole`: the figures are of the whole hub. `release`: the command that resumes deletions.
fn judge(figures: &Figures, whole: bool, release: &str) -> Vec<Check> {
    let all = if whole { " -A" } else { "" };
    let mut checks = Vec::new();
    if whole {
        checks.push(check("clusters", judge_clusters(figures)));
        checks.extend(list_alarms(figures, release));
    }
    checks.push(check("sources", judge_sources(figures, all)));
    checks.push(check("services", judge_services(figures, all)));
    checks.push(check("prunes", judge_prunes(figures)));
    if whole {
        checks.push(check("controllers", controllers(figures)));
        checks.push(check("disk", disk(figures)));
    }
    checks
}

/// A check of this part.
fn check(name: &'static str, finding: Finding) -> Check {
    Check::new(Part::Hub, name, finding)
}

/// Fails if a cluster is silent.
fn judge_clusters(figures: &Figures) -> Finding {
    let silent = figures.count("farwater_clusters{state=\"silent\"}");
    let total = figures.total("farwater_clusters");
    if silent > 0 {
        return Finding::fail(
            format!("{silent} of {total} {} silent", verb(&silent, "is", "are")),
            "{program} get clusters -A; docs/runbooks/cluster-silent.md",
        );
    }
    let waiting = figures.count("farwater_clusters{state=\"not_joined\"}");
    Finding::ok(format!("{total}, none is silent, {waiting} have not joined"))
}

/// Checks that appear only if they fail, because most fleets never see them.
fn list_alarms(figures: &Figures, release: &str) -> Vec<Check> {
    let mut alarms = Vec::new();
    let restored = figures.count("farwater_clusters_restored");
    if restored > 0 {
        let know = verb(&restored, "cluster knows", "clusters know");
        let found = format!("{restored} {know} more than the hub's database: a backup was restored");
        let finding = Finding::fail(found, "docs/runbooks/cluster-restored.md");
        alarms.push(check("restored", finding));
    }
    if figures.count("farwater_prunes_frozen") > 0 {
        let remedy = format!("review the held prunes, then: {release}; see docs/runbooks/prunes-frozen.md");
        let finding = Finding::fail("nothing is deleted in the whole fleet", remedy);
        alarms.push(check("deletions", finding));
    }
    let stale = figures.count("farwater_secret_references_stale");
    if stale > 0 {
        let secrets = counted(stale, "secret");
        let found = format!("{secrets} of other places can't be read; the last values stay in use");
        let finding = Finding::warn(found, "docs/runbooks/secrets-stale.md");
        alarms.push(check("secrets", finding));
    }
    alarms
}

/// Warns if a source can't be asked. `all`: the option for all namespaces.
fn judge_sources(figures: &Figures, all: &str) -> Finding {
    let stale = figures.count("farwater_sources_stale");
    let total = figures.total("farwater_sources");
    if stale > 0 {
        return Finding::warn(
            format!("{stale} of {total} can't be asked"),
            // By their short names, so that the command fits into a line.
            format!("{{program}} get fwgit,fwhelm,fwoci{all}; docs/runbooks/source-stale.md"),
        );
    }
    Finding::ok(format!("{total}, all were asked"))
}

/// Fails if a service fails. `all`: the option for all namespaces.
fn judge_services(figures: &Figures, all: &str) -> Finding {
    let failing = figures.count("farwater_services{state=\"failing\"}");
    let total = figures.total("farwater_services");
    if failing > 0 {
        return Finding::fail(
            format!("{failing} of {total} {} failing", verb(&failing, "is", "are")),
            format!("{{program}} get servicedeployments{all}; {{program}} why NAMESPACE/NAME"),
        );
    }
    let ready = figures.count("farwater_services{state=\"ready\"}");
    let are = verb(&ready, "is", "are");
    Finding::ok(format!("{ready} of {total} {are} ready, none is failing"))
}

/// Warns if a prune waits for an approval.
fn judge_prunes(figures: &Figures) -> Finding {
    let held = figures.count("farwater_services_prune_held");
    if held > 0 {
        let hold = verb(&held, "service holds", "services hold");
        return Finding::warn(
            format!("{held} {hold} a prune that waits for an approval"),
            "{program} why NAMESPACE/NAME shows what would go; docs/runbooks/prune-held.md",
        );
    }
    Finding::ok("none waits for an approval")
}

fn controllers(figures: &Figures) -> Finding {
    let waiting = figures.total("farwater_queue_depth");
    let found = format!("{waiting} {}", verb(&waiting, "object waits", "objects wait"));
    match waiting > WAITING {
        true => Finding::warn(found, "docs/runbooks/controller-behind.md, if it stays so"),
        false => Finding::ok(found),
    }
}

fn disk(figures: &Figures) -> Finding {
    let remedy = "enlarge the hub's volume; docs/runbooks/disk-full.md";
    let bytes = |name: &str| figures.get(&format!("farwater_data_filesystem_{name}_bytes"));
    let (Some(available), Some(size)) = (bytes("available"), bytes("size")) else {
        return Finding::warn("the hub does not say how full its disk is", remedy);
    };
    let share = if size > 0.0 { available / size } else { 0.0 };
    let found = format!(
        "{:.0} % free ({:.1} GiB)",
        share * 100.0,
        available / f64::from(1 << 30)
    );
    match share {
        share if share < DISK_FULL => Finding::fail(found, remedy),
        share if share < DISK_LOW => Finding::warn(found, remedy),
        _ => Finding::ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Grade, *};

    fn graded(text: &str) -> Vec<(&'static str, Grade)> {
        let checks = judge(&Figures::parse(text), true, "kubectl");
        checks
            .into_iter()
            .map(|check| (check.name, check.finding.grade))
            .collect()
    }

    #[test]
    fn a_fleet_that_is_well_has_nothing_to_watch() {
        let text = "farwater_clusters{state=\"ready\"} 3\nfarwater_services{state=\"ready\"} 5\n\
                    farwater_data_filesystem_available_bytes 50\nfarwater_data_filesystem_size_bytes 100\n";
        assert!(
            graded(text).iter().all(|(_, grade)| *grade == Grade::Ok),
            "{:?}",
            graded(text)
        );
    }

    #[test]
    fn what_needs_somebody_is_graded_by_how_soon() {
        let text = "farwater_clusters{state=\"silent\"} 1\nfarwater_clusters_restored 1\nfarwater_sources_stale 1\n\
                    farwater_prunes_frozen 1\nfarwater_secret_references_stale 3\n\
                    farwater_services{state=\"failing\"} 2\nfarwater_services_prune_held 1\n\
                    farwater_queue_depth{controller=\"a\"} 2000\n\
                    farwater_data_filesystem_available_bytes 2\nfarwater_data_filesystem_size_bytes 100\n";
        let expected = [
            ("clusters", Grade::Fail),
            ("restored", Grade::Fail),
            ("deletions", Grade::Fail),
            ("secrets", Grade::Warn),
            ("sources", Grade::Warn),
            ("services", Grade::Fail),
            ("prunes", Grade::Warn),
            ("controllers", Grade::Warn),
            ("disk", Grade::Fail),
        ];
        assert_eq!(graded(text), expected);
    }
}
