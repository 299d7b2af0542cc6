//! Which of the hub's HealthRules are in force: one for each kind, and as many as agents accept.

use std::collections::{BTreeMap, HashMap};

use farwater_api::health_rule::{MAX_RULES, MAX_RULES_BYTES, NamedRule};

/// Why a rule is not in force, and what would change that.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unused {
    #[error("HealthRule {by} comes before it by name and judges the same kind: put both into one, or delete one")]
    Overridden { by: String },
    #[error(
        "{MAX_RULES} HealthRules are in force, as many as agents take: delete one, or say it in the spec.health of the services that need it"
    )]
    TooMany,
    #[error(
        "the rules in force would be {bytes} bytes long with it, and agents take {MAX_RULES_BYTES}: shorten or delete some, or say it in the spec.health of the services that need it"
    )]
    TooLarge { bytes: usize },
}

impl Unused {
    /// Reason of the condition for it.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Overridden { .. } => "Overridden",
            Self::TooMany => "TooManyRules",
            Self::TooLarge { .. } => "RulesTooLarge",
        }
    }
}

/// The hub's rules: those in force, and the others with the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Sorted by name.
    pub in_force: Vec<NamedRule>,
    pub unused: BTreeMap<String, Unused>,
}

/// Selects rules by name. A rule that is too large is left out, but smaller rules after it stay in force.
pub fn select(mut rules: Vec<NamedRule>) -> Selection {
    rules.sort_by(|a, b| a.name.cmp(&b.name));
    let mut selection = Selection::default();
    let mut bytes = 0;
    let mut judged: HashMap<(String, String), String> = HashMap::new();
    for rule in rules {
        let kind = (rule.rule.group.clone(), rule.rule.kind.clone());
        let with_it = bytes + length(&rule);
        let unused = if let Some(by) = judged.get(&kind) {
            Unused::Overridden { by: by.clone() }
        } else if selection.in_force.len() >= MAX_RULES {
            Unused::TooMany
        } else if with_it > MAX_RULES_BYTES {
            Unused::TooLarge { bytes: with_it }
        } else {
            bytes = with_it;
            judged.insert(kind, rule.name.clone());
            selection.in_force.push(rule);
            continue;
        };
        selection.unused.insert(rule.name, unused);
    }
    selection
}

/// Bytes of a rule as agents get it.
fn length(rule: &NamedRule) -> usize {
    serde_json::to_vec(rule).map_or(usize::MAX / 2, |json| json.len() + 1)
}

#[cfg(test)]
mod tests {
    use farwater_api::HealthRuleSpec;

    use super::*;

    fn rule(name: &str, kind: &str, current: &str) -> NamedRule {
        let rule = HealthRuleSpec {
            kind: kind.to_owned(),
            current: current.to_owned(),
            ..HealthRuleSpec::default()
        };
        NamedRule {
            name: name.to_owned(),
            rule,
        }
    }

    fn check(rules: Vec<NamedRule>, in_force: usize, unused: &[(&str, &str)]) {
        let selection = select(rules);
        assert_eq!(selection.in_force.len(), in_force);
        let told: Vec<(&str, &str)> = selection
            .unused
            .iter()
            .map(|(name, why)| (name.as_str(), why.reason()))
            .collect();
        assert_eq!(told, unused);
    }

    #[test]
    fn the_first_by_name_judges_a_kind() {
        check(
            vec![rule("b", "Boat", "true"), rule("a", "Boat", "false")],
            1,
            &[("b", "Overridden")],
        );
        let selection = select(vec![rule("b", "Boat", "true"), rule("a", "Boat", "false")]);
        assert_eq!(selection.in_force[0].name, "a");
        let told = selection.unused["b"].to_string();
        assert!(told.starts_with("HealthRule a comes before it by name"), "{told}");
        // The same kind name in another group is another kind.
        let mut other = rule("b", "Boat", "true");
        other.rule.group = "example.com".to_owned();
        check(vec![rule("a", "Boat", "true"), other], 2, &[]);
    }

    #[test]
    fn more_than_agents_take_is_refused_by_name() {
        let many = |count: usize| {
            (0..count)
                .map(|n| rule(&format!("r{n:03}"), &format!("Kind{n}"), "true"))
                .collect()
        };
        check(many(MAX_RULES), MAX_RULES, &[]);
        check(
            many(MAX_RULES + 2),
            MAX_RULES,
            &[("r064", "TooManyRules"), ("r065", "TooManyRules")],
        );
        let long = "true && ".repeat(120) + "true";
        let full = |name: &str, kind: &str| NamedRule {
            rule: HealthRuleSpec {
                failed: Some(long.clone()),
                in_progress: Some(long.clone()),
                message: Some(long.clone()),
                ..rule(name, kind, &long).rule
            },
            name: name.to_owned(),
        };
        let mut large: Vec<NamedRule> = (0..20)
            .map(|n| full(&format!("a{n:02}"), &format!("Kind{n}")))
            .collect();
        large.push(rule("z", "Small", "true"));
        let selection = select(large);
        let bytes: usize = selection.in_force.iter().map(length).sum();
        assert!(bytes <= MAX_RULES_BYTES && bytes > MAX_RULES_BYTES - 4096, "{bytes}");
        // A smaller rule is in force all the same.
        assert_eq!(selection.in_force.last().map(|rule| rule.name.as_str()), Some("z"));
        assert!(
            selection.unused.values().all(|why| why.reason() == "RulesTooLarge"),
            "{:?}",
            selection.unused
        );
        assert!(selection.unused.contains_key("a19"));
    }
}
