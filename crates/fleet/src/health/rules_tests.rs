use farwater_api::objects::Health::{self, *};
use serde_json::{Value, json};

use super::*;

fn yaml<T: serde::de::DeserializeOwned>(text: &str) -> T {
    serde_saphyr::from_str(text).unwrap()
}

/// Judges a Boat, stated as YAML without its head, by a rule stated as YAML without its kind.
fn check(rule: &str, boat: &str, health: Health, message: &str) {
    let rule: HealthRuleSpec = yaml(&format!("{{group: example.com, kind: Boat, {rule}}}"));
    let object: Value = yaml(&format!("{{apiVersion: example.com/v2, kind: Boat, {boat}}}"));
    let (is, said) = Rules::compile(&[rule], &[]).evaluate(&object);
    assert_eq!((is, said.as_str()), (health, message), "{object:#}");
}

const RULE: &str = "inProgress: \"self.status.phase in ['Launching', 'Moored']\", failed: \"self.status.phase == 'Sunk'\", \
                    current: \"self.status.phase == 'Afloat'\", message: \"self.status.phase + ', crew ' + string(self.status.crew)\"";

#[test]
fn the_first_expression_that_holds_decides() {
    check(RULE, "status: {phase: Launching, crew: 3}", InProgress, "Launching, crew 3");
    check(RULE, "status: {phase: Sunk, crew: 0}", Failed, "Sunk, crew 0");
    check(RULE, "status: {phase: Afloat, crew: 3}", Current, "");
    // None of the three.
    check(RULE, "status: {phase: Unheard, crew: 3}", InProgress, "Unheard, crew 3");
    check("current: 'true', failed: 'true'", "spec: {}", Failed, "");
    check("current: 'true', inProgress: 'true', failed: 'true'", "spec: {}", InProgress, "");
    check("current: 'true'", "status: {conditions: [{type: Ready, status: 'False'}]}", Current, "");
}

#[test]
fn what_is_deleted_or_not_seen_yet_is_told_so_before_any_rule() {
    check("current: 'true'", "metadata: {deletionTimestamp: '2026-01-01T00:00:00Z'}", Terminating, "being deleted");
    check(
        "current: 'true'",
        "metadata: {generation: 2}, status: {observedGeneration: 1}",
        InProgress,
        "its controller has seen generation 1 of 2",
    );
}

#[test]
fn conditions_are_read_as_people_write_them() {
    let ready =
        "current: \"has(self.status) && self.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')\"";
    check(ready, "spec: {}", InProgress, "");
    check(ready, "status: {conditions: [{type: Ready, status: 'False'}]}", InProgress, "");
    check(ready, "status: {conditions: [{type: Other, status: 'True'}, {type: Ready, status: 'True'}]}", Current, "");
    let filtered = "current: \"self.status.conditions.filter(c, c.type == 'Ready').all(c, c.status == 'True')\"";
    check(filtered, "status: {conditions: [{type: Ready, status: 'True'}]}", Current, "");
    let counted = "current: 'self.status.ready >= self.spec.size && self.status.load < 0.5'";
    check(counted, "spec: {size: 3}, status: {ready: 3, load: 0.25}", Current, "");
    check(counted, "spec: {size: 3}, status: {ready: 2, load: 0.25}", InProgress, "");
}

#[test]
fn an_expression_without_a_value_makes_nothing_healthy() {
    check(RULE, "spec: {}", InProgress, "health rule of the service: inProgress: there is no \"status\"");
    check(
        "current: 'self.spec.size'",
        "spec: {size: 3}",
        InProgress,
        "health rule of the service: current: its value is no boolean",
    );
    check(
        "current: 'true', failed: 'self.x'",
        "spec: {}",
        InProgress,
        "health rule of the service: failed: there is no \"x\"",
    );
    check(
        "current: 'nosuch(self)'",
        "spec: {}",
        InProgress,
        "health rule of the service: current: there is no function \"nosuch\"",
    );
    // Neither what can't be compiled, of a hub that lets through more than this agent.
    check("current: 'self.'", "spec: {}", InProgress, &compiled_badly("self."));
    check("current: 'false', message: 'self.x'", "spec: {}", InProgress, "message: there is no \"x\"");
    // What fails says no values.
    check(
        "current: 'self.spec.a < self.spec.b'",
        "spec: {a: hunter2, b: 1}",
        InProgress,
        "health rule of the service: current: found no matching overload for '_<_' applied to '(string, int)'",
    );
}

fn compiled_badly(text: &str) -> String {
    format!("health rule of the service: current: {}", Expression::compile(text).unwrap_err())
}

