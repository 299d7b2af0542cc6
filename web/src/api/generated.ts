// Made by cargo xtask codegen from crates/api; don't edit.

export type AdoptPolicy = "Always" | "IfNoDifference" | "Never";

/** Limits set when an agent was installed. No hub can widen them. */
export interface AgentLimits {
  /** Patterns of service accounts that services may act as: NAMESPACE/NAME. */
  accounts: string[];
  /** Maximum number of objects that the agent deletes for services per minute. */
  deletionsPerMinute: number;
  /** Patterns of kinds that services may not change: RESOURCE[.GROUP]. */
  deniedKinds: string[];
  /** Patterns of namespaces that services may touch. Only their full names match kube-system, kube-public and kube-node-lease. */
  namespaces: string[];
}

/** How the agent applies the objects of a service. An object's own annotations take precedence. */
export interface ApplyOptions {
  /** Whether the service takes over existing objects that belong to no service. */
  adopt?: AdoptPolicy;
  /** What happens to a field that another field manager owns with another value. */
  conflicts?: ConflictPolicy;
  /** What happens to objects that others changed or deleted. */
  drift?: DriftMode;
  /** Fields that others may change. They are not drift, and keep their values when the object is applied again. */
  ignoreDifferences?: IgnoreDifference[];
  /** What happens when the API server refuses a change because a field is immutable. Kinds that hold data or other objects are recreated only if their own annotation says so. */
  immutable?: ImmutablePolicy;
}

/** Clusters that a change reaches first. */
export interface Canary {
  /** Label selector for clusters that may be canaries. Absent: the clusters of the first step. */
  clusterSelector?: LabelSelector;
  /** Number of canaries: the first healthy clusters by name. Absent: all selected clusters, or one if there is no selector. 0: no canary. */
  count?: number;
}

/** A chart of a HelmRepository. */
export interface ChartReference {
  /** Name of the chart in the index; below a registry's path, it may contain slashes. */
  name: string;
  /** Version, or a range in Helm's format: `1.2.3`, `~1.2`, `>=1 <2`. `*`: the newest that is not a pre-release. */
  version: string;
}

/** Parts of a Cluster that services can receive. */
export type ClusterPart = "Labels" | "Annotations" | "Metadata" | "Version";

/** Reference to a Cluster. */
export interface ClusterReference {
  /** Name of the Cluster. */
  name: string;
  /** Namespace of the Cluster. Empty: the service's own namespace, then `farwater-admin`. */
  namespace?: string;
}

/** A Kubernetes cluster. It joins with a one-time token, and the hub reaches it only through its agent's requests. */
export interface ClusterSpec {
  /** Values that services on the cluster may receive beside its labels and annotations: account and network ids, domains. Any form; at most 32 KiB as JSON, 512 names and 16 levels. Not for secrets: anyone who may read the Cluster can read them. */
  metadata?: Record<string, unknown>;
  /** Interval between requests of the agent for its desired state, as a Go duration between 1s and 10m. */
  pollInterval: string;
  /** Suspend holds every change to the cluster. Running workloads keep running. */
  suspend: boolean;
}

/** Observed state of the Cluster. */
export interface ClusterStatus {
  /** Public age key (`age1…`) for SOPS files that only this cluster can decrypt. It changes with the agent's keys. Files encrypted to earlier keys stay readable. */
  ageRecipient?: string;
  /** Image in the agent's Deployment. Empty if the agent was started by hand. */
  agentImage?: string;
  /** Limits set when the agent was installed. The hub cannot change them. Empty for older agents. */
  agentLimits?: AgentLimits;
  /** Version of the agent. */
  agentVersion?: string;
  /** Seconds by which the clock of the agent's machine is ahead of the hub's; negative if it is behind. Empty: less than a minute. The agent uses the hub's time; other programs in the cluster do not. */
  clockSkewSeconds?: number;
  /** `Ready` is True when the cluster has joined and its agent was heard within three polls. `ClockSkewed` is set while the clock of the agent's machine differs from the hub's. `Restored` is set while nothing is deleted because the hub's database was restored from a backup; the annotation `farwater.dev/confirm-restored` ends it. `AgentUpdated` is False if the agent rolled back from its AgentPolicy. `VersionSkew` is set while the agent is newer than the hub, or more than two releases older. */
  conditions?: Condition[];
  /** Whether the agent has a connection over which the hub announces changes at once. Empty: the agent polls. Added on reads, as `lastHeardTime` is. */
  connected?: boolean;
  /** Kubernetes version of the cluster. */
  kubernetesVersion?: string;
  /** Time of the agent's last request. It is stored beside the resource and added on reads, so it triggers no watch. */
  lastHeardTime?: Time;
  /** Generation of the resource that the conditions describe. */
  observedGeneration?: number;
}

export type ConflictPolicy = "Force" | "Report";

/** Objects that are deleted together with another one. */
export interface Contents {
  /** Numbers by kind, the largest first. Only kinds that the service's account may list. */
  counts: KindCount[];
  /** The namespace or definition. */
  object: ObjectRef;
  /** Number of kinds that could not be counted. */
  unknown?: number;
}

export type DeletionPolicy = "Orphan" | "Delete";

export type DependencyClusters = "Same" | "All";

export type DependencyKind = "ServiceDeployment" | "ServiceSet";

/** A service or set that must be healthy first. */
export interface DependencyReference {
  /** Clusters of a ServiceSet that must be healthy. Only for sets. */
  clusters?: DependencyClusters;
  /** Kind of the dependency. */
  kind: DependencyKind;
  /** Name of the dependency. */
  name: string;
  /** CEL expression over `self`, the ServiceDeployment or ServiceSet. It is true when the dependency is ready, and replaces the health check. Empty: the dependency must be healthy at the version assigned to it. */
  readyExpr?: string;
}

export type DriftMode = "Correct" | "Report" | "Ignore";

/** Reference to follow in a repository. Exactly one field may be set. */
export interface GitReference {
  /** Name of a branch, in short form. */
  branch?: string;
  /** Full id of a commit. */
  commit?: string;
  /** Full name of a reference, such as `refs/pull/420/head`. */
  name?: string;
  /** Name of a Pipeline in the same namespace. The repository serves the commit that the Pipeline promoted to the stage of this repository. Until the first promotion, only a revision that was already fetched stays in use. */
  pipeline?: string;
  /** Semver range over the names of the tags, such as `>=1.2.0 <2.0.0`. */
  semver?: string;
  /** Name of a tag, in short form. */
  tag?: string;
}

