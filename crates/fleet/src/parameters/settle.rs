//! Names that come from several places: which value wins.

use std::{cmp::Reverse, collections::BTreeMap};

use farwater_api::parameters::{Origin, ParameterValue, pointer};
use serde_json::{Map, Value};

use super::{Problem, Texts, work::Taken};

/// The precedence of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// From an object that is named as a whole; its index in the list.
    Whole(usize),
    /// Stated by name.
    Stated,
}

struct Candidate {
    rank: Rank,
    origin: Origin,
    secret: bool,
    value: Value,
}

/// The candidates for each name of one map.
#[derive(Default)]
pub struct Names(BTreeMap<String, Vec<Candidate>>);

impl Names {
    fn add(&mut self, name: &str, candidate: Candidate) {
        self.0.entry(name.to_owned()).or_default().push(candidate);
    }

    pub fn state(&mut self, name: &str, value: Value, origin: Origin, secret: bool) {
        self.add(
            name,
            Candidate {
                rank: Rank::Stated,
                origin,
                secret,
                value,
            },
        );
    }

    /// Adds a value of an object that is named as a whole.
    pub fn add_whole(&mut self, index: usize, name: &str, value: Value, origin: Origin) {
        self.add(
            name,
            Candidate {
                rank: Rank::Whole(index),
                origin,
                secret: false,
                value,
            },
        );
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub fn merge(&mut self, other: Self) {
        for (name, candidates) in other.0 {
            self.0.entry(name).or_default().extend(candidates);
        }
    }

    /// Adds the keys of a ConfigMap or Secret.
    pub fn take(&mut self, texts: &Texts, taken: Taken<'_>, settled: &mut Settled) {
        let Taken {
            what,
            keys,
            prefix,
            origin,
            secret,
            index,
        } = taken;
        let is_whole = keys.is_empty();
        let keys: Vec<&str> = if is_whole {
            texts.0.keys().map(String::as_str).collect()
        } else {
            keys.to_vec()
        };
        let rank = if is_whole { Rank::Whole(index) } else { Rank::Stated };
        for key in keys {
            let (what, text) = (what.clone(), texts.0.get(key));
            let value = match text {
                Some(Some(text)) => text.clone().into(),
                Some(None) => {
                    settled.problems.push(Problem::NotText {
                        what,
                        key: key.to_owned(),
                    });
                    continue;
                }
                None => {
                    settled.problems.push(Problem::KeyMissing {
                        what,
                        key: key.to_owned(),
                    });
                    continue;
                }
            };
            let origin = Origin {
                key: key.to_owned(),
                ..origin.clone()
            };
            self.add(
                &format!("{prefix}{key}"),
                Candidate {
                    rank,
                    origin,
                    secret,
                    value,
                },
            );
        }
    }
}

/// The decided values of all maps.
#[derive(Default)]
pub struct Settled {
    pub values_of: Vec<ParameterValue>,
    /// JSON pointers to secret values.
    pub secret: Vec<String>,
    pub problems: Vec<Problem>,
}

impl Settled {
    /// Decides the map at a path of the document.
    pub fn settle(&mut self, path: &[&str], names: Names) -> Map<String, Value> {
        let mut map = Map::new();
        for (name, mut candidates) in names.0 {
            candidates.sort_by_key(|candidate| Reverse(candidate.rank));
            let path: Vec<&str> = path.iter().copied().chain([&*name]).collect();
            if let [first, second, ..] = &candidates[..]
                && (first.rank, second.rank) == (Rank::Stated, Rank::Stated)
            {
                let origins = Box::new([first.origin.clone(), second.origin.clone()]);
                self.problems.push(Problem::Twice {
                    name: value_name(&path),
                    origins,
                });
            }
            let mut candidates = candidates.into_iter();
            let Some(Candidate {
                origin, secret, value, ..
            }) = candidates.next()
            else {
                continue;
            };
            let shown = ParameterValue {
                name: value_name(&path),
                origin,
                secret,
                value: (!secret).then(|| value.clone()),
                instead_of: candidates.map(|other| other.origin).collect(),
            };
            if secret {
                self.secret.push(pointer(&path));
            }
            self.values_of.push(shown);
            map.insert(name, value);
        }
        map
    }

    /// Records a value that can only come from one place.
    pub fn tell(&mut self, path: &[&str], origin: Origin, value: Value) {
        let (name, value) = (value_name(path), Some(value));
        self.values_of.push(ParameterValue {
            name,
            origin,
            value,
            ..ParameterValue::default()
        });
    }
}

/// A value's name as templates write it: `configuration.host`, `contexts["a.b"].zones`.
pub fn value_name(path: &[&str]) -> String {
    let mut text = String::new();
    for name in path {
        let is_plain = !name.is_empty()
            && name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        match (is_plain, text.is_empty()) {
            (true, true) => text.push_str(name),
            (true, false) => text.extend([".", name]),
            (false, _) => text += &format!("[{}]", Value::from(*name)),
        }
    }
    text
}
