// Written from the Rust types by `crates/cli/tests/web_types.rs`; do not edit.

export interface ClusterReference {
  name: string;
  /** The service's own namespace if absent, then the administrators'. */
  namespace?: string;
}

/** A Kubernetes cluster that joins by a one-time token and is reached only by its own agent's requests. */
export interface ClusterSpec {
  /** How often the agent asks for its desired state, as a Go duration; between 1s and 10m. */
  pollInterval: string;
  /** Holds every change to the cluster; what runs there goes on running. */
  suspend: boolean;
}

export interface ClusterStatus {
  /** The image that the agent's Deployment names; absent where the agent was started by hand. */
  agentImage?: string;
  agentVersion?: string;
  /** By how many seconds the clock of the agent's machine is ahead of the hub's, negative where it is behind; absent where that is less than a minute. The agent goes by the hub's time; other programs of the cluster don't. */
  clockSkewSeconds?: number;
  /** `Ready` (joined and heard within three polls), `ClockSkewed` while the agent's machine has another time than the hub, and `Restored` while nothing is deleted because the hub's database was restored from a backup; the annotation `farwater.dev/confirm-restored` ends that. `AgentUpdated` is False where the agent went back from what its AgentPolicy says. `VersionSkew` while the agent is newer than the hub, or more than two releases older. */
  conditions?: Condition[];
  /** Whether the agent has a connection over which it is told of changes at once; absent: it polls. Merged in like the time. */
  connected?: boolean;
  kubernetesVersion?: string;
  /** When the agent last asked. Kept beside the resource and merged in when it is read, so it wakes no watch. */
  lastHeardTime?: Time;
  observedGeneration?: number;
}

export type DeletionPolicy = "Orphan" | "Delete";

/** What to follow in a repository. Exactly one field may be set. */
export interface GitReference {
  /** A branch's short name. */
  branch?: string;
  /** A commit's full id. */
  commit?: string;
  /** A semver range over the tags' names, for example `>=1.2.0 <2.0.0`. */
  semver?: string;
  /** A tag's short name. */
  tag?: string;
}

/** A Git repository that is polled and read without a checkout. */
export interface GitRepositorySpec {
  /** How often the remote is asked, as a Go duration; between 10s and 24h. */
  interval: string;
  /** What to follow; the branch `main` if absent. One of its fields may be set. */
  ref?: GitReference;
  /** A Secret in the same namespace with `username` and `password`, or `bearerToken`, and optionally `ca.crt`. */
  secretRef?: LocalReference;
  /** Stops polling; what was fetched goes on being served. */
  suspend: boolean;
  /** Longest time that one fetch may take, as a Go duration; between 1s and 30m. */
  timeout: string;
  /** Address of the repository: http or https. Credentials belong in `secretRef`, never here. */
  url: string;
}

export interface GitRepositoryStatus {
  /** `Ready`, `Reconciling` and `Stalled`, readable by kstatus. */
  conditions?: Condition[];
  /** When `revision` last changed. */
  lastFetchTime?: Time;
  /** The last request annotation that was acted on. */
  lastHandledReconcileAt?: string;
  /** The generation that the conditions speak of. */
  observedGeneration?: number;
  /** What is served: `<branch or tag>@sha1:<commit>`, as Flux writes revisions. */
  revision?: string;
  /** Since when the remote could not be asked; absent while it answers. */
  staleSince?: Time;
}

/** Health by kstatus' rules, the worst first. */
export type Health = "Failed" | "InProgress" | "Terminating" | "Current" | "Unknown";

export interface HeldPrune {
  count: number;
  /** The plan's digest: what an approval must name. */
  digest: string;
  /** The first ten objects that would go. */
  objects: ObjectRef[];
  /** Why it waits, in one sentence. */
  reason: string;
}

/** The name of an object in the same namespace. */
export interface LocalReference {
  name: string;
}

export interface ObjectCounts {
  failed: number;
  healthy: number;
  progressing: number;
  total: number;
}