/** A Git repository. The hub polls it and reads its files without a checkout. */
export interface GitRepositorySpec {
  /** Interval between polls of the remote, as a Go duration between 10s and 24h. */
  interval: string;
  /** Whether to replace Git LFS pointers with the files. */
  lfs: boolean;
  /** Name of a Secret in the same namespace with the `address` of an HTTP proxy, and optionally `username`, `password` and `ca.crt`. Empty: no proxy. */
  proxySecretRef?: LocalReference;
  /** Whether to fetch submodules, recursively, and place them at their paths. */
  recurseSubmodules: boolean;
  /** Reference to follow. Only one of its fields may be set. Empty: the remote's default branch. */
  ref?: GitReference;
  /** Name of a Secret in the same namespace. For http and https, the Secret holds `username` and `password`, `bearerToken`, or `githubAppID`, `githubAppInstallationID` and `githubAppPrivateKey`, and optionally `ca.crt`. For ssh it holds `identity` and `known_hosts`, and optionally `password` for the key. Empty: a Secret of the namespace that is annotated with a prefix of the URL, if there is one. */
  secretRef?: LocalReference;
  /** Suspend stops polling. The last fetched revision stays in use. */
  suspend: boolean;
  /** Maximum time of one fetch, as a Go duration between 1s and 30m. */
  timeout: string;
  /** Address of the repository: http, https, `ssh://`, or ssh's short form `git@host:path`. Put credentials in `secretRef`, never here. */
  url: string;
  /** Serve only revisions with a valid signature. Empty: signatures are not checked. */
  verify?: GitVerification;
}

/** Observed state of the GitRepository. */
export interface GitRepositoryStatus {
  /** `Ready`, `Reconciling` and `Stalled`, as kstatus reads them; `SourceVerified` if `spec.verify` is set. */
  conditions?: Condition[];
  /** Time at which `revision` last changed. */
  lastFetchTime?: Time;
  /** Value of the last handled request annotation. */
  lastHandledReconcileAt?: string;
  /** Generation of the resource that the conditions describe. */
  observedGeneration?: number;
  /** Revision that is served: `<branch or tag>@sha1:<commit>`, the format of Flux. */
  revision?: string;
  /** Time since which the remote has failed to answer. Empty while it answers. */
  staleSince?: Time;
}

/** Signatures that a revision needs. */
export interface GitVerification {
  /** Object that must be signed: the commit (`HEAD`), the followed annotated tag (`Tag`), or both (`TagAndHEAD`). */
  mode: GitVerificationMode;
  /** Name of a Secret in the same namespace whose values are OpenPGP or ssh public keys. */
  secretRef: LocalReference;
}

export type GitVerificationMode = "HEAD" | "Tag" | "TagAndHEAD";

/** Health by kstatus' rules, the worst first. */
export type Health = "Failed" | "InProgress" | "Terminating" | "Current" | "Unknown";

/** Health check for the objects of one kind, in all clusters, in place of the built-in rules. Objects that are being deleted, or whose `observedGeneration` is behind, are reported as such before any expression runs. Expressions are CEL, and `self` is the object; for a Secret, only its metadata and type. If an expression has no value, the object's health is unknown.  If several rules name one kind, the first by name applies. A service's own rules (`spec.health`) take precedence. */
export interface HealthRuleSpec {
  /** Expression that is evaluated last. True: the object is healthy. If none of the three is true, the object is progressing. */
  current: string;
  /** Expression that is evaluated second. True: the object will not become healthy by itself. Empty: the check is skipped. */
  failed?: string;
  /** API group of the kind, in any version. Empty: the core group. */
  group?: string;
  /** Expression that is evaluated first. True: the object is progressing. Empty: the check is skipped. */
  inProgress?: string;
  /** The kind. */
  kind: string;
  /** Expression for the message of an object that is not healthy. Its value is a string. Empty: no message. */
  message?: string;
}

/** A prune that is held. */
export interface HeldPrune {
  /** Contents of the namespaces and definitions among the objects. */
  contents?: Contents[];
  /** Number of objects that the prune deletes. */
  count: number;
  /** Digest of the plan. An approval must name it. */
  digest: string;
  /** Digests of earlier plans with all these objects, newest last. Their approvals and proposals stay valid. */
  earlier?: string[];
  /** The first ten objects that the prune deletes. */
  objects: ObjectRef[];
  /** Why the prune waits, in one sentence. */
  reason: string;
  /** Whether the prune waits only for objects of the source that are not applied yet, and needs no approval. */
  untilApplied?: boolean;
}

/** Options of `helm template`. The chart's own values come first, then `valuesFiles` in their order, then `values`; later ones take precedence. */
export interface HelmOptions {
  /** Whether to skip values files that do not exist. */
  ignoreMissingValuesFiles?: boolean;
  /** Whether the template function `lookup` reads the cluster, with the service's account. If false, it finds nothing. The result of rendering with it is not cached. */
  lookup?: boolean;
  /** Post-renderers for the rendered objects and hooks, in this order. */
  postRenderers?: PostRenderer[];
  /** Name of the release. Empty: the service's name. */
  releaseName?: string;
  /** Whether to leave out the definitions in the charts' `crds` folders. By default they are applied and upgraded. */
  skipCrds?: boolean;
  /** Whether to accept values that the chart's schema rejects. */
  skipSchemaValidation?: boolean;
  /** Whether to leave out hooks that are tests. */
  skipTests?: boolean;
  /** Values, in the chart's own structure. Not for secrets: they are readable in the hub and in the cluster. */
  values?: Record<string, unknown>;
  /** Values files, relative to the chart's folder. A path that begins with `/` is relative to the root of the source. */
  valuesFiles?: string[];
}

