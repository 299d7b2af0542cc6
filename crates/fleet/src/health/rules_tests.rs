use farwater_api::objects::Health::{self, *};
use serde_json::{Value, json};

use super::*;

fn yaml<T: serde::de::DeserializeOwned>(text: &str) -> T {
    serde_saphyr::from_str(text).unwrap()
}

fn own(rule: HealthRuleSpec) -> Rules {
    Rules::compile(&[rule], Arc::default())
}

/// Judges a Boat (YAML without apiVersion and kind) by a rule (YAML without its kind).
fn check(rule: &str, boat: &str, health: Health, message: &str) {
    let rule: HealthRuleSpec = yaml(&format!("{{group: example.com, kind: Boat, {rule}}}"));
    let object: Value = yaml(&format!("{{apiVersion: example.com/v2, kind: Boat, {boat}}}"));
    let (is, said) = own(rule).evaluate(&object);
    assert_eq!((is, said.as_str()), (health, message), "{object:#}");
}

const RULE: &str = "inProgress: \"self.status.phase in ['Launching', 'Moored']\", failed: \"self.status.phase == 'Sunk'\", \
                    current: \"self.status.phase == 'Afloat'\", message: \"self.status.phase + ', crew ' + string(self.status.crew)\"";

#[test]
fn the_first_expression_that_holds_decides() {
    check(
        RULE,
        "status: {phase: Launching, crew: 3}",
        InProgress,
        "Launching, crew 3",
    );
    check(RULE, "status: {phase: Sunk, crew: 0}", Failed, "Sunk, crew 0");
    check(RULE, "status: {phase: Afloat, crew: 3}", Current, "");
    // None of the three expressions holds.
    check(RULE, "status: {phase: Unheard, crew: 3}", InProgress, "Unheard, crew 3");
    check("current: 'true', failed: 'true'", "spec: {}", Failed, "");
    check(
        "current: 'true', inProgress: 'true', failed: 'true'",
        "spec: {}",
        InProgress,
        "",
    );
    check(
        "current: 'true'",
        "status: {conditions: [{type: Ready, status: 'False'}]}",
        Current,
        "",
    );
}

#[test]
fn what_is_deleted_or_not_seen_yet_is_told_so_before_any_rule() {
    check(
        "current: 'true'",
        "metadata: {deletionTimestamp: '2026-01-01T00:00:00Z'}",
        Terminating,
        "being deleted",
    );
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
    check(
        ready,
        "status: {conditions: [{type: Ready, status: 'False'}]}",
        InProgress,
        "",
    );
    check(
        ready,
        "status: {conditions: [{type: Other, status: 'True'}, {type: Ready, status: 'True'}]}",
        Current,
        "",
    );
    let filtered = "current: \"self.status.conditions.filter(c, c.type == 'Ready').all(c, c.status == 'True')\"";
    check(
        filtered,
        "status: {conditions: [{type: Ready, status: 'True'}]}",
        Current,
        "",
    );
    let counted = "current: 'self.status.ready >= self.spec.size && self.status.load < 0.5'";
    check(counted, "spec: {size: 3}, status: {ready: 3, load: 0.25}", Current, "");
    check(
        counted,
        "spec: {size: 3}, status: {ready: 2, load: 0.25}",
        InProgress,
        "",
    );
}

#[test]
fn an_expression_without_a_value_says_nothing_and_is_never_healthy() {
    let unknown = |rule: &str, boat: &str, problem: &str| {
        check(
            rule,
            boat,
            Unknown,
            &format!("health rule of the service can't judge it: {problem}"),
        );
    };
    unknown(RULE, "spec: {}", "inProgress: there is no \"status\"");
    unknown(
        "current: 'self.spec.size'",
        "spec: {size: 3}",
        "current: its value is no boolean",
    );
    unknown(
        "current: 'true', failed: 'self.x'",
        "spec: {}",
        "failed: there is no \"x\"",
    );
    unknown(
        "current: 'self.list[5]'",
        "list: [1]",
        "current: an index is out of bounds",
    );
    unknown(
        "current: '1 / self.spec.zero == 1'",
        "spec: {zero: 0}",
        "current: it divides by zero",
    );
    unknown(
        "current: 'self.spec.most + 1 > 0'",
        "spec: {most: 9223372036854775807}",
        "current: a number is too large",
    );
    unknown(
        "current: 'int(self.spec.size) > 0'",
        "spec: {size: many}",
        "current: int() can't read its argument",
    );
    // An error message contains no values.
    unknown(
        "current: 'self.spec.a < self.spec.b'",
        "spec: {a: hunter2, b: 1}",
        "current: found no matching overload for '_<_' applied to '(string, int)'",
    );
    unknown(
        "current: 'self.spec.a + 1 > 0'",
        "spec: {a: hunter2}",
        "current: add: not for values of these types",
    );
    // An expression that can't be compiled gives no verdict either, e.g. one from a hub that allows more than this
    // agent.
    let bad = Expression::compile("self.").unwrap_err();
    unknown("current: 'self.'", "spec: {}", &format!("current: {bad}"));
    let bad = Expression::compile("self.a.matches('x')").unwrap_err();
    unknown(
        "current: \"self.a.matches('x')\"",
        "spec: {}",
        &format!("current: {bad}"),
    );
    // Only the message has no value.
    check(
        "current: 'false', message: 'self.x'",
        "spec: {}",
        InProgress,
        "message: there is no \"x\"",
    );
    check("current: 'true', message: 'self.x'", "spec: {}", Current, "");
}

