// Written from the Rust types by `crates/cli/tests/web_types.rs`; do not edit.

export type AdoptPolicy = "Always" | "IfNoDifference" | "Never";

/** How the objects of a service are applied. An object's own annotations come before these. */
export interface ApplyOptions {
  /** Whether objects that exist already and belong to no service become this service's. */
  adopt?: AdoptPolicy;
  /** What becomes of fields that another field manager owns with another value. */
  conflicts?: ConflictPolicy;
  /** What becomes of objects that others changed or deleted. */
  drift?: DriftMode;
  /** Fields that others may change: no drift, and left as they are when the object is applied again. */
  ignoreDifferences?: IgnoreDifference[];
  /** What becomes of an object whose change the API server refuses because a field of it can't be changed. Kinds that hold data or other objects are made anew only where their own annotation says so. */
  immutable?: ImmutablePolicy;
}

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

export type ConflictPolicy = "Force" | "Report";

/** What an object takes with it when it is deleted. */
export interface Contents {
  /** How many of which kind, the most first; of the kinds that the service's account may list. */
  counts: KindCount[];
  object: ObjectRef;
  /** Kinds that could not be counted. */
  unknown?: number;
}

/** The last deletion of a service's objects. Their states lie in the cluster alone. */
export interface Deletion {
  /** Who approved it, where it was held. The hub says so; agents don't know. */
  approvedBy?: string;
  count: number;
  /** Of the plan that took them: what a request to undo names. */
  digest: string;
  /** How many were too large to be kept. */
  lost?: number;
  /** The first ten. */
  objects?: ObjectRef[];
  /** Seconds since 1970. */
  time: number;
  /** What came of the last request to undo it. */
  undone?: Undone;
}

export type DeletionPolicy = "Orphan" | "Delete";

export type DriftMode = "Correct" | "Report" | "Ignore";

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

/** How objects of one kind are judged, in all clusters, in place of the built-in rules. What is being deleted, or has an `observedGeneration` that is behind, is told so first. Expressions are CEL, and the object is `self`; of a Secret they see metadata and type alone. Where one has no value, the object's health is unknown.  Of several rules for one kind the first by name is in force, and a service's own (`spec.health`) come before them. */
export interface HealthRuleSpec {
  /** Asked last: true where it is healthy. An object that none of the three is true of is on its way. */
  current: string;
  /** Asked next: true where it will not become healthy by itself. */
  failed?: string;
  /** The kind's API group, in any version; empty for Kubernetes' core. */
  group?: string;
  /** Asked first: true while the object is on its way. */
  inProgress?: string;
  kind: string;
  /** What is said of one that is not healthy: an expression whose value is a string. */
  message?: string;
}

export interface HeldPrune {
  /** What goes with the namespaces and definitions among them. */
  contents?: Contents[];
  count: number;
  /** The plan's digest: what an approval must name. */
  digest: string;
  /** The first ten objects that would go. */
  objects: ObjectRef[];
  /** Why it waits, in one sentence. */
  reason: string;
  /** It waits for nothing but objects of the source that are not applied yet, and for no approval. */
  untilApplied?: boolean;
}

export interface HookCounts {
  failed: number;
  running: number;
  succeeded: number;
}

/** Fields of some objects, named as in Argo CD. What is left out of `group`, `kind`, `namespace` and `name` matches all. */
export interface IgnoreDifference {
  /** CEL, asked about each field that the source states: true of those that others may change. `field` is its JSON pointer, as in `jsonPointers`, and `self` the object as the source states it; of a Secret its metadata alone. */
  expression?: string;
  group?: string;
  /** JSON pointers (RFC 6901) through maps: `/spec/replicas`. A list is named as a whole. */
  jsonPointers?: string[];
  kind?: string;
  /** Field managers: what one of them owns is its own. */
  managedFieldsManagers?: string[];
  name?: string;
  namespace?: string;
}

export type ImmutablePolicy = "Report" | "Recreate";

export interface KindCount {
  count: number;
  /** `Kind.group`, as messages name kinds. */
  kind: string;
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
  /** The object that this one waits for, where it is one. */
  waitsFor?: ObjectRef;
}

export interface Pin {
  /** Digest of a bundle that `servicedeployments/NAME/history` lists. */
  bundle: string;
  reason?: string;
}