/** A repository of Helm charts: an index over http or https, or a registry. */
export interface HelmRepositorySpec {
  /** Name of a Secret in the same namespace with `ca.crt`, and `tls.crt` and `tls.key` for a client certificate. Empty: no additional authorities and no client certificate. */
  certSecretRef?: LocalReference;
  /** Whether to use plain HTTP for a registry. */
  insecure: boolean;
  /** Interval between polls of the remote, as a Go duration between 10s and 24h. */
  interval: string;
  /** Whether to send the credentials also to other hosts that the index names for its charts. */
  passCredentials: boolean;
  /** Name of a Secret in the same namespace with `username` and `password`; for a registry also `.dockerconfigjson`. Empty: a Secret of the namespace that is annotated with a prefix of the URL, if there is one. */
  secretRef?: LocalReference;
  /** Suspend stops polling. The last fetched index and charts stay in use. */
  suspend: boolean;
  /** Maximum time to fetch the index, or one chart, as a Go duration between 1s and 30m. */
  timeout: string;
  /** `oci` for a registry. Optional if `url` begins with `oci://`. */
  type: HelmRepositoryType;
  /** Address of the folder that holds `index.yaml`, or `oci://` and the registry path that holds the charts. Put credentials in `secretRef`, never here. */
  url: string;
}

export type HelmRepositoryType = "default" | "oci";

/** Numbers of hooks and tests of a version. */
export interface HookCounts {
  /** Number that failed. */
  failed: number;
  /** Number that are running. */
  running: number;
  /** Number that succeeded. */
  succeeded: number;
}

/** Fields of some objects, named as in Argo CD. An empty `group`, `kind`, `namespace` or `name` matches all. */
export interface IgnoreDifference {
  /** CEL expression that is evaluated for each field that the source sets, and is true for fields that others may change. `field` is the field's JSON pointer, as in `jsonPointers`. `self` is the object in the source; for a Secret, only its metadata. */
  expression?: string;
  /** API group of the objects. Empty: any group. */
  group?: string;
  /** JSON pointers (RFC 6901) through maps, such as `/spec/replicas`. A pointer can name a list only as a whole. */
  jsonPointers?: string[];
  /** Kind of the objects. Empty: any kind. */
  kind?: string;
  /** Names of field managers. Fields owned by one of them keep that manager's values. */
  managedFieldsManagers?: string[];
  /** Name of the object. Empty: any name. */
  name?: string;
  /** Namespace of the objects. Empty: any namespace. */
  namespace?: string;
}

/** A replacement of an image. */
export interface Image {
  /** New digest. Takes precedence over `newTag`. Empty: none. */
  digest?: string;
  /** Name of the image, without a tag. */
  name: string;
  /** New name. Empty: the name stays. */
  newName?: string;
  /** New tag. Empty: the tag stays. */
  newTag?: string;
}

export type ImmutablePolicy = "Report" | "Recreate";

/** Number of objects of one kind. */
export interface KindCount {
  /** Number of objects. */
  count: number;
  /** Kind, as `Kind.group`. */
  kind: string;
}

/** Options that are added to the kustomization's own fields of the same names. */
export interface KustomizeOptions {
  /** Components that follow the kustomization's own, relative to its folder. */
  components?: string[];
  /** Replacements of images. Each overrides the kustomization's entry for the same name. */
  images?: Image[];
  /** Files that a kustomization may read besides other kustomizations. */
  loadRestrictor?: LoadRestrictor;
  /** Prefix of the names of objects. Empty: none. */
  namePrefix?: string;
  /** Suffix of the names of objects. Empty: none. */
  nameSuffix?: string;
}

/** Post-renderer by Kustomize: either `path`, or `patches` and `images`. */
export interface KustomizePostRenderer {
  /** Replacements of images. */
  images?: Image[];
  /** Patches of the objects, in this order. */
  patches?: Patch[];
  /** Folder of a kustomization that lists `helm-output.yaml` in its resources. Relative to the chart's folder or, if it begins with `/`, to the root of the source. */
  path?: string;
}

/** The last deletion of a service's objects, as its status shows it. The states of the deleted objects are kept only in the cluster. */
export interface LastDeletion {
  /** User who approved the deletion. Empty: it needed no approval. */
  approvedBy?: string;
  /** Digest of the approved plan, if it had more objects than this deletion. */
  approvedPlan?: string;
  /** Number of deleted objects. */
  count: number;
  /** Digest of the plan that deleted the objects. A request to undo names it. */
  digest: string;
  /** Number of objects that were too large to keep. */
  lost?: number;
  /** The first ten deleted objects. */
  objects?: ObjectRef[];
  /** Time of the deletion. */
  time: Time;
  /** Result of the last request to undo the deletion. */
  undone?: Undone;
}

export type LayerOperation = "extract" | "copy";

/** Layer to read, and how to read it. */
export interface LayerSelector {
  /** Media type; the first layer that has it is read. Empty: the first layer. */
  mediaType?: string;
  /** How to read the layer. */
  operation: LayerOperation;
}

/** Values of `kustomize build --load-restrictor`. */
export type LoadRestrictor = "LoadRestrictionsRootOnly" | "LoadRestrictionsNone";

/** Reference to an object in the same namespace. */
export interface LocalReference {
  /** Name of the object. */
  name: string;
}

/** One cluster of a set, as `servicesets/NAME/members` lists it. */
export interface Member {
  /** The cluster, as `namespace/name`. */
  cluster: string;
  /** Why its service cannot be created. Empty: it can. */
  message?: string;
  /** Progress of the member, as one of a few values. Absent: it takes part in no rollout. */
  progress?: Progress;
  /** Revision that is assigned to the member. Empty: none yet. */
  revision?: string;
  /** Name of the ServiceDeployment in the set's namespace. Empty: it does not exist. */
  service?: string;
  /** Time since which `progress` applies, if known. */
  since?: Time;
  /** Progress of the member in words. */
  standing?: string;
  /** State of the member. */
  state: MemberState;
  /** Step of the rollout. Empty: none. */
  step?: string;
  /** Revision that the member is to get, if it differs: that of the sources, or of the version to which the set is pinned. */
  wantedRevision?: string;
}

/** State of a member of a set. */
export type MemberState = "Progressing" | "Ready" | "Failed" | "Leaving";