#[test]
fn a_services_own_rules_come_before_the_hubs_and_those_in_their_order() {
    let rule = |current: &str| -> HealthRuleSpec {
        yaml(&format!(
            "{{group: example.com, kind: Boat, current: '{current}', message: '\"{current}\"'}}"
        ))
    };
    let named = |name: &str, current: &str| NamedRule {
        name: name.into(),
        rule: rule(current),
    };
    let boat = json!({"apiVersion": "example.com/v1", "kind": "Boat"});
    let hubs = Arc::new(HubRules::compile(vec![named("a", "1 > 2"), named("b", "true")]));
    let rules = Rules::compile(&[], Arc::clone(&hubs));
    assert_eq!(rules.evaluate(&boat), (InProgress, "1 > 2".to_owned()));
    assert_eq!(
        Rules::compile(&[rule("true")], Arc::clone(&hubs)).evaluate(&boat).0,
        Current
    );
    assert!(rules.cover("example.com", "Boat") && !rules.cover("", "Boat") && !rules.cover("example.com", "Ship"));
    // Other kinds are judged as if there were no rules.
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "status": {"phase": "Pending"}});
    assert_eq!(rules.evaluate(&pod), evaluate(&pod));
    let broken = Arc::new(HubRules::compile(vec![named("broken", "self.x")]));
    let told = Rules::compile(&[], broken).evaluate(&boat);
    assert_eq!(
        told,
        (
            Unknown,
            "HealthRule broken can't judge it: current: there is no \"x\"".to_owned()
        )
    );
}

#[test]
fn a_secrets_values_are_not_seen() {
    let rule: HealthRuleSpec = yaml(
        "{kind: Secret, current: 'has(self.data) || size(self.metadata.annotations) > 1', message: 'string(has(self.metadata.managedFields))'}",
    );
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "data": {"a": "aHVudGVyMg=="}, "stringData": {"a": "hunter2"},
        "metadata": {"managedFields": [], "annotations": {"x": "y", "kubectl.kubernetes.io/last-applied-configuration": "hunter2"}}});
    assert_eq!(own(rule).evaluate(&secret), (InProgress, "false".to_owned()));
}

/// Expects the error that an administrator gets for an expression.
fn refused(text: &str, expected: &str) {
    let error = Expression::compile(text).map(drop).unwrap_err().to_string();
    assert!(error.contains(expected), "{error:?} does not say {expected:?}");
}

#[test]
fn a_bad_expression_is_refused_with_its_place() {
    refused("self.a ==", "line 1, column 10: ");
    refused("true &&\n  (self.a", "line 2, column ");
    refused("", "line 1, column 1: ");
    refused("self.a = 1", "line 1, column 8: mismatched input '=' expecting <EOF>");
    refused("has(self)", "invalid argument to has() macro");
    refused("self.größe == 1", "line 1, column 8: unexpected character");
    refused("self.?a == 1", "unsupported syntax");
    refused(&format!("self.a == '{}'", "x".repeat(1024)), "longer than 1024");
    let rule: HealthRuleSpec = yaml("{kind: Pod, inProgress: 'self.', failed: 'true', current: 'x'}");
    let fields: Vec<&str> = problems(&rule).into_iter().map(|(field, _)| field).collect();
    assert_eq!(fields, ["inProgress", "current"]);
}

#[test]
fn names_and_functions_that_there_are_not_are_refused_with_those_that_there_are() {
    refused("object.a == 1", "knows no \"object\": the object is \"self\"");
    refused("self.a.all(x, y == 1)", "knows no \"y\"");
    refused("x.y{a: 1}.a == 1", "knows no \"x.y\"");
    refused(
        "self.a.matches('a.*')",
        "knows no function \"matches\" of 1 arguments; there are has, all",
    );
    refused("timestamp(self.a) > self.b", "knows no function \"timestamp\"");
    refused("self.a.all(x)", "knows no function \"all\" of 1 arguments");
    refused("size(self.a, self.b) > 1", "knows no function \"size\" of 2 arguments");
    refused("optional.of(self.a).hasValue()", "knows no");
    // The variable of a loop ends with the loop.
    refused("self.a.all(x, x > 1) && x > 1", "knows no \"x\"");
    for text in [
        "type(self.a) == string",
        "self.a.contains('x') && self.a.startsWith('x') || !self.a.endsWith('x') && self.a.size() > 1",
        "self.a.exists_one(x, x == 1) && self.a.map(x, x > 1, x * 2) == [2] && {'a': 1}['a'] in [1, 2]",
        "int('1') + int(double('1')) - -1 == 2 % 3 / 1 && uint(1) == 1u && bool('true') && bytes('a') == b'a' && dyn(1) <= 1.5",
        "self.namespace == 'x' // a word that is reserved elsewhere",
    ] {
        assert!(
            Expression::compile(text).is_ok(),
            "{text}: {:?}",
            Expression::compile(text)
        );
    }
}

