// Made by cargo xtask codegen from crates/api; don't edit.

export type AdoptPolicy = "Always" | "IfNoDifference" | "Never";

/** Limits that an agent was installed with. No hub can widen them. */
export interface AgentLimits {
  /** Patterns of the service accounts that services may act as: NAMESPACE/NAME. */
  accounts: string[];
  /** Objects that are deleted for services per minute. */
  deletionsPerMinute: number;
  /** Patterns of the kinds that services may not change: RESOURCE[.GROUP]. */
  deniedKinds: string[];
  /** Patterns of the namespaces that services may touch. kube-system, kube-public and kube-node-lease are matched by their full names only. */
  namespaces: string[];
}

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

/** The clusters that a change reaches before all others. */
export interface Canary {
  /** Which clusters may be canaries. Absent: those of the first step. */
  clusterSelector?: LabelSelector;
  /** How many of them: the first by name that are healthy. Absent: all that the selector selects, and one without a selector. 0: there is no canary. */
  count?: number;
}

/** A chart of a HelmRepository. */
export interface ChartReference {
  /** As the index names it; below a registry's path also with slashes. */
  name: string;
  /** A version, or a range as Helm writes them: `1.2.3`, `~1.2`, `>=1 <2`. The newest that is no pre-release if absent. */
  version: string;
}

/** What of a Cluster may be handed over. */
export type ClusterPart = "Labels" | "Annotations" | "Metadata" | "Version";

export interface ClusterReference {
  name: string;
  /** The service's own namespace if absent, then the administrators'. */
  namespace?: string;
}

/** A Kubernetes cluster that joins by a one-time token and is reached only by its own agent's requests. */
export interface ClusterSpec {
  /** What services on the cluster may be handed of it beside its labels and annotations: account and network ids, domains. Values of any form; at most 32 KiB as JSON, 512 names and 16 levels. Not for secrets: whoever may read the Cluster reads them. */
  metadata?: Record<string, unknown>;
  /** How often the agent asks for its desired state, as a Go duration; between 1s and 10m. */
  pollInterval: string;
  /** Holds every change to the cluster; what runs there goes on running. */
  suspend: boolean;
}