/** A further source of a service. */
export interface MountedSource {
  /** Chart of a HelmRepository. Required for that kind of source. */
  chart?: ChartReference;
  /** Path at which the folder appears among the service's files. No other file may be there. */
  mountPath: string;
  /** Folder of that source. Empty or `.`: its root. */
  path?: string;
  /** The source. */
  sourceRef: SourceReference;
}

/** Reference to follow in a repository of a registry. Exactly one field may be set. */
export interface OCIReference {
  /** Digest of a manifest: `sha256:` and 64 hex digits. */
  digest?: string;
  /** Semver range over the tags, such as `>=1.2.0 <2.0.0`. */
  semver?: string;
  /** Name of a tag. */
  tag?: string;
}

/** An artifact in a registry, from `flux push artifact` or `helm push`, or any image with an archive as a layer. */
export interface OCIRepositorySpec {
  /** Name of a Secret in the same namespace with `ca.crt`, and `tls.crt` and `tls.key` for a client certificate. Empty: no additional authorities and no client certificate. */
  certSecretRef?: LocalReference;
  /** Whether to use plain HTTP for the registry. */
  insecure: boolean;
  /** Interval between polls of the registry, as a Go duration between 10s and 24h. */
  interval: string;
  /** Layer to read, and how to read it. Empty: the first layer, as an archive. */
  layerSelector?: LayerSelector;
  /** Reference to follow. Only one of its fields may be set. Empty: the tag `latest`. */
  ref?: OCIReference;
  /** Name of a Secret in the same namespace with `.dockerconfigjson`, or with `username` and `password`. Empty: a Secret of the namespace that is annotated with a prefix of the URL, if there is one. */
  secretRef?: LocalReference;
  /** Suspend stops polling. The last fetched revision stays in use. */
  suspend: boolean;
  /** Maximum time of one fetch, as a Go duration between 1s and 30m. */
  timeout: string;
  /** Address of the repository: `oci://HOST[:PORT]/PATH`, without a tag. */
  url: string;
  /** Signature that an artifact needs before it is served. Empty: signatures are not checked. */
  verify?: Verification;
}

/** Numbers of objects of a service. */
export interface ObjectCounts {
  /** Number of failed objects. */
  failed: number;
  /** Number of healthy objects. */
  healthy: number;
  /** Number of objects that are not healthy yet. */
  progressing: number;
  /** Number of all objects. */
  total: number;
}

/** An object of a cluster. `namespace` is empty for cluster-scoped objects. */
export interface ObjectRef {
  /** API group. Empty: the core group. */
  group?: string;
  /** Kind of the object. */
  kind: string;
  /** Name of the object. */
  name: string;
  /** Namespace of the object. Empty: the object is cluster-scoped. */
  namespace?: string;
  /** API version. */
  version: string;
}

/** State of one object of a service. */
export interface ObjectReport {
  /** API group. Empty: the core group. */
  group?: string;
  /** Health of the object. */
  health: Health;
  /** Kind of the object. */
  kind: string;
  /** Explanation of at most 1 KiB. It never holds values of Secrets. Empty: nothing to explain. */
  message?: string;
  /** Name of the object. */
  name: string;
  /** Namespace of the object. Empty: the object is cluster-scoped. */
  namespace?: string;
  /** Result of the agent's work on the object. */
  sync: SyncState;
  /** API version. */
  version: string;
  /** Object that this one waits for. Empty: it waits for no single object. */
  waitsFor?: ObjectRef;
}

export type OnFailure = "Halt" | "Rollback";

/** A change of the template for some clusters. */
export interface Override {
  /** Label selector for clusters. Empty: every cluster. */
  clusterSelector: LabelSelector;
  /** JSON merge patch of `template.spec`: a null removes a field, and a list is replaced. */
  patch: Record<string, unknown>;
}

/** Values of one object that a service receives. */
export interface Parameter {
  /** Object with the values. */
  from: ParameterSource;
  /** Keys to receive. Empty: all keys, so that a change of any key changes the service's parameters. */
  keys?: string[];
  /** Prefix for the names of a ConfigMap's or Secret's keys. Empty: no prefix. */
  prefix?: string;
}

/** Object with values. Exactly one field is set; `backend` may be added to `secret`. Objects are in the service's own namespace. */
export interface ParameterSource {
  /** With `secret`: name of the backend that holds it, from the hub's configuration. Empty: it is a Secret of the hub. */
  backend?: string;
  /** Part of the service's own Cluster. Templates see it in `cluster`. */
  cluster?: ClusterPart;
  /** Name of a Secret in the cluster itself, in the service's target namespace. The agent reads it with the service's rights. `keys` is required, and templates see the keys in `configuration`. The hub never sees a value. */
  clusterSecret?: string;
  /** Name of a ConfigMap. Templates see its keys in `configuration`. */
  configMap?: string;
  /** Name of a ServiceContext. Templates see its values as `contexts.NAME`. */
  context?: string;
  /** Name of a Secret. Templates see its keys in `configuration`. */
  secret?: string;
}

/** A patch of rendered objects, as in a kustomization. */
export interface Patch {
  /** Strategic merge patch, or JSON patch (RFC 6902), as YAML or JSON. A JSON patch needs `target`. */
  patch: string;
  /** Objects to patch. Empty: the object that the strategic merge patch names. */
  target?: PatchTarget;
}

/** Selects objects. An empty field matches all. Names, kinds and groups are regular expressions that must match the whole text. */
export interface PatchTarget {
  /** Annotation selector, in the same format. */
  annotationSelector?: string;
  /** API group. */
  group?: string;
  /** Kind. */
  kind?: string;
  /** Label selector, such as `app=web,tier!=cache`. */
  labelSelector?: string;
  /** Name. */
  name?: string;
  /** Namespace. */
  namespace?: string;
  /** API version. */
  version?: string;
}

/** A version to which the service is pinned. */
export interface Pin {
  /** Digest of a bundle in `servicedeployments/NAME/history`. */
  bundle: string;
  /** Why the service is pinned. Empty: no reason. */
  reason?: string;
}

/** A post-renderer. */
export interface PostRenderer {
  /** Options of Kustomize as a post-renderer. */
  kustomize: KustomizePostRenderer;
}

/** Progress of a member of a rollout. */
export type Progress = "Failed" | "Progressing" | "Soaking" | "Deferred" | "Still" | "Waiting" | "Done";

