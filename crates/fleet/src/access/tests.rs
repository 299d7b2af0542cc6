//! Each case is a request and the answer of the policy below.

use serde_json::Value;

use super::{
    Attributes, Decision, Policy, PolicyKind, Rule, User,
    escalation::{Escalation, missing_rules},
};

const POLICY: &str = r#"
- kind: ClusterRole
  metadata: {name: reader}
  rules:
    - {apiGroups: [""], resources: [configmaps], verbs: [get, list]}
    - {apiGroups: [farwater.dev], resources: [servicedeployments/status], verbs: [update]}
- kind: ClusterRole
  metadata: {name: any-status}
  rules: [{apiGroups: ["*"], resources: ["*/status"], verbs: [get]}]
- kind: ClusterRole
  metadata: {name: one-name}
  rules: [{apiGroups: [""], resources: [secrets], resourceNames: [ours], verbs: ["*"]}]
- kind: ClusterRole
  metadata: {name: paths}
  rules: [{nonResourceURLs: [/metrics, /logs/*], verbs: [get]}]
- kind: ClusterRole
  metadata: {name: all}
  rules: [{apiGroups: ["*"], resources: ["*"], verbs: ["*"]}]
- kind: ClusterRole
  metadata: {name: rbac}
  rules:
    - {apiGroups: [rbac.authorization.k8s.io], resources: [roles, rolebindings, clusterroles], verbs: ["*"], resourceNames: [free]}
- kind: ClusterRole
  metadata: {name: nulls}
  rules: [{apiGroups: [""], resources: [events], verbs: [get], resourceNames: null, nonResourceURLs: null}]
- kind: Role
  metadata: {name: writer, namespace: a}
  rules: [{apiGroups: [""], resources: [configmaps], verbs: [create]}]

- kind: ClusterRoleBinding
  metadata: {name: readers}
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reader}
  subjects: [{kind: User, name: rita}, {kind: Group, name: readers}]
- kind: ClusterRoleBinding
  metadata: {name: paths}
  roleRef: {kind: ClusterRole, name: paths}
  subjects: [{kind: User, name: prometheus}]
- kind: ClusterRoleBinding
  metadata: {name: statuses}
  roleRef: {kind: ClusterRole, name: any-status}
  subjects: [{kind: User, name: stan}]
- kind: ClusterRoleBinding
  metadata: {name: names}
  roleRef: {kind: ClusterRole, name: one-name}
  subjects: [{kind: User, name: nora}]
- kind: ClusterRoleBinding
  metadata: {name: nulls}
  roleRef: {kind: ClusterRole, name: nulls}
  subjects: [{kind: User, name: go}]
- kind: ClusterRoleBinding
  metadata: {name: dangling}
  roleRef: {kind: ClusterRole, name: gone}
  subjects: [{kind: User, name: dan}]
- kind: ClusterRoleBinding
  metadata: {name: foreign-group}
  roleRef: {apiGroup: example.com, kind: ClusterRole, name: all}
  subjects: [{kind: User, name: mallory}]
- kind: ClusterRoleBinding
  metadata: {name: rbac}
  roleRef: {kind: ClusterRole, name: rbac}
  subjects: [{kind: User, name: ruth}]
- kind: RoleBinding
  metadata: {name: writers, namespace: a}
  roleRef: {kind: Role, name: writer}
  subjects: [{kind: ServiceAccount, name: bot}, {kind: ServiceAccount, name: bot, namespace: b}]
- kind: RoleBinding
  metadata: {name: bosses, namespace: a}
  roleRef: {kind: ClusterRole, name: all}
  subjects: [{kind: User, name: bea}]
- kind: RoleBinding
  metadata: {name: elsewhere, namespace: b}
  roleRef: {kind: Role, name: writer}
  subjects: [{kind: User, name: eve}]
"#;

fn policy() -> Policy {
    let mut policy = Policy::default();
    for object in serde_saphyr::from_str::<Vec<Value>>(POLICY).unwrap() {
        put(&mut policy, &object, true);
    }
    policy
}

fn put(policy: &mut Policy, object: &Value, present: bool) {
    let kind = PolicyKind::of(object["kind"].as_str().unwrap()).unwrap();
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    policy.apply(kind, &text("namespace"), &text("name"), present.then_some(object));
}

/// Reads `NAME[+GROUP]`, or `system:serviceaccount:NS:NAME`.
fn user(text: &str) -> User {
    let (name, group) = text.split_once('+').unwrap_or((text, "nobody"));
    User {
        name: name.to_owned(),
        groups: vec![group.to_owned()],
        ..User::default()
    }
}

/// Reads `VERB RESOURCE[/SUB][.GROUP] [NAMESPACE[/NAME]]`, or `VERB /path`.
fn request(text: &str) -> Attributes {
    let mut words = text.split(' ');
    let (verb, what, place) = (
        words.next().unwrap(),
        words.next().unwrap(),
        words.next().unwrap_or_default(),
    );
    if what.starts_with('/') {
        return Attributes::non_resource(verb, what);
    }
    let (combined, group) = what.split_once('.').unwrap_or((what, ""));
    let (resource, subresource) = combined.split_once('/').unwrap_or((combined, ""));
    let (namespace, name) = place.split_once('/').unwrap_or((place, ""));
    Attributes {
        verb: verb.to_owned(),
        group: group.to_owned(),
        version: "v1".to_owned(),
        resource: resource.to_owned(),
        subresource: subresource.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        path: String::new(),
    }
}

fn check(who: &str, wants: &str, expected: bool) {
    let decision = policy().authorize(&user(who), &request(wants));
    assert_eq!(decision.is_allowed(), expected, "{who} {wants}: {}", decision.reason());
}

#[test]
fn nothing_is_allowed_without_a_binding() {
    check("nobody", "get configmaps a/x", false);
    check("nobody", "get /api", false);
    check("", "get configmaps a/x", false);
    assert_eq!(
        policy().authorize(&user("nobody"), &request("get configmaps a/x")),
        Decision::Denied { missing: vec![] }
    );
}

#[test]
fn users_groups_and_service_accounts_are_subjects() {
    check("rita", "get configmaps a/x", true);
    check("other+readers", "list configmaps", true);
    check("readers", "list configmaps", false);
    check("other+rita", "list configmaps", false);
    check("system:serviceaccount:a:bot", "create configmaps a", true);
    check("system:serviceaccount:b:bot", "create configmaps a", true);
    check("system:serviceaccount:c:bot", "create configmaps a", false);
    check("bot", "create configmaps a", false);
    check("anyone+system:masters", "delete secrets a/x", true);
    check("system:masters", "delete secrets a/x", false);
}

#[test]
fn rules_match_verb_group_resource_and_subresource() {
    check("rita", "delete configmaps a/x", false);
    check("rita", "get configmaps.farwater.dev a/x", false);
    check("rita", "get secrets a/x", false);
    check("rita", "update servicedeployments/status.farwater.dev a/x", true);
    check("rita", "update servicedeployments.farwater.dev a/x", false);
    check("rita", "get configmaps/status a/x", false);
    check("stan", "get clusters/status.farwater.dev a/x", true);
    check("stan", "get clusters/join.farwater.dev a/x", false);
    check("stan", "get clusters.farwater.dev a/x", false);
    check("bea", "anything anything/sub.example.com a/x", true);
    check("go", "get events a/x", true);
}

#[test]
fn resource_names_limit_and_allow_no_list() {
    check("nora", "get secrets a/ours", true);
    check("nora", "get secrets a/theirs", false);
    check("nora", "list secrets a", false);
    check("nora", "create secrets a", false);
}

#[test]
fn a_role_binding_reaches_its_namespace_only() {
    check("bea", "get secrets a/x", true);
    check("bea", "get secrets b/x", false);
    check("bea", "list secrets", false);
    check("bea", "get /metrics", false);
    check("eve", "create configmaps b", false);
    check("eve", "create configmaps a", false);
}

#[test]
fn paths_match_whole_or_by_prefix() {
    check("prometheus", "get /metrics", true);
    check("prometheus", "get /metrics/x", false);
    check("prometheus", "post /metrics", false);
    check("prometheus", "get /logs/a/b", true);
    check("prometheus", "get /logs", false);
}

#[test]
fn bindings_that_name_nothing_grant_nothing() {
    check("dan", "get configmaps a/x", false);
    check("mallory", "get configmaps a/x", false);
    let decision = policy().authorize(&user("dan"), &request("get configmaps a/x"));
    assert_eq!(
        decision.reason(),
        "RBAC: clusterrole.rbac.authorization.k8s.io \"gone\" not found"
    );
}

#[test]
fn reasons_name_the_binding() {
    let check = |who: &str, wants: &str, reason: &str| {
        assert_eq!(policy().authorize(&user(who), &request(wants)).reason(), reason);
    };
    check(
        "rita",
        "get configmaps a/x",
        "RBAC: allowed by ClusterRoleBinding \"readers\" of ClusterRole \"reader\" to User \"rita\"",
    );
    check(
        "system:serviceaccount:b:bot",
        "create configmaps a",
        "RBAC: allowed by RoleBinding \"writers/a\" of Role \"writer\" to ServiceAccount \"bot/b\"",
    );
    check("nobody", "get configmaps a/x", "");
}

#[test]
fn refusals_read_as_those_of_kubernetes() {
    let check = |wants: &str, message: &str| assert_eq!(request(wants).forbidden_message(&user("rita")), message);
    check(
        "list clusters.farwater.dev a",
        "User \"rita\" cannot list resource \"clusters\" in API group \"farwater.dev\" in the namespace \"a\"",
    );
    check(
        "get clusters/join.farwater.dev",
        "User \"rita\" cannot get resource \"clusters/join\" in API group \"farwater.dev\" at the cluster scope",
    );
    check("get /metrics", "User \"rita\" cannot get path \"/metrics\"");
}

#[test]
fn changes_take_effect_and_leave_nothing_behind() {
    let mut policy = policy();
    let objects: Vec<Value> = serde_saphyr::from_str(POLICY).unwrap();
    let find = |name: &str| {
        objects
            .iter()
            .find(|object| object["metadata"]["name"] == name)
            .unwrap()
    };
    let allowed = |policy: &Policy| {
        policy
            .authorize(&user("rita"), &request("get configmaps a/x"))
            .is_allowed()
    };

    put(&mut policy, find("reader"), false);
    assert!(!allowed(&policy));
    put(&mut policy, find("reader"), true);
    assert!(allowed(&policy));

    let mut without_rita = find("readers").clone();
    without_rita["subjects"] = serde_json::json!([{"kind": "Group", "name": "readers"}]);
    put(&mut policy, &without_rita, true);
    assert!(!allowed(&policy));
    put(&mut policy, find("readers"), true);
    assert!(allowed(&policy));
    put(&mut policy, find("readers"), false);
    assert!(!allowed(&policy));
}

#[test]
fn rules_are_listed_once() {
    let rules = policy().rules(&user("system:serviceaccount:b:bot+readers"), "a");
    let resources: Vec<&str> = rules.iter().map(|rule| rule.resources[0].as_str()).collect();
    assert_eq!(resources, ["configmaps", "servicedeployments/status", "configmaps"]);
    assert_eq!(policy().rules(&user("rita+readers"), "a").len(), 2);
    assert_eq!(
        policy().rules(&user("x+system:masters"), "a"),
        [Rule::everything(), Rule::every_path()]
    );
}

/// Checks whether a user may write this object. `missing`: number of rules that the user lacks.
#[track_caller]
fn check_write(who: &str, object: &str, missing: Option<usize>) {
    let object: Value = serde_saphyr::from_str(object).unwrap();
    let found = match policy().check_escalation(&user(who), &object) {
        Ok(()) => None,
        Err(Escalation::NotHeld { missing, .. }) => Some(missing.len()),
        Err(other) => panic!("{other}"),
    };
    assert_eq!(found, missing, "{who}: {object}");
}

#[test]
fn a_role_is_written_by_those_who_hold_its_rules() {
    let role = |rules: &str| format!("kind: Role\nmetadata: {{name: r, namespace: a}}\nrules: [{rules}]");
    let reads = role("{apiGroups: ['']  , resources: [configmaps], verbs: [get, list]}");
    check_write("rita", &reads, None);
    check_write("nobody", &reads, Some(2));
    check_write("bea", &reads, None);
    check_write(
        "rita",
        &role("{apiGroups: [''], resources: [configmaps], verbs: ['*']}"),
        Some(1),
    );
    check_write(
        "rita",
        &role("{apiGroups: [''], resources: ['*'], verbs: [get]}"),
        Some(1),
    );
    check_write(
        "rita",
        &role("{apiGroups: ['*'], resources: [configmaps], verbs: [get]}"),
        Some(1),
    );
    check_write(
        "rita",
        &role("{apiGroups: [''], resources: [configmaps], resourceNames: [x], verbs: [get]}"),
        None,
    );
    check_write(
        "nora",
        &role("{apiGroups: [''], resources: [secrets], verbs: [get]}"),
        Some(1),
    );
    check_write(
        "nora",
        &role("{apiGroups: [''], resources: [secrets], resourceNames: [ours, b], verbs: [get]}"),
        Some(1),
    );
    check_write(
        "stan",
        &role("{apiGroups: [x], resources: [y/status], verbs: [get]}"),
        None,
    );
    check_write(
        "x+system:masters",
        &role("{apiGroups: ['*'], resources: ['*'], verbs: ['*']}"),
        None,
    );
    check_write("nobody", &role(""), None);
}

#[test]
fn rights_of_one_namespace_make_no_cluster_role() {
    let rules = "rules: [{apiGroups: [''], resources: [secrets], verbs: [get]}]";
    check_write(
        "bea",
        &format!("kind: Role\nmetadata: {{name: r, namespace: a}}\n{rules}"),
        None,
    );
    check_write(
        "bea",
        &format!("kind: Role\nmetadata: {{name: r, namespace: b}}\n{rules}"),
        Some(1),
    );
    check_write(
        "bea",
        &format!("kind: ClusterRole\nmetadata: {{name: r}}\n{rules}"),
        Some(1),
    );
}

#[test]
fn paths_are_granted_by_those_who_hold_a_prefix() {
    let role = |path: &str| {
        format!("kind: ClusterRole\nmetadata: {{name: r}}\nrules: [{{nonResourceURLs: ['{path}'], verbs: [get]}}]")
    };
    check_write("prometheus", &role("/metrics"), None);
    check_write("prometheus", &role("/metrics*"), Some(1));
    check_write("prometheus", &role("/logs/a*"), None);
    check_write("prometheus", &role("/logs/*"), None);
    check_write("prometheus", &role("/log*"), Some(1));
    check_write("prometheus", &role("*"), Some(1));
}

#[test]
fn the_verbs_escalate_and_bind_lift_the_check() {
    let all = "rules: [{apiGroups: ['*'], resources: ['*'], verbs: ['*']}]";
    check_write(
        "ruth",
        &format!("kind: Role\nmetadata: {{name: free, namespace: a}}\n{all}"),
        None,
    );
    check_write(
        "ruth",
        &format!("kind: Role\nmetadata: {{name: other, namespace: a}}\n{all}"),
        Some(1),
    );
    let bind = |kind: &str, role: &str| {
        format!(
            "kind: {kind}\nmetadata: {{name: b, namespace: a}}\nroleRef: {{kind: ClusterRole, name: {role}}}\nsubjects: []"
        )
    };
    check_write("ruth", &bind("RoleBinding", "all"), Some(1));
    check_write("bea", &bind("RoleBinding", "all"), None);
    check_write("rita", &bind("RoleBinding", "reader"), None);
    check_write("rita", &bind("RoleBinding", "one-name"), Some(1));
    // `free` does not exist, but its binder holds the verb.
    check_write("ruth", &bind("RoleBinding", "free"), None);
    let object = serde_saphyr::from_str(&bind("RoleBinding", "gone")).unwrap();
    let refusal = policy()
        .check_escalation(&user("rita"), &object)
        .unwrap_err()
        .to_string();
    assert_eq!(refusal, "clusterrole.rbac.authorization.k8s.io \"gone\" not found");
}

#[test]
fn other_kinds_are_no_matter_of_escalation() {
    check_write("nobody", "kind: ConfigMap\nmetadata: {name: x, namespace: a}", None);
}

#[test]
fn a_role_that_multiplies_without_bound_is_refused() {
    let many = |count: usize| (0..count).map(|n| n.to_string()).collect::<Vec<_>>();
    let rule = Rule {
        verbs: many(100),
        api_groups: many(100),
        resources: many(100),
        ..Rule::default()
    };
    assert_eq!(missing_rules(&[Rule::everything()], &[rule]), Err(Escalation::TooMany));
}