export interface ClusterStatus {
  /** `age1…`: what files are encrypted to with SOPS that this cluster alone shall open. It changes with the agent's keys; those of before go on opening what is encrypted to them. */
  ageRecipient?: string;
  /** The image that the agent's Deployment names; absent where the agent was started by hand. */
  agentImage?: string;
  /** Limits that were set when the agent was installed, and that the hub can't change; absent for older agents. */
  agentLimits?: AgentLimits;
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
  /** The plan that was approved, where it held more than this deletion took. */
  approvedPlan?: string;
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

export type DependencyClusters = "Same" | "All";

export type DependencyKind = "ServiceSet" | "ServiceDeployment";

/** What has to be healthy first. */
export interface DependencyReference {
  /** Of a ServiceSet alone: on which of its clusters. */
  clusters?: DependencyClusters;
  kind: DependencyKind;
  name: string;
  /** In CEL, over `self`, the ServiceDeployment or ServiceSet that is waited for: true when it is ready. In place of its health at what is assigned to it. */
  readyExpr?: string;
}

export type DriftMode = "Correct" | "Report" | "Ignore";

/** What to follow in a repository. Exactly one field may be set. */
export interface GitReference {
  /** A branch's short name. */
  branch?: string;
  /** A commit's full id. */
  commit?: string;
  /** A reference by its full name, for example `refs/pull/420/head`. */
  name?: string;
  /** What the Pipeline of this name, in the same namespace, has promoted to the stage whose repository this is. Nothing is served before, but for what was. */
  pipeline?: string;
  /** A semver range over the tags' names, for example `>=1.2.0 <2.0.0`. */
  semver?: string;
  /** A tag's short name. */
  tag?: string;
}

/** A Git repository that is polled and read without a checkout. */
export interface GitRepositorySpec {
  /** How often the remote is asked, as a Go duration; between 10s and 24h. */
  interval: string;
  /** Replaces pointers to large files of Git LFS by the files. */
  lfs: boolean;
  /** A Secret in the same namespace with the `address` of an HTTP proxy, and optionally `username`, `password` and `ca.crt`. */
  proxySecretRef?: LocalReference;
  /** Fetches the submodules that the revision names, theirs too, and has them at their paths. */
  recurseSubmodules: boolean;
  /** The reference to follow; the remote's default branch if absent. One of its fields may be set. */
  ref?: GitReference;
  /** A Secret in the same namespace. For http and https: `username` and `password`, `bearerToken`, or `githubAppID`, `githubAppInstallationID` and `githubAppPrivateKey`; and optionally `ca.crt`. For ssh: `identity` and `known_hosts`, and optionally `password` for the key. Without it a Secret of the namespace that serves the URL's prefix is taken. */
  secretRef?: LocalReference;
  /** Stops polling; what was fetched goes on being served. */
  suspend: boolean;
  /** Longest time that one fetch may take, as a Go duration; between 1s and 30m. */
  timeout: string;
  /** Address of the repository: http, https, `ssh://`, or ssh's short form `git@host:path`. Credentials belong in `secretRef`, never here. */
  url: string;
  /** Serves only revisions that are signed. */
  verify?: GitVerification;
}

export interface GitRepositoryStatus {
  /** `Ready`, `Reconciling` and `Stalled`, readable by kstatus; `SourceVerified` where `spec.verify` is set. */
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

/** Whose signature a revision needs. */
export interface GitVerification {
  /** What must be signed: the commit (`HEAD`), the annotated tag that is followed (`Tag`), or both (`TagAndHEAD`). */
  mode: GitVerificationMode;
  /** A Secret in the same namespace whose values are public keys: OpenPGP's, or ssh's. */
  secretRef: LocalReference;
}

export type GitVerificationMode = "HEAD" | "Tag" | "TagAndHEAD";

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
  /** Plans that held all of it and more: what was approved or proposed of one of these counts for what is left. The newest last. */
  earlier?: string[];
  /** The first ten objects that would go. */
  objects: ObjectRef[];
  /** Why it waits, in one sentence. */
  reason: string;
  /** It waits for nothing but objects of the source that are not applied yet, and for no approval. */
  untilApplied?: boolean;
}

/** As for `helm template`. The chart's own values come first, then those of the files in their order, then the inline ones. */
export interface HelmOptions {
  /** Whether values files that are not there are passed over. */
  ignoreMissingValuesFiles?: boolean;
  /** Lets the templates' function `lookup` read the cluster, as the account that the service is applied as. Without it every lookup finds nothing. What was rendered with it is not cached. */
  lookup?: boolean;
  /** What the rendered objects and hooks go through, in this order. */
  postRenderers?: PostRenderer[];
  /** The service's name if absent. */
  releaseName?: string;
  /** Leaves out the definitions of the charts' `crds` folders. They are applied, and upgraded, without it. */
  skipCrds?: boolean;
  /** Takes values that the chart's schema refuses. */
  skipSchemaValidation?: boolean;
  /** Leaves out hooks that are tests. */
  skipTests?: boolean;
  /** Only the chart knows their shape. No place for secrets: they are readable in the hub and in the cluster. */
  values?: Record<string, unknown>;
  /** Relative to the chart's folder; one that begins with `/` counts from the root of the source. */
  valuesFiles?: string[];
}

/** A repository of Helm charts: an index over http or https, or a registry. */
export interface HelmRepositorySpec {
  /** A Secret in the same namespace with `ca.crt`, `tls.crt` and `tls.key`: whom to trust, and who we are. */
  certSecretRef?: LocalReference;
  /** Speaks plain HTTP to a registry. */
  insecure: boolean;
  /** How often the remote is asked, as a Go duration; between 10s and 24h. */
  interval: string;
  /** Whether the credentials are also sent to other hosts that the index names for its charts. */
  passCredentials: boolean;
  /** A Secret in the same namespace with `username` and `password`; for a registry also `.dockerconfigjson`. */
  secretRef?: LocalReference;
  /** Stops polling; what was fetched goes on being served. */
  suspend: boolean;
  /** Longest time that the index, or one chart, may take, as a Go duration; between 1s and 30m. */
  timeout: string;
  /** `oci` for a registry; `url` says so too. */
  type: HelmRepositoryType;
  /** Address of the folder that holds `index.yaml`, or `oci://` and the path below which a registry has the charts. Credentials belong in `secretRef`, never here. */
  url: string;
}

export type HelmRepositoryType = "default" | "oci";

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

/** An image's name without a tag, and what takes its place. */
export interface Image {
  /** Comes before `newTag`. */
  digest?: string;
  name: string;
  newName?: string;
  newTag?: string;
}

export type ImmutablePolicy = "Report" | "Recreate";

export interface KindCount {
  count: number;
  /** `Kind.group`, as messages name kinds. */
  kind: string;
}

/** What comes on top of the kustomization's own fields of these names. */
export interface KustomizeOptions {
  /** After the kustomization's own, relative to its folder. */
  components?: string[];
  /** Each takes the place of the kustomization's entry for the same name. */
  images?: Image[];
  /** Which files a kustomization may read besides other kustomizations. */
  loadRestrictor?: LoadRestrictor;
  namePrefix?: string;
  nameSuffix?: string;
}

/** Either a folder, or patches and images. */
export interface KustomizePostRenderer {
  images?: Image[];
  patches?: Patch[];
  /** Folder of a kustomization that names `helm-output.yaml` among its resources; relative to the chart's folder, or to the root of the source if it begins with `/`. */
  path?: string;
}

export type LayerOperation = "extract" | "copy";

export interface LayerSelector {
  /** The first layer of this media type; the first of all if absent. */
  mediaType?: string;
  operation: LayerOperation;
}

/** Named as the values of `kustomize build --load-restrictor`. */
export type LoadRestrictor = "LoadRestrictionsRootOnly" | "LoadRestrictionsNone";

/** The name of an object in the same namespace. */
export interface LocalReference {
  name: string;
}

/** One cluster of a set, as `servicesets/NAME/members` lists it. */
export interface Member {
  /** `namespace/name`. */
  cluster: string;
  /** Why its service can't be made. */
  message?: string;
  /** The same as `standing`, as one of a few; absent: it is of no rollout. */
  progress?: Progress;
  /** The version that is assigned to it; empty: none was yet. */
  revision?: string;
  /** Of the ServiceDeployment, in the set's namespace; empty: there is none. */
  service?: string;
  /** Since when, as far as it is known. */
  since?: Time;
  /** Where it is on its way, in words. */
  standing?: string;
  state: MemberState;
  /** Of the rollout. */
  step?: string;
  /** The version that it is to get, where that is another one: what its sources have, or had in the version that the set is pinned to. */
  wantedRevision?: string;
}

export type MemberState = "Progressing" | "Ready" | "Failed" | "Leaving";

/** One more source of a service. */
export interface MountedSource {
  /** Of a HelmRepository: which of its charts. */
  chart?: ChartReference;
  /** Where that folder lies in the service's files. Nothing else may lie there. */
  mountPath: string;
  /** Folder of that source; empty or `.` is its root. */
  path?: string;
  sourceRef: SourceReference;
}

/** What to follow in a repository of a registry. Exactly one field may be set. */
export interface OCIReference {
  /** A manifest's digest: `sha256:` and 64 hex digits. */
  digest?: string;
  /** A semver range over the tags, for example `>=1.2.0 <2.0.0`. */
  semver?: string;
  /** A tag. */
  tag?: string;
}

/** An artifact of a registry: what `flux push artifact` or `helm push` has put there, or any image with an archive as a layer. */
export interface OCIRepositorySpec {
  /** A Secret in the same namespace with `ca.crt`, `tls.crt` and `tls.key`: whom to trust, and who we are. */
  certSecretRef?: LocalReference;
  /** Speaks plain HTTP to the registry. */
  insecure: boolean;
  /** How often the registry is asked, as a Go duration; between 10s and 24h. */
  interval: string;
  /** Which layer is read, and how; the first one, as an archive, if absent. */
  layerSelector?: LayerSelector;
  /** What to follow; the tag `latest` if absent. One of its fields may be set. */
  ref?: OCIReference;
  /** A Secret in the same namespace with `.dockerconfigjson`, or with `username` and `password`. */
  secretRef?: LocalReference;
  /** Stops polling; what was fetched goes on being served. */
  suspend: boolean;
  /** Longest time that one fetch may take, as a Go duration; between 1s and 30m. */
  timeout: string;
  /** `oci://HOST[:PORT]/PATH`, without a tag. */
  url: string;
  /** What must vouch for an artifact before it is served. */
  verify?: Verification;
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

export type OnFailure = "Halt" | "Rollback";

/** A change of the template for the clusters that it selects. */
export interface Override {
  clusterSelector: LabelSelector;
  /** Of `template.spec`, as a JSON merge patch: a field that is null is taken away, and a list is replaced. */
  patch: Record<string, unknown>;
}

/** Values that a service is handed. */
export interface Parameter {
  from: ParameterSource;
  /** The keys that are handed over. None: all that there are, so that a change of any is one of the service's parameters. */
  keys?: string[];
  /** Put before the names of a ConfigMap's or Secret's keys. */
  prefix?: string;
}

/** Where values come from: one of them. Objects are of the service's own namespace. */
export interface ParameterSource {
  /** Beside `secret`: the backend that has it, by its name in the hub's configuration. Without one it is a Secret of the hub. */
  backend?: string;
  /** A part of the service's own Cluster, seen in `cluster`. */
  cluster?: ClusterPart;
  /** A Secret that is in the cluster itself, in the service's target namespace, read there with the rights that the service is applied with. Its keys, which are picked, are seen in `configuration`; the hub knows no value of it. */
  clusterSecret?: string;
  /** A ConfigMap; its keys are seen in `configuration`. */
  configMap?: string;
  /** A ServiceContext; its values are seen as `contexts.NAME`. */
  context?: string;
  /** A Secret; its keys are seen in `configuration`. */
  secret?: string;
}

/** A change of rendered objects, as in a kustomization. */
export interface Patch {
  /** YAML or JSON: a strategic merge patch, or the operations of a JSON patch (RFC 6902), which needs a target. */
  patch: string;
  /** Which objects; the one that a strategic merge patch itself names if absent. */
  target?: PatchTarget;
}

/** What is left out matches all. Names, kinds and groups are regular expressions over the whole text. */
export interface PatchTarget {
  annotationSelector?: string;
  group?: string;
  kind?: string;
  /** As in a list request: `app=web,tier!=cache`. */
  labelSelector?: string;
  name?: string;
  namespace?: string;
  version?: string;
}

export interface Pin {
  /** Digest of a bundle that `servicedeployments/NAME/history` lists. */
  bundle: string;
  reason?: string;
}

export interface PostRenderer {
  kustomize: KustomizePostRenderer;
}

/** Where a member of a rollout is on its way. */
export type Progress = "Done" | "Failed" | "Progressing" | "Soaking" | "Deferred" | "Still" | "Waiting";

/** Each member counts once. */
export interface ProgressCounts {
  deferred: number;
  done: number;
  failed: number;
  progressing: number;
  soaking: number;
  still: number;
  waiting: number;
}

/** What isn't waited for any more. A rollout that is `OnHold` begins by any of them. */
export type Promote = "Soak" | "Step" | "Halt";

/** Selects the manifests of a folder: files named `*.yaml`, `*.yml` and `*.json` that `include`, `exclude` and the folder's `.sourceignore` files don't leave out. Patterns are written as in `.gitignore` and count from the renderer's folder. */
export interface RawOptions {
  /** Whether a folder without manifests is valid and means no objects. If false, such a folder is an error. */
  allowEmpty?: boolean;
  /** Files to leave out: those that match one of these patterns, or whose folder does. */
  exclude?: string[];
  /** Files that match one of these patterns, or whose folder does; empty: all. */
  include?: string[];
  /** Whether the folders below are read too; `true` by default. */
  recurse?: boolean;
}

/** What makes objects of one folder. */
export interface Renderer {
  /** For a chart. */
  helm?: HelmOptions;
  /** For a kustomization. */
  kustomize?: KustomizeOptions;
  /** Folder, relative to `spec.path` and within it; empty or `.` is that folder itself. Raw manifests leave out the folders of the other renderers. */
  path?: string;
  /** Of type `Plugin`: its name in the agent's configuration. */
  plugin?: string;
  /** For manifests as they are. */
  raw?: RawOptions;
  type?: RendererType;
}

export type RendererType = "Helm" | "Kustomize" | "Auto" | "Raw" | "Plugin";

/** It counts once, and for the rollout that it names alone. */
export interface RolloutOrder {
  /** Takes back what has changed, and changes nothing else. */
  abort?: boolean;
  /** `status.rollout.number` */
  number: number;
  promote?: Promote;
  reason?: string;
  /** Any new value makes it another order. */
  requestedAt?: string;
  /** Clusters, as `NAMESPACE/NAME`, that nobody waits for: what they have stays, and what they lack is not given. */
  skip?: string[];
}

/** How a rollout stands. */
export type RolloutPhase = "Progressing" | "Paused" | "Halted" | "RollingBack" | "Aborted" | "Complete" | "OnHold";

/** How a change spreads: to a canary first, then step by step, some clusters at a time, and no further where it fails.  A change is another content of the source, another template, or another value of a parameter. */
export interface RolloutPolicy {
  canary: Canary;
  /** A cluster that says for so long that its service has failed has failed, as a Go duration; between 1s and 1h. */
  failAfter: string;
  /** So many failed clusters stop the rest: a number, or a percentage. More than `maxUnavailable` are never borne, and of canaries none is. */
  haltAfter: unknown;
  maxPartitions: number;
  /** How many clusters may be unhealthy or on their way at one time: a number, or a percentage of those that are heard. It is rounded down, and is one at least. */
  maxUnavailable: unknown;
  onFailure: OnFailure;
  /** What a person has said of one rollout; the commands write it. */
  order?: RolloutOrder;
  /** Key of a label, such as `topology.kubernetes.io/region`: of its values at most `maxPartitions` have clusters on their way. */
  partitionBy?: string;
  /** Why it is paused, for whoever looks. */
  pauseReason?: string;
  /** Nothing is begun and nothing taken back. */
  paused: boolean;
  /** A cluster that is not healthy by then has failed, as a Go duration; between 30s and 24h. It doesn't count while the service waits for others that it depends on. */
  progressDeadline: string;
  /** How long a cluster must have been healthy to count, as a Go duration; between 1s and 24h. */
  soak: string;
  /** Groups of clusters, one after the other. A cluster is of the first that selects it; those that none selects come last. */
  steps?: RolloutStep[];
  strategy: Strategy;
}

/** How far the last change has come. */
export interface RolloutStatus {
  /** Silent, and passed over until they are heard. */
  deferred: number;
  failed: number;
  /** The first cluster that failed, where that stops the others. */
  haltedBy?: string;
  /** Counts up with each change of what the set asks for. */
  number: number;
  phase: RolloutPhase;
  /** On their way. */
  progressing: number;
  /** Of these: healthy with it, but not yet for the length of the soak. */
  soaking?: number;
  /** The step that is open: `canary`, one of the policy's, or `rest`; empty: all are. */
  step?: string;
  /** Clusters that are done with what they want. */
  updated: number;
  waiting: number;
}

export interface RolloutStep {
  clusterSelector: LabelSelector;
  /** Of this step's clusters, beside the rollout's own. */
  maxUnavailable?: unknown;
  name: string;
  /** In place of the rollout's own. */
  soak?: string;
}

/** How far the rollout of a set has come, counted over all of its members; answered by `servicesets/NAME/rollout`. Its size grows with steps and versions and not with the fleet. */
export interface RolloutSurvey {
  /** Answers of some seconds may be one count. */
  countedAt?: Time;
  maxUnavailable: number;
  /** Of those that are not done the worst, and then by name. */
  open: Member[];
  /** Versions of the last of `versions`, where it stands for more than one. */
  others?: number;
  /** In the order in which a change reaches them. */
  stages: Stage[];
  /** Clusters that are unavailable now, and how many may be. */
  unavailable: number;
  /** The newest first, as far as that is known. */
  versions: VersionCounts[];
  /** The first cluster that the next step waits for. */
  waitsFor?: Member;
}

/** A folder of a source, kept applied on one cluster. */
export interface ServiceDeploymentSpec {
  /** How the objects are applied. */
  apply?: ApplyOptions;
  /** Of a HelmRepository: which of its charts. */
  chart?: ChartReference;
  /** The cluster; immutable. */
  clusterRef: ClusterReference;
  /** Texts that the service's templates see in `configuration`. They take precedence over those of any ConfigMap or Secret that is named as a whole; one that is picked by its key is refused. Not for secrets: whoever may read the service reads them. At most 32 KiB as JSON, and 512 names. */
  configuration?: Record<string, string>;
  /** What happens to the objects when this resource is deleted. */
  deletionPolicy: DeletionPolicy;
  /** Services and sets of this namespace: a newer bundle of this service is delivered once they are healthy at what is assigned to them. */
  dependsOn?: DependencyReference[];
  /** How objects of some kinds are judged, before the hub's HealthRules and the built-in rules. The first for a kind counts. */
  health?: HealthRuleSpec[];
  /** Values of other objects that the service's templates see. Of objects that are named without keys the later one counts, picked keys take precedence over them, and a name that is picked twice is an error. */
  parameters?: Parameter[];
  /** Changes of everything that is rendered, in their order. */
  patches?: Patch[];
  /** Folder of the source, relative to its root; empty or `.` is the root. */
  path: string;
  /** Keeps the service at a bundle of its history, whatever its source has. */
  pin?: Pin;
  /** Whether objects that leave the source are deleted from the cluster. */
  prune: boolean;
  /** What makes objects of the files; empty: one of type `Auto` for the whole folder. */
  renderers?: Renderer[];
  /** Secrets of the service's own namespace in the hub that the cluster gets too, in `targetNamespace` and under the same names. They travel sealed to the cluster's agent and are in no bundle. */
  secrets?: LocalReference[];
  /** Where the files come from. */
  sourceRef: SourceReference;
  /** More sources of this namespace, each with a folder of it among the service's files: values or patches from another repository, for example. */
  sources?: MountedSource[];
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
  /** Digest of the last applied entry: version, spec, parameters, and all else that changes the agent's work. */
  appliedEntry?: string;
  /** The revision whose bundle the agent last applied without an error. */
  appliedRevision?: string;
  /** When. It counts for a day, and is taken off then. */
  approvedAt?: Time;
  /** Who set the annotation `farwater.dev/approve-prune` that stands. */
  approvedBy?: string;
  /** The source's revision whose bundle is assigned to the cluster. A later commit that touches nothing of what the service is made of is not named here. */
  assignedRevision?: string;
  /** The digest of the bundle that is assigned. */
  bundleDigest?: string;
  /** Who said last what is to run: the source, the path or the pin. */
  changedBy?: string;
  /** `Ready`, `Reconciling`, `Stalled`, `PruneHeld` while a prune waits for approval, `Drifted` while objects differ from the source that are not corrected, `SecretsStale` while a backend of secrets can't be read, `Pinned`, and `Frozen` while a ChangeWindow holds something newer. */
  conditions?: Condition[];
  /** Texts of `configuration` that a pipeline has promoted with it: they take precedence over those of the spec. */
  configuration?: Record<string, string>;
  /** A prune that waits for `farwater.dev/approve-prune: <digest>`. */
  heldPrune?: HeldPrune;
  /** Newest version of the source, if a pin, a suspension, a dependency, the rollout of its set or a ChangeWindow holds it back. */
  heldRevision?: string;
  /** When. */
  hookRetriedAt?: Time;
  /** Who set the annotation `farwater.dev/retry-hook` that stands. */
  hookRetriedBy?: string;
  /** Of the version that is assigned: hooks and tests that the agent has begun. `farwater hooks` tells of each. */
  hooks?: HookCounts;
  /** When the agent reported for the first time that it applied what `appliedEntry` names. */
  lastAppliedTime?: Time;
  /** What the agent deleted last; `farwater undo` brings it back. */
  lastDeletion?: Deletion;
  lastHandledReconcileAt?: string;
  objects?: ObjectCounts;
  observedGeneration?: number;
  /** When. It counts for a day, and is taken off then. */
  overriddenAt?: Time;
  /** Who set the annotation `farwater.dev/override-freeze` that stands. */
  overriddenBy?: string;
  /** When. Another person can approve it for a day. */
  overrideProposedAt?: Time;
  /** Who set the annotation `farwater.dev/propose-override` that stands. */
  overrideProposedBy?: string;
  /** Who set the pin that stands. */
  pinnedBy?: string;
  /** When. Another person can approve it for a day. */
  pruneProposedAt?: Time;
  /** Who set the annotation `farwater.dev/propose-prune` that stands. */
  pruneProposedBy?: string;
  /** Who set the suspension that stands. */
  suspendedBy?: string;
  /** The first objects that are failed, in progress or refused; never more than five. */
  unhealthy?: UnhealthyObject[];
}

/** A ServiceDeployment for each cluster that a selector finds, made of one template.  What is made belongs to the set: it is read-only but for `suspend`, `suspension` and `pin`. */
export interface ServiceSetSpec {
  /** Which clusters, by label; an empty selector is every cluster that this namespace may deploy to. */
  clusterSelector: LabelSelector;
  /** What happens to the objects on a cluster that the selector finds no more, or when the set is deleted. */
  deletionPolicy: DeletionPolicy;
  /** Changes of the template for some of the clusters. The first that selects a cluster counts. */
  overrides?: Override[];
  /** Texts that differ by cluster. Templates see them in `configuration`; they take precedence over the template's own `configuration`. */
  parameters?: SetParameter[];
  /** Keeps all clusters at an earlier version of the set, whatever its sources and its template have since. They go there as by any other change. */
  pin?: SetPin;
  /** How a change spreads over the clusters: of what the sources have, or of the template, the parameters and the overrides. */
  rollout: RolloutPolicy;
  template: ServiceTemplate;
}

/** Counts and a few examples: its size does not grow with the fleet. Each member is at `servicesets/NAME/members`. */
export interface ServiceSetStatus {
  /** Who wrote the template, the selector or what else says what runs where. */
  changedBy?: string;
  clusters: SetCounts;
  /** `Ready`: every cluster that is selected has its service, and each is healthy at what is assigned to it. `Stalled`, where somebody has to change something. `Braked`, while clusters that were lost to the selector wait for an administrator. */
  conditions?: Condition[];
  /** The first clusters, by name, whose service can't be made; never more than five. */
  errors?: SetError[];
  /** The last version that all clusters were done with. */
  lastGood?: number;
  observedGeneration?: number;
  /** When. It counts for a day, and is taken off then. */
  overriddenAt?: Time;
  /** Who set the annotation `farwater.dev/override-freeze` that stands. */
  overriddenBy?: string;
  /** When. Another person can approve it for a day. */
  overrideProposedAt?: Time;
  /** Who set the annotation `farwater.dev/propose-override` that stands. */
  overrideProposedBy?: string;
  /** Who has set the pin. */
  pinnedBy?: string;
  rollout?: RolloutStatus;
}

export interface ServiceTemplate {
  metadata?: TemplateMetadata;
  spec: ServiceTemplateSpec;
}

/** The spec of each ServiceDeployment. */
export interface ServiceTemplateSpec {
  /** How the objects are applied. */
  apply?: ApplyOptions;
  /** Of a HelmRepository: which of its charts. */
  chart?: ChartReference;
  /** Texts that the service's templates see in `configuration`. They take precedence over those of any ConfigMap or Secret that is named as a whole; one that is picked by its key is refused. Not for secrets: whoever may read the service reads them. At most 32 KiB as JSON, and 512 names. */
  configuration?: Record<string, string>;
  /** Services and sets of this namespace: a newer bundle of this service is delivered once they are healthy at what is assigned to them. */
  dependsOn?: DependencyReference[];
  /** How objects of some kinds are judged, before the hub's HealthRules and the built-in rules. The first for a kind counts. */
  health?: HealthRuleSpec[];
  /** Values of other objects that the service's templates see. Of objects that are named without keys the later one counts, picked keys take precedence over them, and a name that is picked twice is an error. */
  parameters?: Parameter[];
  /** Changes of everything that is rendered, in their order. */
  patches?: Patch[];
  /** Folder of the source, relative to its root; empty or `.` is the root. */
  path: string;
  /** Whether objects that leave the source are deleted from the cluster. */
  prune: boolean;
  /** What makes objects of the files; empty: one of type `Auto` for the whole folder. */
  renderers?: Renderer[];
  /** Secrets of the service's own namespace in the hub that the cluster gets too, in `targetNamespace` and under the same names. They travel sealed to the cluster's agent and are in no bundle. */
  secrets?: LocalReference[];
  /** Where the files come from. */
  sourceRef: SourceReference;
  /** More sources of this namespace, each with a folder of it among the service's files: values or patches from another repository, for example. */
  sources?: MountedSource[];
  /** Namespace of the cluster for objects that name none; created if missing. */
  targetNamespace: string;
  /** Run in the cluster, in `targetNamespace`, each time a version has become healthy. One that fails fails the version. */
  tests?: ServiceTest[];
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

/** Clusters of a set. */
export interface SetCounts {
  /** Of them: whose service can't be made, or not as the set says. */
  failed: number;
  /** That are selected no more, and still have their service. */
  leaving: number;
  /** That are selected. */
  matched: number;
  /** Of them: that are healthy at what is assigned to them. */
  ready: number;
}

export interface SetError {
  /** `namespace/name`. */
  cluster: string;
  message: string;
}

/** One text: stated, taken from a label, or computed. Exactly one of `value`, `fromLabel` and `expression`. */
export interface SetParameter {
  /** Where the cluster has no such label, or the expression no value. Absent: such a cluster is an error, and keeps what it has. */
  default?: string;
  /** In CEL, over `self`: the Cluster with `name`, `namespace`, `labels`, `annotations`, `metadata` and, once its agent has joined, `version`. Its value is a text. */
  expression?: string;
  /** A label of the Cluster. */
  fromLabel?: string;
  name: string;
  value?: string;
}

/** A version of a whole set. */
export interface SetPin {
  reason?: string;
  /** Number of the rollout, as `servicesets/NAME/versions` lists them. */
  version: number;
}

/** The kinds of sources. `ManagedNamespace` is stated by the hub alone. */
export type SourceKind = "GitRepository" | "HelmRepository" | "OCIRepository" | "ManagedNamespace";

export interface SourceReference {
  kind: SourceKind;
  name: string;
}

/** What of a source is served, and how its remote was found last. */
export interface SourceStatus {
  /** `Ready`, `Reconciling` and `Stalled`, readable by kstatus; `SourceVerified` where signatures are asked for. */
  conditions?: Condition[];
  /** When `revision` last changed. */
  lastFetchTime?: Time;
  /** The last request annotation that was acted on. */
  lastHandledReconcileAt?: string;
  /** The generation that the conditions speak of. */
  observedGeneration?: number;
  /** What is served, as Flux writes revisions: `<tag or version>@sha256:<digest>` of an artifact, `sha256:<digest>` of an index. */
  revision?: string;
  /** Since when the remote could not be asked; absent while it answers. */
  staleSince?: Time;
}

/** The members of one step. */
export interface Stage {
  counts: ProgressCounts;
  /** `canary`, one of the policy's, or `rest`. */
  step: string;
}

export type Strategy = "Progressive" | "AllAtOnce" | "OnHold";

export interface Suspension {
  reason?: string;
  /** From then on the service goes on by itself, as if `suspend` were not set. */
  until?: Time;
}

/** What the agent did or did not do with one object. */
export type SyncState = "Synced" | "Refused" | "Waiting" | "PruneHeld" | "Drifted" | "Unknown";

/** Of each ServiceDeployment. */
export interface TemplateMetadata {
  /** Beside `farwater.dev/set`, the set's name. */
  labels?: Record<string, string>;
}

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

export interface Verification {
  provider: VerificationProvider;
  /** A Secret in the same namespace with public keys: each of its keys that ends with `.pub`, PEM. One of them must have signed. */
  secretRef: LocalReference;
}

export type VerificationProvider = "cosign";

/** Who wants a version, and who has it. */
export interface VersionCounts {
  /** Who wrote the commit, as it says itself. */
  author?: string;
  /** As in the status of a service; empty: nothing yet. */
  revision: string;
  /** Those with members of this version. */
  stages: VersionStage[];
}

export interface VersionStage {
  /** Members that want it, and how far they are. Over all versions they are the stage's. */
  counts: ProgressCounts;
  /** Members that have it and want another. */
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