/** Numbers of members by progress. Each counts once. */
export interface ProgressCounts {
  deferred: number;
  done: number;
  failed: number;
  progressing: number;
  soaking: number;
  still: number;
  waiting: number;
}

/** Wait that a person skips. Any of them starts a rollout that is `OnHold`. */
export type Promote = "Soak" | "Step" | "Halt";

/** Selects the manifests of a folder: files named `*.yaml`, `*.yml` and `*.json` that `include`, `exclude` and the folder's `.sourceignore` files do not leave out. Patterns follow the rules of `.gitignore`, with braces for alternatives (`{a,b}/*.yaml`), and are relative to the renderer's folder. */
export interface RawOptions {
  /** Whether a folder without manifests is valid and has no objects. If false, such a folder is an error. */
  allowEmpty?: boolean;
  /** Patterns of files to leave out, matched as in `include`. Empty: none. */
  exclude?: string[];
  /** Patterns of files to read. A file matches by its own path or by that of a folder around it. Empty: all files. */
  include?: string[];
  /** Whether to read the folders below too. Default: true. */
  recurse?: boolean;
}

/** Renderer for one folder. */
export interface Renderer {
  /** Options for a chart. */
  helm?: HelmOptions;
  /** Options for a kustomization. */
  kustomize?: KustomizeOptions;
  /** Folder, relative to `spec.path` and within it. Empty or `.`: `spec.path` itself. Raw manifests leave out the folders of the other renderers. */
  path?: string;
  /** Name of the plugin in the agent's configuration. Only for type `Plugin`. */
  plugin?: string;
  /** Options for raw manifests. */
  raw?: RawOptions;
  /** Type of the renderer. */
  type?: RendererType;
}

/** Type of a renderer. */
export type RendererType = "Auto" | "Raw" | "Helm" | "Kustomize" | "Plugin";

/** Order of a person. It is obeyed once, and only for the rollout that it names. */
export interface RolloutOrder {
  /** Whether to roll back the updated clusters and stop the rollout. */
  abort?: boolean;
  /** Number of the rollout: `status.rollout.number`. */
  number: number;
  /** Wait to skip. Any value starts a rollout that is `OnHold`. Empty: none. */
  promote?: Promote;
  /** Reason for the order. Empty: none. */
  reason?: string;
  /** Token of the order. A new value makes it a new order. */
  requestedAt?: string;
  /** Clusters to skip, as `NAMESPACE/NAME`. The rollout does not wait for them; they keep what they have and get nothing new. */
  skip?: string[];
}

/** Phase of a rollout. */
export type RolloutPhase = "Complete" | "Progressing" | "Paused" | "OnHold" | "Halted" | "RollingBack" | "Aborted";

/** Policy for spreading a change: first to a canary, then step by step, to some clusters at a time. A failure stops it.  A change is new content of the source, a new template, or a new value of a parameter. */
export interface RolloutPolicy {
  /** Clusters that a change reaches first. */
  canary: Canary;
  /** Time for which a cluster must report its service as failed to count as failed, as a Go duration between 1s and 1h. */
  failAfter: string;
  /** Number of failed clusters that halts the rollout: a number, or a percentage. At most `maxUnavailable` counts. A single failed canary halts it. */
  haltAfter: unknown;
  /** Maximum number of values of `partitionBy` with updating clusters. */
  maxPartitions: number;
  /** Maximum number of clusters that may be unhealthy or updating at the same time. A number, or a percentage of the clusters that the hub hears; rounded down, at least one. */
  maxUnavailable: unknown;
  /** What happens to updated clusters when the rollout halts. */
  onFailure: OnFailure;
  /** Order of a person for one rollout. Commands write it. Empty: none. */
  order?: RolloutOrder;
  /** Key of a cluster label, such as `topology.kubernetes.io/region`. At most `maxPartitions` of its values have updating clusters at the same time. Empty: no partitions. */
  partitionBy?: string;
  /** Reason for the pause, for people. Empty: none. */
  pauseReason?: string;
  /** Whether the rollout is paused. A paused rollout starts no further updates and no rollbacks. */
  paused: boolean;
  /** Time within which a cluster must become healthy; otherwise it has failed. A Go duration between 30s and 24h. Time in which the service waits for its dependencies does not count. */
  progressDeadline: string;
  /** Time for which a cluster must stay healthy to count as updated, as a Go duration between 1s and 24h. */
  soak: string;
  /** Groups of clusters, one after the other. A cluster belongs to the first step that selects it. Clusters that no step selects come last. Empty: all clusters are one group. */
  steps?: RolloutStep[];
  /** Strategy of the rollout. */
  strategy: Strategy;
}

/** Progress of the last change. */
export interface RolloutStatus {
  /** Number of silent clusters. The rollout passes over them until the hub hears them. */
  deferred: number;
  /** Number of clusters that failed. */
  failed: number;
  /** The first cluster that failed, if it halts the rollout. */
  haltedBy?: string;
  /** Number of the rollout. It increases with each change of the set. */
  number: number;
  /** Phase of the rollout. */
  phase: RolloutPhase;
  /** Number of clusters that are updating. */
  progressing: number;
  /** Number of updating clusters that are healthy, but not yet for the length of the soak. */
  soaking?: number;
  /** Open step: `canary`, a step of the policy, or `rest`. Empty: all steps are open. */
  step?: string;
  /** Number of clusters that have completed the change. */
  updated: number;
  /** Number of clusters that wait for their turn. */
  waiting: number;
}

/** A group of clusters that update in the same step. */
export interface RolloutStep {
  /** Label selector for the clusters of the step. Empty: every cluster. */
  clusterSelector: LabelSelector;
  /** Maximum number of this step's clusters that may be unavailable, in addition to the rollout's limit. A number, or a percentage. Empty: only the rollout's limit. */
  maxUnavailable?: unknown;
  /** Name of the step. */
  name: string;
  /** Soak of this step. Empty: the rollout's. */
  soak?: string;
}

