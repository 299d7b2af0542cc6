//! The agent's rights in a cluster, each with its purpose. Manifests and `docs/rights.md` are made from these rules,
//! and the chart has the same ones. The hub needs no rights.

use serde_json::{Value, json};

/// A rule of a Role or ClusterRole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// API groups. `""` is the core group.
    pub groups: &'static [&'static str],
    pub resources: &'static [&'static str],
    /// Names of the objects. Empty: all objects.
    pub names: &'static [&'static str],
    pub verbs: &'static [&'static str],
    /// Purpose of the rule, as the end of "it may do this to …".
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

/// The agent's rights in the whole cluster. The agent reads, applies, watches and deletes objects of services as the
/// account that a grant names, with only that account's rights.
pub const AGENT_IN_CLUSTER: &[Rule] = &[
    Rule {
        groups: &[""],
        resources: &["serviceaccounts"],
        names: &[],
        verbs: &["impersonate"],
        why: "act as the service account that a service's grant names; add resourceNames to limit the accounts",
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
        why: "check that a service's namespace exists, and identify the cluster by the uid of kube-system",
    },
];

/// The agent's rights in its own namespace.
pub const AGENT_IN_NAMESPACE: &[Rule] = &[
    Rule {
        groups: &[""],
        resources: &["secrets"],
        names: &[],
        verbs: &["get", "list", "create", "patch", "delete"],
        why: "store its identity, the last desired state, inventories and small bundles, so that they outlive its pod",
    },
    Rule {
        groups: &["coordination.k8s.io"],
        resources: &["leases"],
        names: &[],
        verbs: &["create"],
        why: "create the Lease that decides which of two agents is active",
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
        why: "update itself to the version that its hub wants, and roll back",
    },
    Rule {
        groups: &[""],
        resources: &["pods"],
        names: &[],
        verbs: &["list"],
        why: "report why a new version of the agent does not start",
    },
];

/// Text of `docs/rights.md`.
pub fn page() -> String {
    format!(
        "# What the agent may do, and why\n\n\
         The agent reads, applies, watches and deletes objects of services as the service account that a\n\
         [ClusterGrant](kinds/clustergrant.md) names. It has only that account's rights there. For services of the hub's\n\
         namespace `farwater-admin` it acts as `farwater-system/farwater-administrator`. `cluster join` binds that account to\n\
         `cluster-admin`; the chart does not with `bindAdministrator: false`.\n\n\
         The hub has no rights in any cluster. But it signs the agent's desired state, so a compromised hub could make the agent\n\
         act as any account of the cluster. The agent's own limits restrict this.\n\
         \n\
         ## What no hub can widen\n\
         \n\
         | option of the agent, and of `farwater cluster join` | value of the chart | without it |\n\
         |---|---|---|\n\
         | `--allow-accounts PATTERN,…` | `limits.allowAccounts` | services may act as any account, except those of `kube-system`, `kube-public` and `kube-node-lease` |\n\
         | `--allow-namespaces PATTERN,…` | `limits.allowNamespaces` | services may read and change any namespace, except these three |\n\
         | `--deny-kinds PATTERN,…` | `limits.denyKinds` | services may change every kind that their account may change |\n\
         | `--max-deletions N` | `limits.maxDeletions` | the agent deletes at most 1000 objects per minute; further deletions wait |\n\
         \n\
         A pattern for accounts is `NAMESPACE/NAME`, and a pattern for kinds is `RESOURCE[.GROUP]`. `*` matches anything except\n\
         the three namespaces of the cluster itself. These are allowed only by their full names:\n\
         \n\
         - Services in `kube-system` need `--allow-namespaces '*,kube-system'`.\n\
         - If their grant names an account of `kube-system`, they also need `--allow-accounts '*/*,kube-system/*'`.\n\
         \n\
         No option allows the agent's own namespace. The agent reports an object that a limit refuses as refused, and names the\n\
         option. The status of the Cluster shows the limits (`status.agentLimits`).\n\
         \n\
         **These limits apply to the agent's own requests, not to their consequences:**\n\
         \n\
         - An account that may create Pods and cluster role bindings can do anything through its own Pod. The administrators'\n\
         \x20 account, `farwater-system/farwater-administrator`, is one. To protect a cluster against a compromised hub, install\n\
         \x20 with `bindAdministrator: false`, or leave that account out of `--allow-accounts`. Then deploy with accounts that\n\
         \x20 have fewer rights.\n\
         - Deleting a Namespace or a CustomResourceDefinition counts as one deletion, with everything in it. With `--deny-kinds\n\
         \x20 namespaces,customresourcedefinitions.apiextensions.k8s.io` the agent neither changes nor deletes them.\n\
         - An AgentPolicy may install another version of the agent, even one without limits. If the hub must not choose the\n\
         \x20 version, remove `patch` on Deployments from the Role below, and update agents yourself.\n\
         - A list over all namespaces is not limited: RBAC decides it.\n\n\
         ## In the whole cluster (ClusterRole `farwater-agent`)\n\n{}\n\
         Kubernetes' own `system:discovery` allows discovery and `/version` to every authenticated user.\n\n\
         ## In its namespace, `farwater-system` (Role `farwater-agent`)\n\n{}\n\
         **A user who can read Secrets in this namespace can act as the agent.** So can a user who may change its Deployment.\n\
         Give no one rights in this namespace.\n",
        table(AGENT_IN_CLUSTER),
        table(AGENT_IN_NAMESPACE)
    )
}

fn table(rules: &[Rule]) -> String {
    let mut text = "| may | on | in order to |\n|---|---|---|\n".to_owned();
    for rule in rules {
        let names: String = rule.names.iter().map(|name| format!(" `{name}`")).collect();
        let group = rule
            .groups
            .iter()
            .find(|group| !group.is_empty())
            .map_or(String::new(), |group| format!(".{group}"));
        let resources = rule.resources.join(", ");
        text.push_str(&format!(
            "| {} | {resources}{group}{names} | {} |\n",
            rule.verbs.join(", "),
            rule.why
        ));
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
        assert!(
            known == super::page(),
            "docs/rights.md is not fresh: run this test with FARWATER_WRITE=1"
        );
    }
}
