//! Options of an object from its annotations: how it is applied, and when it may be deleted. Ours are read, and those
//! of Argo CD, Flux and Helm with the same meaning. An invalid value is an error of its object; the default is never
//! used instead.

use std::fmt;

use farwater_api::{
    OWNER_ANNOTATION, SERVICE_LABEL,
    apply_options::{
        ADOPT, AdoptPolicy, ApplyOptions, CONFLICTS, ConflictPolicy, DRIFT, DriftMode, IGNORE_DIFFERENCES,
        IGNORE_MANAGERS, IMMUTABLE, ImmutablePolicy, METHOD, PRUNE, WAVE,
    },
    objects::ObjectRef,
};
use serde::{Deserialize, de::value::StrDeserializer};
use serde_json::Value;

use super::Keep;
use super::differences::Pointer;
use crate::prune::{Purpose, holds_others};

const ARGO_WAVE: &str = "argocd.argoproj.io/sync-wave";
const ARGO_OPTIONS: &str = "argocd.argoproj.io/sync-options";
const ARGO_COMPARE: &str = "argocd.argoproj.io/compare-options";
const FLUX_PRUNE: &str = "kustomize.toolkit.fluxcd.io/prune";
const FLUX_RECONCILE: &str = "kustomize.toolkit.fluxcd.io/reconcile";
const FLUX_SSA: &str = "kustomize.toolkit.fluxcd.io/ssa";
const FLUX_FORCE: &str = "kustomize.toolkit.fluxcd.io/force";
const FLUX_DRIFT: &str = "helm.toolkit.fluxcd.io/driftDetection";
const HELM_POLICY: &str = "helm.sh/resource-policy";
/// Argo CD's options that have an effect here.
const ARGO_KNOWN: [&str; 4] = ["Prune", "Delete", "Replace", "Force"];
/// Argo CD's options that ask for what always happens here: server-side apply, kinds that wait for their definition,
/// prunes after all waves, and no difference in fields that the source doesn't state.
const ARGO_ALWAYS: [&str; 4] = [
    "ServerSideApply=true",
    "SkipDryRunOnMissingResource=true",
    "PruneLast=true",
    "IgnoreExtraneous",
];
/// Most bytes of a value that an error repeats.
const MAX_SHOWN: usize = 64;

/// How one object is applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectOptions {
    pub adopt: AdoptPolicy,
    pub conflicts: ConflictPolicy,
    pub drift: DriftMode,
    /// Whether it may be deleted and recreated if the API server refuses a change of an immutable field.
    pub recreate: bool,
    /// Whether it is written as a whole, so that fields that are not in the source are removed.
    pub replace: bool,
    /// Fields that others may change.
    pub ignore: Vec<Pointer>,
    /// Field managers whose fields are left to them.
    pub ignore_managers: Vec<String>,
    /// The annotation that excludes it: it is neither applied nor deleted. None: it is managed.
    pub left: Option<String>,
    /// It is created if missing, and never changed.
    pub create_only: bool,
    /// Other tools' options that have no effect here.
    pub unheard: Vec<String>,
    /// Expressions about its fields that could not be evaluated, each with the reason.
    pub unanswered: Vec<String>,
}

impl ObjectOptions {
    /// The remarks that are shown whatever happens to the object.
    pub fn remarks(&self) -> Option<String> {
        let unheard = self.unheard.join(", ");
        let unheard = (!unheard.is_empty()).then(|| format!("this means nothing here: {unheard}"));
        let remarks: Vec<&str> = unheard.iter().chain(&self.unanswered).map(String::as_str).collect();
        (!remarks.is_empty()).then(|| remarks.join("; "))
    }

    pub fn ignores(&self) -> bool {
        !self.ignore.is_empty() || !self.ignore_managers.is_empty()
    }

    /// The annotation that lets the agent recreate the object if a field is immutable. None: it is set already.
    pub fn offer_recreation(&self, object: &ObjectRef) -> Option<String> {
        let loss = if holds_others(object) {
            "; its data and the objects that it holds can go with it"
        } else {
            ""
        };
        let offer = format!("to have it deleted and recreated, annotate it in the source with {IMMUTABLE}: Recreate");
        (!self.recreate).then(|| offer + loss)
    }
}

/// An annotation with an invalid value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadOption {
    name: String,
    value: String,
    expected: String,
}