/** Progress of a set's rollout, counted over all members, as `servicesets/NAME/rollout` returns it. Its size grows with steps and versions, not with the fleet. */
export interface RolloutSurvey {
  /** Time of the count. Answers within a few seconds may share one count. */
  countedAt?: Time;
  /** Maximum number of clusters that may be unavailable. */
  maxUnavailable: number;
  /** The worst members that are not done; equally bad ones by name. */
  open: Member[];
  /** Number of versions that the last entry of `versions` stands for, if more than one. */
  others?: number;
  /** Steps, in the order in which a change reaches them. */
  stages: Stage[];
  /** Number of clusters that are unavailable now. */
  unavailable: number;
  /** Versions, the newest first as far as known. */
  versions: VersionCounts[];
  /** The first cluster that the next step waits for. */
  waitsFor?: Member;
}

/** A folder of a source that the agent keeps applied on one cluster. */
export interface ServiceDeploymentSpec {
  /** Options for applying the objects. */
  apply?: ApplyOptions;
  /** Chart of a HelmRepository. Required for that kind of source. */
  chart?: ChartReference;
  /** Cluster of the service. Immutable. */
  clusterRef: ClusterReference;
  /** Values that templates see in `configuration`. They take precedence over ConfigMaps and Secrets that are named as a whole. A selected key of the same name is refused. Not for secrets: anyone who may read the service can read them. At most 32 KiB as JSON, and 512 names. */
  configuration?: Record<string, string>;
  /** What happens to the objects when this resource is deleted. */
  deletionPolicy: DeletionPolicy;
  /** Services and sets of this namespace that must be healthy, at the version assigned to them, before a newer bundle of this service is delivered. */
  dependsOn?: DependencyReference[];
  /** Health rules of this service. They take precedence over the hub's HealthRules and the built-in rules. For each kind, the first rule applies. */
  health?: HealthRuleSpec[];
  /** Values of other objects that templates see. Among objects named without keys, the later takes precedence; selected keys take precedence over both. Selecting a name twice is an error. */
  parameters?: Parameter[];
  /** Patches for all rendered objects, in this order. */
  patches?: Patch[];
  /** Folder of the source, relative to its root. Empty or `.`: the root. */
  path: string;
  /** Pin holds the service at a bundle of its history, whatever its source has. Empty: the service follows its source. */
  pin?: Pin;
  /** Whether to delete objects from the cluster that are no longer in the source. */
  prune: boolean;
  /** Renderers that produce the objects from the files. Empty: one of type `Auto` for the whole folder. */
  renderers?: Renderer[];
  /** Secrets in the service's own namespace of the hub that are copied to `targetNamespace` under the same names. They travel sealed to the cluster's agent and are in no bundle. */
  secrets?: LocalReference[];
  /** Source of the files. */
  sourceRef: SourceReference;
  /** Further sources of this namespace, such as values or patches from another repository. Each adds a folder to the service's files. */
  sources?: MountedSource[];
  /** Suspend holds the service at the version that it runs now. */
  suspend: boolean;
  /** Why `suspend` is set, and until when. Empty: no reason, until resumed. */
  suspension?: Suspension;
  /** Namespace in the cluster for objects that name none. Created if missing. */
  targetNamespace: string;
  /** Tests that run in the cluster, in `targetNamespace`, each time a version has become healthy. A failed test fails the version. */
  tests?: ServiceTest[];
}

/** Observed state of the service, a summary of at most 4 KB. The state of every object is at `servicedeployments/NAME/objects`. */
export interface ServiceDeploymentStatus {
  /** Digest of the last applied entry: version, spec, parameters, and all else that changes the agent's work. */
  appliedEntry?: string;
  /** Revision whose bundle the agent last applied without an error. */
  appliedRevision?: string;
  /** Time of the approval. The approval is valid for a day; then the hub removes the annotation. */
  approvedAt?: Time;
  /** User who set the current annotation `farwater.dev/approve-prune`. */
  approvedBy?: string;
  /** Digest of the entry that the agent has to apply. Empty: the service has none to apply, because it has no version yet, is held or is being removed. */
  assignedEntry?: string;
  /** Revision of the source whose bundle is assigned to the cluster. Later commits that touch none of the service's files do not change it. */
  assignedRevision?: string;
  /** Digest of the assigned bundle. */
  bundleDigest?: string;
  /** User who last set the source, the path or the pin. */
  changedBy?: string;
  /** `Ready`, `Reconciling` and `Stalled`. `PruneHeld` is set while a prune waits for approval, and `Drifted` while drift is not corrected. `SecretsStale` is set while a secret backend cannot be read, and `Pinned` while a pin is set. `Frozen` is set while a ChangeWindow holds another version or spec, and `RolloutHeld` while the rollout of its set does. */
  conditions?: Condition[];
  /** `configuration` values that a pipeline promoted with the revision. They take precedence over those of the spec. */
  configuration?: Record<string, string>;
  /** Time since which the service has failed. It is kept until the service is ready again. */
  failedSince?: Time;
  /** Prune that waits for `farwater.dev/approve-prune: <digest>`. Empty: none waits. */
  heldPrune?: HeldPrune;
  /** Revision that the service would run if a pin, a suspension, a dependency, the rollout of its set or a ChangeWindow did not hold it back: the pinned one until it is assigned, otherwise the newest of the source. Empty: nothing is held back. */
  heldRevision?: string;
  /** Time of that request. */
  hookRetriedAt?: Time;
  /** User who set the current annotation `farwater.dev/retry-hook`. */
  hookRetriedBy?: string;
  /** Numbers of hooks and tests that the agent has started for the assigned version. `farwater hooks` lists them. */
  hooks?: HookCounts;
  /** Time at which the agent first reported `appliedEntry` as applied. */
  lastAppliedTime?: Time;
  /** Last deletion by the agent. `farwater undo` restores the objects. */
  lastDeletion?: LastDeletion;
  /** Value of the last handled request annotation. */
  lastHandledReconcileAt?: string;
  /** Numbers of objects. */
  objects?: ObjectCounts;
  /** Generation of the resource that the conditions describe. */
  observedGeneration?: number;
  /** Time of the override. The override is valid for a day; then the hub removes the annotation. */
  overriddenAt?: Time;
  /** Who set the annotation `farwater.dev/override-freeze` that stands. */
  overriddenBy?: string;
  /** Time of the proposal. Another person can approve the proposal for a day. */
  overrideProposedAt?: Time;
  /** User who set the current annotation `farwater.dev/propose-override`. */
  overrideProposedBy?: string;
  /** User who set the current pin. */
  pinnedBy?: string;
  /** Time of the proposal. Another person can approve the proposal for a day. */
  pruneProposedAt?: Time;
  /** User who set the current annotation `farwater.dev/propose-prune`. */
  pruneProposedBy?: string;
  /** User who set the current suspension. */
  suspendedBy?: string;
  /** The first objects that are failed, in progress or refused; at most five. */
  unhealthy?: UnhealthyObject[];
}