/** A folder of a source, kept applied on one cluster. */
export interface ServiceDeploymentSpec {
  /** How the objects are applied. */
  apply?: ApplyOptions;
  /** The cluster; immutable. */
  clusterRef: ClusterReference;
  /** What happens to the objects when this resource is deleted. */
  deletionPolicy: DeletionPolicy;
  /** Services of this namespace, on whatever cluster: a newer bundle of this one is delivered once they are healthy at what is assigned to them. */
  dependsOn?: LocalReference[];
  /** How objects of some kinds are judged, before the hub's HealthRules and the built-in rules. The first for a kind counts. */
  health?: HealthRuleSpec[];
  /** Folder of the source, relative to its root; empty or `.` is the root. */
  path: string;
  /** Keeps the service at a bundle of its history, whatever its source has. */
  pin?: Pin;
  /** Whether objects that leave the source are deleted from the cluster. */
  prune: boolean;
  /** Secrets of the service's own namespace in the hub that the cluster gets too, in `targetNamespace` and under the same names. They travel sealed to the cluster's agent and are in no bundle. */
  secrets?: LocalReference[];
  /** Where the files come from. */
  sourceRef: SourceReference;
  /** Holds the service at what it runs now. */
  suspend: boolean;
  /** Why `suspend` is set, and until when it counts. */
  suspension?: Suspension;
  /** Namespace of the cluster for objects that name none; created if missing. */
  targetNamespace: string;
  /** Run in the cluster, in `targetNamespace`, each time a version has become healthy. One that fails fails the version. */
  tests?: ServiceTest[];
}

/** At most 4 KB: a summary. Every object's state is at `servicedeployments/NAME/objects`. */
export interface ServiceDeploymentStatus {
  /** The revision whose bundle the agent last applied without an error. */
  appliedRevision?: string;
  /** When. It counts for a day, and is taken off then. */
  approvedAt?: Time;
  /** Who set the annotation `farwater.dev/approve-prune` that stands. */
  approvedBy?: string;
  /** The source's revision whose bundle is assigned to the cluster. */
  assignedRevision?: string;
  /** The digest of the bundle that is assigned. */
  bundleDigest?: string;
  /** Who said last what is to run: the source, the path or the pin. */
  changedBy?: string;
  /** `Ready`, `Reconciling`, `Stalled`, `PruneHeld` while a prune waits for approval, `Drifted` while objects differ from the source that are not corrected, and `Pinned`. */
  conditions?: Condition[];
  /** A prune that waits for `farwater.dev/approve-prune: <digest>`. */
  heldPrune?: HeldPrune;
  /** What the source has, where a pin, a suspension or a dependency holds it back. */
  heldRevision?: string;
  /** Of the version that is assigned: hooks and tests that the agent has begun. `farwater hooks` tells of each. */
  hooks?: HookCounts;
  /** When the agent last applied something. */
  lastAppliedTime?: Time;
  /** What the agent deleted last; `farwater undo` brings it back. */
  lastDeletion?: Deletion;
  lastHandledReconcileAt?: string;
  objects?: ObjectCounts;
  observedGeneration?: number;
  /** Who set the pin that stands. */
  pinnedBy?: string;
  /** Who set the suspension that stands. */
  suspendedBy?: string;
  /** The first objects that are failed, in progress or refused; never more than five. */
  unhealthy?: UnhealthyObject[];
}

/** One test: a container that has to end with 0. Its fields are those of a Kubernetes container; what they can't say, a Job of the source says that is annotated `farwater.dev/hook: Test`. */
export interface ServiceTest {
  args?: string[];
  /** The image's entrypoint if absent. */
  command?: string[];
  env?: Variable[];
  image: string;
  name: string;
  /** How often it is tried again when it fails. */
  retries?: number;
  /** Of the target namespace; its default one if absent. */
  serviceAccountName?: string;
  /** All tries together must end within it, as a Go duration; between 1s and 24h. */
  timeout: string;
}

export type SourceKind = "GitRepository";

export interface SourceReference {
  kind: SourceKind;
  name: string;
}

export interface Suspension {
  reason?: string;
  /** From then on the service goes on by itself, as if `suspend` were not set. */
  until?: Time;
}

/** What the agent did or did not do with one object. */
export type SyncState = "Synced" | "Refused" | "Waiting" | "PruneHeld" | "Drifted" | "Unknown";

export interface Undone {
  /** How many could not be restored. */
  failed?: number;
  /** The first ten of them, and why not. */
  failures?: Unrestored[];
  /** The request that this answers. */
  request: string;
  restored: number;
}

export interface UnhealthyObject {
  /** Cut at 256 bytes. */
  message: string;
  object: ObjectRef;
}

export interface Unrestored {
  /** Cut at 256 bytes. Never holds values of Secrets. */
  message: string;
  object: ObjectRef;
}

/** A variable of a container's environment. */
export interface Variable {
  name: string;
  value?: string;
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