#[test]
fn nothing_that_is_written_takes_long_or_breaks_the_agent() {
    let object = json!({"a": [1, 2]});
    let subject = Subject::new(&object);
    for text in [
        "(".repeat(500),
        format!("{}true{}", "(".repeat(500), ")".repeat(500)),
        format!("{}true", "!".repeat(1000)),
        format!("{}1", "!-".repeat(500)),
        format!("{}1", "-".repeat(1000)),
        format!("self{}", ".a".repeat(500)),
        format!("self{}", ".a()".repeat(250)),
        format!("{}1", "1+".repeat(500)),
        "1?1:".repeat(250) + "1",
        "[".repeat(1000),
        "{1:".repeat(300),
        "self.a.all(a, self.a.all(b, self.a.all(c, self.a.all(d, true))))".to_owned(),
        "self.a.all(a,".repeat(70),
        "\u{0}\u{7f}\"'\\".to_owned(),
        "'\\u0000".to_owned(),
        "ä🚢`".to_owned(),
    ] {
        let begun = std::time::Instant::now();
        if let Ok(expression) = Expression::compile(&text) {
            let _ = expression.is_true(&subject);
        }
        assert!(begun.elapsed().as_secs() < 2, "{text}");
    }
}

/// Whether an expression may be evaluated with an object, within a bounded time.
fn bearable(text: &str, object: &Value) -> bool {
    let begun = std::time::Instant::now();
    let value = Expression::compile(text).unwrap().is_true(&Subject::new(object));
    assert!(begun.elapsed().as_secs() < 5, "{text} took {:?}", begun.elapsed());
    value != Err(EvaluationError::TooLarge)
}

#[test]
fn what_would_take_long_or_much_with_an_object_is_not_begun() {
    let numbers = |count: usize| json!({"a": vec![1; count]});
    let one = "self.a.all(a, a >= 0)";
    assert!(bearable(one, &numbers(10_000)) && !bearable(one, &numbers(90_000)));
    let two = "self.a.all(a, self.a.all(b, a + b >= 0))";
    assert!(bearable(two, &numbers(100)) && !bearable(two, &numbers(1000)));
    let three = "self.a.all(a, self.a.all(b, self.a.all(c, a + b + c >= 0)))";
    assert!(bearable(three, &numbers(20)) && !bearable(three, &numbers(100)));
    // The costs of loops in sequence add up.
    let many = vec![one; 40].join(" && ");
    assert!(bearable(&many, &numbers(100)) && !bearable(&many, &numbers(10_000)));

    // The result of a loop may have the square of its size, and texts may grow by concatenation.
    let long = json!({"a": vec!["x".repeat(1000); 300]});
    assert!(bearable("size(self.a.map(a, a)) > 0", &long));
    assert!(!bearable("size(self.a.map(a, self)) > 0", &long));
    assert!(!bearable(
        "size(self.a.map(a, self.a.map(b, 'xxxxxxxxxxxxxxxx'))) > 0",
        &json!({"a": vec![1; 500]})
    ));
    let text = json!({"a": "x".repeat(500 << 10)});
    assert!(bearable("size(self.a) > 0", &text));
    assert!(!bearable("size(self.a + self.a + self.a + self.a) > 0", &text));
    // Values that the expression does not read cost nothing, and conditions are few.
    let conditions =
        json!([{"type": "Ready", "status": "True", "message": "x".repeat(4096)}, {"type": "Idle", "status": "False"}]);
    let large = json!({"data": vec!["x".repeat(1000); 1000], "status": {"conditions": conditions}});
    let ready = "self.status.conditions.filter(c, c.type == 'Ready').map(c, c.status).exists(s, s == 'True')";
    assert_eq!(
        Expression::compile(ready).unwrap().is_true(&Subject::new(&large)),
        Ok(true)
    );
    // Too many parts, or nested too deeply.
    assert!(!bearable("true", &numbers(200_000)));
    let deep = (0..70).fold(json!(1), |inner, _| json!([inner]));
    assert!(!bearable("true", &deep));
}