impl BadOption {
    pub(super) fn new(name: &str, value: &str, expected: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            value: shown(value),
            expected: expected.into(),
        }
    }
}

fn shown(value: &str) -> String {
    value.chars().filter(|c| !c.is_control()).take(MAX_SHOWN).collect()
}

impl fmt::Display for BadOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {:?}, and must be {}", self.name, self.value, self.expected)
    }
}

/// The annotations of a manifest or of a live object's metadata.
#[derive(Clone, Copy, Debug)]
pub(super) struct Annotations<'a>(&'a Value);

impl<'a> Annotations<'a> {
    pub(super) fn of(metadata: &'a Value) -> Self {
        Self(&metadata["annotations"])
    }

    pub(super) fn get(self, name: &str) -> Option<&'a str> {
        self.0[name].as_str()
    }

    /// Reads a member of a policy, by its name in a service's spec.
    fn policy<T: for<'de> Deserialize<'de>>(self, name: &str) -> Result<Option<T>, BadOption> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let read = T::deserialize(StrDeserializer::<serde::de::value::Error>::new(value.trim()));
        read.map(Some)
            .map_err(|error| BadOption::new(name, value, expected_by(&error.to_string())))
    }

    /// Reads an annotation that must have one of two values.
    fn either(self, name: &str, yes: &str, no: &str) -> Result<Option<bool>, BadOption> {
        match self.get(name) {
            None => Ok(None),
            Some(value) if value.trim() == yes => Ok(Some(true)),
            Some(value) if value.trim() == no => Ok(Some(false)),
            Some(value) => Err(BadOption::new(name, value, format!("{yes} or {no}"))),
        }
    }

    /// Reads Flux's annotation for how an object is applied.
    fn ssa(self) -> Result<Option<Ssa>, BadOption> {
        let Some(value) = self.get(FLUX_SSA) else {
            return Ok(None);
        };
        let words = [
            ("Override", Ssa::Override),
            ("Merge", Ssa::Merge),
            ("IfNotPresent", Ssa::IfNotPresent),
            ("Ignore", Ssa::Ignore),
        ];
        // Flux ignores case here.
        let found = words
            .into_iter()
            .find(|(word, _)| word.eq_ignore_ascii_case(value.trim()));
        let expected = "Override or Merge or IfNotPresent or Ignore";
        found
            .map(|(_, ssa)| Some(ssa))
            .ok_or_else(|| BadOption::new(FLUX_SSA, value, expected))
    }

    /// The annotation that excludes the object.
    fn left(self) -> Result<Option<String>, BadOption> {
        if self.either(FLUX_RECONCILE, "disabled", "enabled")? == Some(true) {
            return Ok(Some(format!("{FLUX_RECONCILE}: disabled")));
        }
        Ok((self.ssa()? == Some(Ssa::Ignore)).then(|| format!("{FLUX_SSA}: Ignore")))
    }

    /// Options of other tools that this one does not follow.
    fn unheard(self, ssa: Option<Ssa>) -> Vec<String> {
        let is_known = |item: &&str| {
            ARGO_ALWAYS.contains(item) || item.split_once('=').is_some_and(|(name, _)| ARGO_KNOWN.contains(&name))
        };
        let of_argo = |name: &'static str| {
            self.list(name)
                .filter(move |item| !is_known(item))
                .map(move |item| format!("{name}: {}", shown(item)))
        };
        let of_flux = match ssa {
            Some(Ssa::Override) => Some(format!("{FLUX_SSA}: Override")),
            Some(Ssa::Merge) => Some(format!("{FLUX_SSA}: Merge")),
            Some(Ssa::IfNotPresent | Ssa::Ignore) | None => None,
        };
        of_argo(ARGO_OPTIONS)
            .chain(of_argo(ARGO_COMPARE))
            .chain(of_flux)
            .collect()
    }

    pub(super) fn list(self, name: &str) -> impl Iterator<Item = &'a str> {
        self.get(name)
            .unwrap_or_default()
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
    }

    /// One of Argo CD's `Name=value` options; the last one counts.
    fn argo(self, option: &str) -> Option<&'a str> {
        self.list(ARGO_OPTIONS)
            .filter_map(|item| item.split_once('='))
            .filter(|(name, _)| *name == option)
            .last()
            .map(|(_, v)| v)
    }

    fn argo_flag(self, option: &str) -> Result<Option<bool>, BadOption> {
        match self.argo(option) {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(value) => Err(BadOption::new(
                &format!("{ARGO_OPTIONS} {option}"),
                value,
                "true or false",
            )),
        }
    }
}

