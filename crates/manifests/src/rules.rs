//! Rights in a cluster, each with its reason: manifests, chart and documentation say the same. The hub needs none.

use serde_json::{Value, json};

/// A rule of a Role or ClusterRole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// `""` is the core group.
    pub groups: &'static [&'static str],
    pub resources: &'static [&'static str],
    /// Empty: all of them.
    pub names: &'static [&'static str],
    pub verbs: &'static [&'static str],
    /// Reads after "it may do this to".
    pub why: &'static str,
}

impl Rule {
    pub(crate) fn value(&self) -> Value {
        let mut rule = json!({"apiGroups": self.groups, "resources": self.resources, "verbs": self.verbs});
        if !self.names.is_empty() {
            rule["resourceNames"] = json!(self.names);
        }
        rule
    }
}

/// Of the agent in the whole cluster. Objects of services are looked up, applied, watched and deleted as the account that a
/// grant names, with that account's rights and no others.
pub const AGENT_IN_CLUSTER: &[Rule] = &[
    Rule {
        groups: &[""],
        resources: &["serviceaccounts"],
        names: &[],
        verbs: &["impersonate"],
        why: "act as the account that a service's grant names; add resourceNames to narrow it to some accounts",
    },
    Rule {
        groups: &[""],
        resources: &["serviceaccounts"],
        names: &[],
        verbs: &["get"],
        why: "tell a service whose account is missing from one whose account lacks rights",
    },
    Rule {
        groups: &[""],
        resources: &["namespaces"],
        names: &[],
        verbs: &["get"],
        why: "know whether a service's namespace is there, and tell this cluster from others by the uid of kube-system",
    },
];

/// Of the agent in its own namespace.
pub const AGENT_IN_NAMESPACE: &[Rule] = &[
    Rule {
        groups: &[""],
        resources: &["secrets"],
        names: &[],
        verbs: &["get", "list", "create", "patch", "delete"],
        why: "keep its identity, the last desired state, inventories and small bundles where they outlive its pod",
    },
    Rule {
        groups: &["coordination.k8s.io"],
        resources: &["leases"],
        names: &[],
        verbs: &["create"],
        why: "make the Lease that decides which of two agents acts",
    },
    Rule {
        groups: &["coordination.k8s.io"],
        resources: &["leases"],
        names: &["farwater-agent"],
        verbs: &["get", "patch"],
        why: "hold that Lease",
    },
    Rule {
        groups: &["apps"],
        resources: &["deployments"],
        names: &["farwater-agent"],
        verbs: &["get", "patch"],
        why: "change itself to the version that its hub wants, and go back",
    },
    Rule {
        groups: &[""],
        resources: &["pods"],
        names: &[],
        verbs: &["list"],
        why: "say why a new version of it does not start",
    },
];

/// The page of the documentation.
pub fn page() -> String {
    format!(
        "# What the agent may do, and why\n\n\
         Objects of services are looked up, applied, watched and deleted as the service account that a\n\
         [ClusterGrant](kinds/clustergrant.md) names, with that account's rights and no others. Services of the hub's namespace\n\
         `farwater-admin` are applied as `farwater-system/farwater-administrator`, which `cluster join` binds to `cluster-admin`; the\n\
         chart leaves that out with `bindAdministrator: false`.\n\n\
         The hub has no rights in any cluster. But it signs what the agent does, so a hub in wrong hands could have it act as any account of the\n\
         cluster. Limits of the agent's own hold against that.\n\
         \n\
         ## What no hub can widen\n\
         \n\
         | option of the agent, and of `farwater cluster join` | value of the chart | without it |\n\
         |---|---|---|\n\
         | `--allow-accounts PATTERN,…` | `limits.allowAccounts` | services may act as any account but those of `kube-system`, `kube-public` and `kube-node-lease` |\n\
         | `--allow-namespaces PATTERN,…` | `limits.allowNamespaces` | services may read and change any namespace but these three |\n\
         | `--deny-kinds PATTERN,…` | `limits.denyKinds` | services may change each kind that their account may |\n\
         | `--max-deletions N` | `limits.maxDeletions` | 1000 objects are deleted per minute; further ones wait |\n\
         \n\
         A pattern of accounts is `NAMESPACE/NAME`, one of kinds `RESOURCE[.GROUP]`; `*` stands for anything, but for none of the three namespaces\n\
         of the cluster itself: these are allowed by their full names. Services in `kube-system` need `--allow-namespaces '*,kube-system'`, and also\n\
         `--allow-accounts '*/*,kube-system/*'` if their grant names an account of `kube-system`. No option allows the agent's own namespace. An object\n\
         that a limit refuses is reported as refused, with the option. The status of the Cluster shows the limits (`status.agentLimits`).\n\
         \n\
         **These limits narrow what the agent asks for, not what follows from it:**\n\
         \n\
         - An account that may create Pods and cluster role bindings can do anything through a Pod of its own. The account of the administrators,\n\
         \x20 `farwater-system/farwater-administrator`, is one. Against a hub in wrong hands, install with `bindAdministrator: false` (or without that\n\
         \x20 account in `--allow-accounts`), and deploy by accounts of narrower rights.\n\
         - A Namespace or a CustomResourceDefinition counts as one deletion, with all that goes with it: `--deny-kinds\n\
         \x20 namespaces,customresourcedefinitions.apiextensions.k8s.io` has the agent neither change nor delete them.\n\
         - An AgentPolicy may install another version of the agent, also one without limits. If the hub must not\n\
         \x20 choose it, take `patch` on Deployments out of the Role below, and update agents yourself.\n\
         - A list over all namespaces is not narrowed: RBAC decides that.\n\n\
         ## In the whole cluster (ClusterRole `farwater-agent`)\n\n{}\n\
         Discovery and `/version` are allowed to every authenticated user by Kubernetes' own `system:discovery`.\n\n\
         ## In its namespace, `farwater-system` (Role `farwater-agent`)\n\n{}\n\
         **Whoever reads Secrets there is the agent**, and whoever may change its Deployment too: give nobody rights in that\n\
         namespace.\n",
        table(AGENT_IN_CLUSTER),
        table(AGENT_IN_NAMESPACE)
    )
}

fn table(rules: &[Rule]) -> String {
    let mut text = "| may | on | in order to |\n|---|---|---|\n".to_owned();
    for rule in rules {
        let names: String = rule.names.iter().map(|name| format!(" `{name}`")).collect();
        let group =
            rule.groups.iter().find(|group| !group.is_empty()).map_or(String::new(), |group| format!(".{group}"));
        let resources = rule.resources.join(", ");
        text.push_str(&format!("| {} | {resources}{group}{names} | {} |\n", rule.verbs.join(", "), rule.why));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    #[test]
    fn the_page_of_rights_says_what_the_rules_say() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/rights.md");
        if std::env::var_os("FARWATER_WRITE").is_some() {
            fs::write(&path, super::page()).unwrap();
        }
        let known = fs::read_to_string(&path).unwrap_or_default();
        assert!(known == super::page(), "docs/rights.md is not fresh: run this test with FARWATER_WRITE=1");
    }
}