/** One object of a cluster. `namespace` is empty for cluster-scoped objects. */
export interface ObjectRef {
  group?: string;
  kind: string;
  name: string;
  namespace?: string;
  version: string;
}

/** One object of a cluster. `namespace` is empty for cluster-scoped objects. */
export interface ObjectReport {
  group?: string;
  health: Health;
  kind: string;
  /** At most 1 KiB; empty where there is nothing to say. Never holds values of Secrets. */
  message?: string;
  name: string;
  namespace?: string;
  sync: SyncState;
  version: string;
}

/** A folder of a source, kept applied on one cluster. */
export interface ServiceDeploymentSpec {
  /** The cluster; immutable. */
  clusterRef: ClusterReference;
  /** What happens to the objects when this resource is deleted. */
  deletionPolicy: DeletionPolicy;
  /** Folder of the source, relative to its root; empty or `.` is the root. */
  path: string;
  /** Whether objects that leave the source are deleted from the cluster. */
  prune: boolean;
  /** Secrets of the service's own namespace in the hub that the cluster gets too, in `targetNamespace` and under the same names. They travel sealed to the cluster's agent and are in no bundle. */
  secrets?: LocalReference[];
  /** Where the files come from. */
  sourceRef: SourceReference;
  /** Holds the service at what it runs now. */
  suspend: boolean;
  /** Namespace of the cluster for objects that name none; created if missing. */
  targetNamespace: string;
}

/** At most 4 KB: a summary. Every object's state is at `servicedeployments/NAME/objects`. */
export interface ServiceDeploymentStatus {
  /** The revision whose bundle the agent last applied without an error. */
  appliedRevision?: string;
  /** The source's revision whose bundle is assigned to the cluster. */
  assignedRevision?: string;
  /** The digest of the bundle that is assigned. */
  bundleDigest?: string;
  /** `Ready`, `Reconciling`, `Stalled`, and `PruneHeld` while a prune waits for approval. */
  conditions?: Condition[];
  /** A prune that waits for `farwater.dev/approve-prune: <digest>`. */
  heldPrune?: HeldPrune;
  /** When the agent last applied something. */
  lastAppliedTime?: Time;
  lastHandledReconcileAt?: string;
  objects?: ObjectCounts;
  observedGeneration?: number;
  /** The first objects that are failed, in progress or refused; never more than five. */
  unhealthy?: UnhealthyObject[];
}

export type SourceKind = "GitRepository";

export interface SourceReference {
  kind: SourceKind;
  name: string;
}

/** What the agent did or did not do with one object. */
export type SyncState = "Synced" | "Refused" | "Waiting" | "PruneHeld" | "Unknown";

export interface UnhealthyObject {
  /** Cut at 256 bytes. */
  message: string;
  object: ObjectRef;
}

/** Condition contains details for one aspect of the current state of this API Resource. */
export interface Condition {
  /** lastTransitionTime is the last time the condition transitioned from one status to another. This should be when the underlying condition changed.  If that is not known, then using the time when the API field changed is acceptable. */
  lastTransitionTime: Time;
  /** message is a human readable message indicating details about the transition. This may be an empty string. */
  message: string;
  /** observedGeneration represents the .metadata.generation that the condition was set based upon. For instance, if .metadata.generation is currently 12, but the .status.conditions[x].observedGeneration is 9, the condition is out of date with respect to the current state of the instance. */
  observedGeneration?: number;
  /** reason contains a programmatic identifier indicating the reason for the condition's last transition. Producers of specific condition types may define expected values and meanings for this field, and whether the values are considered a guaranteed API. The value should be a CamelCase string. This field may not be empty. */
  reason: string;
  /** status of the condition, one of True, False, Unknown. */
  status: string;
  /** type of condition in CamelCase or in foo.example.com/CamelCase. */
  type: string;
}

/** Time is a wrapper around time.Time which supports correct marshaling to YAML and JSON.  Wrappers are provided for many of the factory methods that the time package offers. */
export type Time = string;