#[test]
fn a_services_own_rules_come_before_the_hubs_and_those_by_name() {
    let rule = |current: &str| -> HealthRuleSpec {
        yaml(&format!("{{group: example.com, kind: Boat, current: '{current}', message: '\"{current}\"'}}"))
    };
    let named = |name: &str, current: &str| NamedRule { name: name.into(), rule: rule(current) };
    let boat = json!({"apiVersion": "example.com/v1", "kind": "Boat"});
    let hubs = [named("a", "1 > 2"), named("b", "true")];
    assert_eq!(Rules::compile(&[], &hubs).evaluate(&boat), (InProgress, "1 > 2".to_owned()));
    assert_eq!(Rules::compile(&[rule("true")], &hubs).evaluate(&boat).0, Current);
    let rules = Rules::compile(&[], &hubs);
    assert!(rules.cover("example.com", "Boat") && !rules.cover("", "Boat") && !rules.cover("example.com", "Ship"));
    // Other kinds are judged as ever.
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "status": {"phase": "Pending"}});
    assert_eq!(rules.evaluate(&pod), evaluate(&pod));
}

#[test]
fn a_secrets_values_are_not_seen() {
    let rule: HealthRuleSpec = yaml(
        "{kind: Secret, current: 'has(self.data) || size(self.metadata.annotations) > 1', message: 'string(has(self.metadata.managedFields))'}",
    );
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "data": {"a": "aHVudGVyMg=="}, "stringData": {"a": "hunter2"},
        "metadata": {"managedFields": [], "annotations": {"x": "y", "kubectl.kubernetes.io/last-applied-configuration": "hunter2"}}});
    assert_eq!(Rules::compile(&[rule], &[]).evaluate(&secret), (InProgress, "false".to_owned()));
}

/// What an administrator is told of an expression.
fn refused(text: &str, expected: &str) {
    let error = Expression::compile(text).map(drop).unwrap_err().to_string();
    assert!(error.contains(expected), "{error:?} does not say {expected:?}");
}

#[test]
fn a_bad_expression_is_refused_with_its_place() {
    refused("self.a ==", "line 1, column ");
    refused("true &&\n  (self.a", "line 2, column ");
    refused("", "line ");
    refused("object.a == 1", "knows no \"object\"");
    refused("self.a.all(x, y == 1)", "knows no \"y\"");
    refused(&format!("self.a == '{}'", "x".repeat(1024)), "longer than 1024");
    let rule: HealthRuleSpec = yaml("{kind: Pod, inProgress: 'self.', failed: 'true', current: 'x'}");
    let fields: Vec<&str> = problems(&rule).into_iter().map(|(field, _)| field).collect();
    assert_eq!(fields, ["inProgress", "current"]);
}

#[test]
fn nothing_that_is_written_takes_long_or_breaks_the_agent() {
    for text in [
        "(".repeat(500),
        format!("{}true{}", "(".repeat(500), ")".repeat(500)),
        format!("{}true", "!".repeat(1000)),
        format!("{}1", "-".repeat(1000)),
        format!("self{}", ".a".repeat(500)),
        format!("{}1", "1+".repeat(500)),
        "true?true:".repeat(100) + "true",
        "[".repeat(1000),
        "self.a.all(a, self.a.all(b, self.a.all(c, self.a.all(d, true))))".to_owned(),
        "self.a.all(a,".repeat(70),
        "\u{0}\u{7f}\"'\\".to_owned(),
        "'\\u0000".to_owned(),
    ] {
        let begun = std::time::Instant::now();
        let subject = Subject::new(&json!({"a": [1, 2]}));
        if let Ok(expression) = Expression::compile(&text) {
            let _ = expression.is_true(&subject);
        }
        assert!(begun.elapsed().as_secs() < 2, "{text}");
    }
    let loops = Expression::compile("self.a.all(a, self.a.all(b, a + b >= 0))").unwrap();
    let of = |count: usize| Subject::new(&json!({"a": vec![1; count]}));
    let begun = std::time::Instant::now();
    // Sums count as they make lists longer.
    assert_eq!(loops.is_true(&of(150)), Ok(true));
    eprintln!("22,500 rounds: {:?}", begun.elapsed());
    assert_eq!(loops.is_true(&of(1000)), Err(EvaluationError::TooLarge));
    let large = Subject::new(&json!({"a": "x".repeat(600 << 10)}));
    assert_eq!(Expression::compile("size(self.a) > 0").unwrap().is_true(&large), Err(EvaluationError::TooLarge));
}