/** A ServiceDeployment for each selected cluster, created from one template.  The set owns these services. They are read-only, except for `suspend`, `suspension` and `pin`. */
export interface ServiceSetSpec {
  /** Label selector for clusters. Empty: every cluster that this namespace may deploy to. */
  clusterSelector: LabelSelector;
  /** What happens to the objects on a cluster that the selector no longer matches, or when the set is deleted. */
  deletionPolicy: DeletionPolicy;
  /** Changes of the template for some of the clusters. For each cluster, the first matching override applies. */
  overrides?: Override[];
  /** Values that differ by cluster. Templates see them in `configuration`; they take precedence over the template's own `configuration`. */
  parameters?: SetParameter[];
  /** Pin holds all clusters at an earlier version of the set, whatever its sources and its template have. Clusters reach that version by a rollout. Empty: the set follows its sources and its template. */
  pin?: SetPin;
  /** Rollout of changes over the clusters: of the sources, the template, the parameters and the overrides. */
  rollout: RolloutPolicy;
  /** Template of the ServiceDeployments. */
  template: ServiceTemplate;
}

/** Observed state of the set: counts and a few examples, so its size does not grow with the fleet. Each member is at `servicesets/NAME/members`. */
export interface ServiceSetStatus {
  /** User who last wrote a field that determines what runs where, such as the template or the selector. */
  changedBy?: string;
  /** Numbers of clusters. */
  clusters: SetCounts;
  /** `Ready` is True when every selected cluster has its service, and each is healthy at the version assigned to it. `Stalled` is set when a person must act. `Braked` is set while clusters that the selector lost wait for an administrator. */
  conditions?: Condition[];
  /** The first clusters by name whose service cannot be created; at most five. */
  errors?: SetError[];
  /** The last version that all clusters completed. */
  lastGood?: number;
  /** Generation of the resource that the conditions describe. */
  observedGeneration?: number;
  /** Time of the override. The override is valid for a day; then the hub removes the annotation. */
  overriddenAt?: Time;
  /** User who set the current annotation `farwater.dev/override-freeze`. */
  overriddenBy?: string;
  /** Time of the proposal. Another person can approve the proposal for a day. */
  overrideProposedAt?: Time;
  /** User who set the current annotation `farwater.dev/propose-override`. */
  overrideProposedBy?: string;
  /** User who set the pin. */
  pinnedBy?: string;
  /** Progress of the last change. Empty: there was none. */
  rollout?: RolloutStatus;
}

/** Template of a ServiceDeployment. */
export interface ServiceTemplate {
  /** Metadata of each ServiceDeployment. */
  metadata?: TemplateMetadata;
  /** The spec of each ServiceDeployment. */
  spec: ServiceTemplateSpec;
}

/** The spec of each ServiceDeployment. */
export interface ServiceTemplateSpec {
  /** Options for applying the objects. */
  apply?: ApplyOptions;
  /** Chart of a HelmRepository. Required for that kind of source. */
  chart?: ChartReference;
  /** Values that templates see in `configuration`. They take precedence over ConfigMaps and Secrets that are named as a whole. A selected key of the same name is refused. Not for secrets: anyone who may read the service can read them. At most 32 KiB as JSON, and 512 names. */
  configuration?: Record<string, string>;
  /** Services and sets of this namespace that must be healthy, at the version assigned to them, before a newer bundle of this service is delivered. */
  dependsOn?: DependencyReference[];
  /** Health rules of this service. They take precedence over the hub's HealthRules and the built-in rules. For each kind, the first rule applies. */
  health?: HealthRuleSpec[];
  /** Values of other objects that templates see. Among objects named without keys, the later takes precedence; selected keys take precedence over both. Selecting a name twice is an error. */
  parameters?: Parameter[];
  /** Patches for all rendered objects, in this order. */
  patches?: Patch[];
  /** Folder of the source, relative to its root. Empty or `.`: the root. */
  path: string;
  /** Whether to delete objects from the cluster that are no longer in the source. */
  prune: boolean;
  /** Renderers that produce the objects from the files. Empty: one of type `Auto` for the whole folder. */
  renderers?: Renderer[];
  /** Secrets in the service's own namespace of the hub that are copied to `targetNamespace` under the same names. They travel sealed to the cluster's agent and are in no bundle. */
  secrets?: LocalReference[];
  /** Source of the files. */
  sourceRef: SourceReference;
  /** Further sources of this namespace, such as values or patches from another repository. Each adds a folder to the service's files. */
  sources?: MountedSource[];
  /** Namespace in the cluster for objects that name none. Created if missing. */
  targetNamespace: string;
  /** Tests that run in the cluster, in `targetNamespace`, each time a version has become healthy. A failed test fails the version. */
  tests?: ServiceTest[];
}

/** A test: a container that must exit with 0. Its fields are those of a Kubernetes container. For more, add a Job annotated `farwater.dev/hook: Test` to the source. */
export interface ServiceTest {
  /** Arguments of the command. Empty: the image's. */
  args?: string[];
  /** Command of the container. Empty: the image's entrypoint. */
  command?: string[];
  /** Environment variables of the container. */
  env?: Variable[];
  /** Image of the container. */
  image: string;
  /** Name of the test. */
  name: string;
  /** Number of further attempts after a failure. */
  retries?: number;
  /** Service account in the target namespace. Empty: `default`. */
  serviceAccountName?: string;
  /** Maximum time for all attempts together, as a Go duration between 1s and 24h. */
  timeout: string;
}