/// ``unknown variant `x`, expected `A` or `B` ``: what was expected.
fn expected_by(error: &str) -> String {
    let expected = error.split_once("expected ").map_or(error, |(_, rest)| rest);
    expected.trim_start_matches("one of ").replace('`', "")
}

/// The object's wave, from its manifest's or its live metadata.
pub fn read_wave(metadata: &Value) -> Result<i32, BadOption> {
    let annotations = Annotations::of(metadata);
    for name in [WAVE, ARGO_WAVE] {
        if let Some(value) = annotations.get(name) {
            return value
                .trim()
                .parse()
                .map_err(|_| BadOption::new(name, value, "an integer"));
        }
    }
    Ok(0)
}

/// The options of an object of a source. Options that it doesn't state come from its service.
pub fn read_options(manifest: &Value, object: &ObjectRef, service: &ApplyOptions) -> Result<ObjectOptions, BadOption> {
    let annotations = Annotations::of(&manifest["metadata"]);
    let drift = match annotations.policy(DRIFT)? {
        Some(mode) => mode,
        None if annotations.either(FLUX_DRIFT, "disabled", "enabled")? == Some(true) => DriftMode::Ignore,
        None => service.drift,
    };

    let method: Option<Method> = annotations.policy(METHOD)?;
    let replace = match method {
        Some(method) => method == Method::Replace,
        None => annotations.argo_flag("Replace")?.unwrap_or_default(),
    };
    let own: Option<ImmutablePolicy> = match annotations.policy(IMMUTABLE)? {
        Some(policy) => Some(policy),
        None => {
            let forced = annotations
                .either(FLUX_FORCE, "enabled", "disabled")?
                .or(annotations.argo_flag("Force")?);
            forced.map(|forced| {
                if forced {
                    ImmutablePolicy::Recreate
                } else {
                    ImmutablePolicy::Report
                }
            })
        }
    };
    // Only an annotation on the object itself shows that its author considered what would be deleted with it.
    let recreate = match own {
        Some(policy) => policy == ImmutablePolicy::Recreate,
        None => service.immutable == ImmutablePolicy::Recreate && !holds_others(object),
    };

    // `read_protection` reads the live object's annotations; those of the source are validated before they reach it.
    let protection = read_protection(&manifest["metadata"]);
    if let Some(bad) = protection.bad {
        return Err(bad);
    }
    let ssa = annotations.ssa()?;
    let ignore = annotations
        .list(IGNORE_DIFFERENCES)
        .map(|text| read_pointer(IGNORE_DIFFERENCES, text, manifest));

    Ok(ObjectOptions {
        adopt: annotations.policy(ADOPT)?.unwrap_or(service.adopt),
        conflicts: annotations.policy(CONFLICTS)?.unwrap_or(service.conflicts),
        drift,
        recreate,
        replace,
        ignore: ignore.collect::<Result<_, _>>()?,
        ignore_managers: annotations.list(IGNORE_MANAGERS).map(str::to_owned).collect(),
        left: protection.left,
        create_only: ssa == Some(Ssa::IfNotPresent),
        unheard: annotations.unheard(ssa),
        unanswered: Vec::new(),
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
enum Method {
    Apply,
    Replace,
}

/// `kustomize.toolkit.fluxcd.io/ssa`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ssa {
    Override,
    Merge,
    IfNotPresent,
    Ignore,
}

fn read_pointer(name: &str, text: &str, manifest: &Value) -> Result<Pointer, BadOption> {
    let bad = |expected: &str| BadOption::new(name, text, expected);
    let pointer = Pointer::parse(text).ok_or_else(|| bad("a JSON pointer, such as /spec/replicas"))?;
    if pointer.leads_into_list(manifest) {
        return Err(bad("a pointer through maps: a list is ignored as a whole"));
    }
    if is_needed(&pointer) {
        return Err(bad("a field that an agent can do without"));
    }
    Ok(pointer)
}

/// Whether it names a field that the agent itself needs.
pub(super) fn is_needed(pointer: &Pointer) -> bool {
    ["apiVersion", "kind"].iter().any(|field| pointer.covers(&[field]))
        || ["name", "namespace"]
            .iter()
            .any(|field| pointer.covers(&["metadata", field]))
        || pointer.covers(&["metadata", "annotations", OWNER_ANNOTATION])
        || pointer.covers(&["metadata", "annotations", IGNORE_DIFFERENCES])
        || pointer.covers(&["metadata", "labels", SERVICE_LABEL])
}

/// The pointers that a live object's annotation ignores. A pointer that can't be parsed ignores nothing.
pub fn live_pointers(metadata: &Value) -> Vec<Pointer> {
    Annotations::of(metadata)
        .list(IGNORE_DIFFERENCES)
        .filter_map(Pointer::parse)
        .collect()
}

/// Whether a live object may be deleted: from its current annotations, so that people can protect it in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Protection {
    /// For when it leaves the source.
    pub prune: Guard,
    /// For when its service is deleted.
    pub removal: Guard,
    /// The annotation that excludes it, as in [`ObjectOptions::left`].
    pub left: Option<String>,
    pub bad: Option<BadOption>,
}

impl Protection {
    pub fn guard(&self, purpose: Purpose) -> &Guard {
        match purpose {
            Purpose::Sync => &self.prune,
            Purpose::Removal => &self.removal,
        }
    }

    /// Why an object that was to be deleted by the plan stays: its annotations protect it now. `confirmed`: its
    /// deletion was approved.
    pub fn forbids(&self, purpose: Purpose, confirmed: bool) -> Option<Keep> {
        match self.guard(purpose) {
            Guard::None => None,
            Guard::Confirm if confirmed => None,
            Guard::Confirm => Some(Keep::Protected(format!("{PRUNE}: confirm"))),
            Guard::Keep(annotation) => Some(Keep::Protected(annotation.clone())),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Guard {
    #[default]
    None,
    /// It is deleted once that was approved.
    Confirm,
    /// It stays. Holds the annotation that says so.
    Keep(String),
}

/// Reads the protection. An invalid value protects, because its author wanted something other than the default.
pub fn read_protection(metadata: &Value) -> Protection {
    let annotations = Annotations::of(metadata);
    let mut protection = Protection::default();
    match annotations.left() {
        Ok(left) => protection.left = left,
        Err(bad) => protection.bad = Some(bad),
    }

    if let Some(value) = annotations.get(PRUNE) {
        let guard = read_guard(PRUNE, value, ["disabled", "confirm", "enabled"], &mut protection.bad);
        (protection.prune, protection.removal) = (guard.clone(), guard);
        return protection;
    }
    for name in [FLUX_PRUNE, HELM_POLICY] {
        let Some(value) = annotations.get(name) else { continue };
        let words = if name == FLUX_PRUNE {
            ["disabled", "", "enabled"]
        } else {
            ["keep", "", ""]
        };
        let guard = read_guard(name, value, words, &mut protection.bad);
        (protection.prune, protection.removal) = (guard.clone(), guard);
    }
    for (option, slot) in [("Prune", &mut protection.prune), ("Delete", &mut protection.removal)] {
        let Some(value) = annotations.argo(option) else {
            continue;
        };
        let name = format!("{ARGO_OPTIONS} {option}");
        *slot = read_guard(&name, value, ["false", "confirm", "true"], &mut protection.bad);
    }

    // An excluded object is not deleted either.
    let bad = protection
        .bad
        .as_ref()
        .filter(|bad| [FLUX_RECONCILE, FLUX_SSA].contains(&bad.name.as_str()));
    let kept = protection
        .left
        .clone()
        .or_else(|| bad.map(|bad| format!("{}: {}", bad.name, bad.value)));
    if let Some(annotation) = kept {
        let guard = Guard::Keep(annotation);
        (protection.prune, protection.removal) = (guard.clone(), guard);
    }
    protection
}

/// `words`: the values that keep the object, ask for an approval, and do neither. An empty word doesn't exist.
fn read_guard(name: &str, value: &str, words: [&str; 3], bad: &mut Option<BadOption>) -> Guard {
    let value = value.trim();
    let known = words.iter().position(|word| !word.is_empty() && *word == value);
    match known {
        Some(1) => Guard::Confirm,
        Some(2) => Guard::None,
        known => {
            if known.is_none() {
                let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
                *bad = Some(BadOption::new(name, value, words.join(" or ")));
            }
            Guard::Keep(format!("{name}: {value}"))
        }
    }
}

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;
