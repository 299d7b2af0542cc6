//! What each command changes, and which field or object does it: whatever a command does, `kubectl apply` can do too.

/// By the words of the command. The command line and this list are held together by a test, and `docs/cli.md` shows it.
pub const EFFECTS: &[(&str, Effect)] = &[
    ("hub", Effect::Runs),
    ("login", Effect::Here("the kubeconfig that `farwater` reads")),
    (
        "cluster join",
        Effect::Writes(&["Cluster, made if it is missing", "the subresource `clusters/NAME/join`: a one-time token"]),
    ),
    (
        "deploy",
        Effect::Writes(&[
            "GitRepository `spec.url`, `spec.ref`, `spec.secretRef`",
            "ServiceDeployment `spec`",
            "annotation `reconcile.farwater.dev/requestedAt` of the GitRepository",
        ]),
    ),
    ("get", Effect::Reads),
    ("tree", Effect::Reads),
    ("why", Effect::Reads),
    ("wait", Effect::Reads),
    ("objects", Effect::Reads),
    ("version", Effect::Reads),
    ("completion", Effect::Reads),
];

#[derive(Clone, Copy, Debug)]
pub enum Effect {
    Reads,
    /// It is the hub.
    Runs,
    /// Something on this machine alone.
    Here(&'static str),
    /// Objects and fields of the hub.
    Writes(&'static [&'static str]),
}