/** Numbers of clusters of a set. */
export interface SetCounts {
  /** Number of selected clusters whose service cannot be created, or not as the set says. */
  failed: number;
  /** Number of clusters that are no longer selected and still have their service. */
  leaving: number;
  /** Number of selected clusters. */
  matched: number;
  /** Number of selected clusters that are healthy at the version assigned to them. */
  ready: number;
}

/** A cluster whose service cannot be created. */
export interface SetError {
  /** The cluster, as `namespace/name`. */
  cluster: string;
  /** Why the service cannot be created. */
  message: string;
}

/** A value for each cluster: constant, from a label, or computed. Exactly one of `value`, `fromLabel` and `expression` is set. */
export interface SetParameter {
  /** Value if the cluster has no such label, or the expression has no value. Absent: such a cluster is an error and keeps the service that it has. */
  default?: string;
  /** CEL expression over `self`, the Cluster with `name`, `namespace`, `labels`, `annotations`, `metadata` and, once its agent has joined, `version`. Its value is a string. */
  expression?: string;
  /** Key of a label of the Cluster whose value is used. */
  fromLabel?: string;
  /** Name in `configuration`. */
  name: string;
  /** Constant value. */
  value?: string;
}

/** A version of a set to which it is pinned. */
export interface SetPin {
  /** Why the set is pinned. Empty: no reason. */
  reason?: string;
  /** Number of the version in `servicesets/NAME/versions`: the number of its rollout. */
  version: number;
}

/** Kinds of sources. Only the hub uses `ManagedNamespace`. */
export type SourceKind = "GitRepository" | "HelmRepository" | "OCIRepository" | "ManagedNamespace";

/** Reference to a source in the same namespace. */
export interface SourceReference {
  /** Kind of the source. */
  kind: SourceKind;
  /** Name of the source. */
  name: string;
}

/** Observed state of a source. */
export interface SourceStatus {
  /** `Ready`, `Reconciling` and `Stalled`, as kstatus reads them; `SourceVerified` if `spec.verify` is set. */
  conditions?: Condition[];
  /** Time at which `revision` last changed. */
  lastFetchTime?: Time;
  /** Value of the last handled request annotation. */
  lastHandledReconcileAt?: string;
  /** Generation of the resource that the conditions describe. */
  observedGeneration?: number;
  /** Revision that is served, in the format of Flux: `<tag or version>@sha256:<digest>` for an artifact, `sha256:<digest>` for an index. */
  revision?: string;
  /** Time since which the remote has failed to answer. Empty while it answers. */
  staleSince?: Time;
}

/** Members of one step. */
export interface Stage {
  counts: ProgressCounts;
  /** Name of the step: `canary`, a step of the policy, or `rest`. */
  step: string;
}

export type Strategy = "Progressive" | "AllAtOnce" | "OnHold";

/** Reason and end of a suspension. */
export interface Suspension {
  /** Why the service is suspended. Empty: no reason. */
  reason?: string;
  /** Time at which the service resumes by itself, as if `suspend` were not set. Empty: it stays suspended. */
  until?: Time;
}

/** Result of the agent's work on one object. */
export type SyncState = "Synced" | "Refused" | "Waiting" | "PruneHeld" | "Drifted" | "Unknown";

/** Metadata of each ServiceDeployment. */
export interface TemplateMetadata {
  /** Labels, in addition to `farwater.dev/set` with the set's name. */
  labels?: Record<string, string>;
}

/** Result of a request to undo a deletion. */
export interface Undone {
  /** Number of objects that could not be restored. */
  failed?: number;
  /** The first ten objects that could not be restored, with the reasons. */
  failures?: Unrestored[];
  /** The request that this result answers. */
  request: string;
  /** Number of restored objects. */
  restored: number;
}

/** An object that is not healthy. */
export interface UnhealthyObject {
  /** Why it is not healthy, cut at 256 bytes. */
  message: string;
  /** The object. */
  object: ObjectRef;
}

/** An object that could not be restored. */
export interface Unrestored {
  /** The reason, cut at 256 bytes. It never holds values of Secrets. */
  message: string;
  /** The object. */
  object: ObjectRef;
}

/** An environment variable of a container. */
export interface Variable {
  /** Name of the variable. */
  name: string;
  /** Value of the variable. */
  value?: string;
}

/** Signature that an artifact needs. */
export interface Verification {
  /** Signature format. */
  provider: VerificationProvider;
  /** Name of a Secret in the same namespace with public keys: each of its keys that ends with `.pub`, in PEM. One of them must have signed. */
  secretRef: LocalReference;
}

export type VerificationProvider = "cosign";

/** Numbers of members that want or have a version. */
export interface VersionCounts {
  /** Author of the commit, as the commit states it. */
  author?: string;
  /** Revision, as in the status of a service. Empty: none yet. */
  revision: string;
  /** Steps with members of this version. */
  stages: VersionStage[];
}

export interface VersionStage {
  /** Members that want the version, by progress. Over all versions they add up to the step's members. */
  counts: ProgressCounts;
  /** Number of members that have the version and want another. */
  kept?: number;
  step: string;
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

/** A label selector is a label query over a set of resources. The result of matchLabels and matchExpressions are ANDed. An empty label selector matches all objects. A null label selector matches no objects. */
export interface LabelSelector {
  /** matchExpressions is a list of label selector requirements. The requirements are ANDed. */
  matchExpressions?: LabelSelectorRequirement[];
  /** matchLabels is a map of {key,value} pairs. A single {key,value} in the matchLabels map is equivalent to an element of matchExpressions, whose key field is "key", the operator is "In", and the values array contains only "value". The requirements are ANDed. */
  matchLabels?: Record<string, string>;
}

/** A label selector requirement is a selector that contains values, a key, and an operator that relates the key and values. */
export interface LabelSelectorRequirement {
  /** key is the label key that the selector applies to. */
  key: string;
  /** operator represents a key's relationship to a set of values. Valid operators are In, NotIn, Exists and DoesNotExist. */
  operator: string;
  /** values is an array of string values. If the operator is In or NotIn, the values array must be non-empty. If the operator is Exists or DoesNotExist, the values array must be empty. This array is replaced during a strategic merge patch. */
  values?: string[];
}

/** Time is a wrapper around time.Time which supports correct marshaling to YAML and JSON.  Wrappers are provided for many of the factory methods that the time package offers. */
export type Time = string;
