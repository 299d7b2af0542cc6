//! Discovery in both forms: aggregated (`apidiscovery.k8s.io/v2`) if the client requests it, otherwise the old one.

use serde_json::{Value, json};

use crate::kinds::{Registry, ResourceKind};

/// The content type that an aggregated answer must have, and that the client must have requested.
pub const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

fn without_empty(mut value: Value, fields: &[&str]) -> Value {
    if let Some(map) = value.as_object_mut() {
        map.retain(|k, v| !fields.contains(&k.as_str()) || v.as_array().is_none_or(|a| !a.is_empty()));
    }
    value
}

fn aggregated_resource(kind: &ResourceKind) -> Value {
    // Empty means the list's; Kubernetes states its own only for custom resources.
    let own = match kind.ours {
        true => json!({"group": kind.group, "version": kind.version, "kind": kind.kind}),
        false => json!({"group": "", "version": "", "kind": kind.kind}),
    };
    let subresources: Vec<Value> = kind
        .subresources
        .iter()
        .map(|s| {
            let response = s
                .kind
                .map_or_else(|| own.clone(), |(g, v, k)| json!({"group": g, "version": v, "kind": k}));
            json!({"subresource": s.name, "responseKind": response, "verbs": s.verbs})
        })
        .collect();
    let value = json!({
        "resource": kind.plural,
        "responseKind": own,
        "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": kind.singular,
        "verbs": kind.verbs,
        "shortNames": kind.short_names,
        "categories": kind.categories,
        "subresources": subresources,
    });
    without_empty(value, &["shortNames", "categories", "subresources"])
}

/// `/api` (core: true) or `/apis`, aggregated.
pub fn aggregated(registry: &Registry, core: bool) -> Value {
    let items: Vec<Value> = registry
        .groups()
        .into_iter()
        .filter(|(group, _)| group.is_empty() == core)
        .map(|(group, version)| {
            let resources: Vec<_> = registry.in_group(group, version).map(aggregated_resource).collect();
            let metadata = if core { json!({}) } else { json!({"name": group}) };
            json!({
                "metadata": metadata,
                "versions": [{"version": version, "resources": resources, "freshness": "Current"}],
            })
        })
        .collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
}

/// `/api`, old form. `address` is where the client reached us.
pub fn core_versions(address: &str) -> Value {
    json!({
        "kind": "APIVersions", "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    })
}

fn group_value(group: &str, version: &str) -> Value {
    let version = json!({"groupVersion": format!("{group}/{version}"), "version": version});
    json!({"name": group, "versions": [version], "preferredVersion": version})
}

/// `/apis`, old form.
pub fn groups(registry: &Registry) -> Value {
    let groups: Vec<Value> = registry
        .groups()
        .into_iter()
        .filter(|(group, _)| !group.is_empty())
        .map(|(group, version)| group_value(group, version))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/GROUP`.
pub fn group(registry: &Registry, name: &str) -> Option<Value> {
    let (group, version) = registry
        .groups()
        .into_iter()
        .find(|(group, _)| *group == name && !name.is_empty())?;
    let mut value = group_value(group, version);
    value["kind"] = json!("APIGroup");
    value["apiVersion"] = json!("v1");
    Some(value)
}

/// `/api/v1` and `/apis/GROUP/VERSION`.
pub fn resources(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let mut list = Vec::new();
    for kind in registry.in_group(group, version) {
        list.push(without_empty(
            json!({
                "name": kind.plural, "singularName": kind.singular, "namespaced": kind.namespaced, "kind": kind.kind,
                "verbs": kind.verbs, "shortNames": kind.short_names, "categories": kind.categories,
            }),
            &["shortNames", "categories"],
        ));

        for subresource in &kind.subresources {
            let mut entry = json!({
                "name": format!("{}/{}", kind.plural, subresource.name), "singularName": "",
                "namespaced": kind.namespaced, "kind": kind.kind, "verbs": subresource.verbs,
            });
            if let Some((group, version, kind)) = subresource.kind {
                entry["group"] = json!(group);
                entry["version"] = json!(version);
                entry["kind"] = json!(kind);
            }
            list.push(entry);
        }
    }

    let group_version = if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    };
    (!list.is_empty()).then(
        || json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list}),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::REGISTRY;

    #[test]
    fn both_forms_name_the_same_resources() {
        for core in [true, false] {
            for item in aggregated(&REGISTRY, core)["items"].as_array().unwrap() {
                let group = item["metadata"]["name"].as_str().unwrap_or_default();
                let version = &item["versions"][0];
                let old = resources(&REGISTRY, group, version["version"].as_str().unwrap()).unwrap();
                for resource in version["resources"].as_array().unwrap() {
                    let listed = old["resources"].as_array().unwrap();
                    let same = listed.iter().find(|r| r["name"] == resource["resource"]).unwrap();
                    assert_eq!(same["verbs"], resource["verbs"]);
                    for sub in resource["subresources"].as_array().into_iter().flatten() {
                        let name = format!(
                            "{}/{}",
                            same["name"].as_str().unwrap(),
                            sub["subresource"].as_str().unwrap()
                        );
                        assert!(listed.iter().any(|r| r["name"] == name.as_str()), "{name}");
                    }
                }
            }
        }
    }

    #[test]
    fn our_kinds_are_in_their_categories() {
        let list = resources(&REGISTRY, "farwater.dev", "v1alpha1").unwrap();
        let sd = list["resources"]
            .as_array()
            .unwrap()
            .iter()
            .find(|r| r["name"] == "servicedeployments")
            .unwrap()
            .clone();
        assert_eq!(sd["shortNames"], json!(["sd"]));
        assert_eq!(sd["categories"], json!(["farwater", "all"]));
        assert!(group(&REGISTRY, "farwater.dev").is_some());
        assert!(group(&REGISTRY, "").is_none() && group(&REGISTRY, "apps").is_none());
    }
}
