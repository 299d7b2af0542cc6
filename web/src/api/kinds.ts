// Resources as the API sends them: Kubernetes' metadata around types that are generated from the Rust ones.

import type {
  ClusterSpec,
  ClusterStatus,
  Condition,
  ServiceDeploymentSpec,
  ServiceDeploymentStatus,
  ServiceSetSpec,
  ServiceSetStatus,
} from "./generated";

export interface ObjectMeta {
  name: string;
  namespace?: string;
  uid: string;
  resourceVersion: string;
  generation?: number;
  creationTimestamp?: string;
  deletionTimestamp?: string;
  labels?: Record<string, string>;
  annotations?: Record<string, string>;
  ownerReferences?: { kind: string; name: string }[];
}

export interface Resource<Spec = unknown, Status = unknown> {
  metadata: ObjectMeta;
  spec: Spec;
  status?: Status;
}

/** `granted`: it may not be read, and only its name and whether it is ready are known. */
export type Cluster = Resource<ClusterSpec, ClusterStatus> & { granted?: true };
export type Service = Resource<ServiceDeploymentSpec, ServiceDeploymentStatus>;
export type ServiceSet = Resource<ServiceSetSpec, ServiceSetStatus>;

/** A source of any kind. The page reads only its conditions. */
export type Source = Resource<unknown, { conditions?: Condition[] }>;
export type Namespace = Resource;

export interface List<T> {
  metadata: { resourceVersion: string; continue?: string };
  items: T[] | null;
}

/** `metav1.Status`: the API's answer to a refused request. */
export interface Status {
  code?: number;
  reason?: string;
  message?: string;
}

export type WatchEvent<T> =
  | { type: "ADDED" | "MODIFIED" | "DELETED"; object: T }
  | { type: "BOOKMARK"; object: { metadata: { resourceVersion: string } } }
  | { type: "ERROR"; object: Status };

export function condition(conditions: Condition[] | undefined, type: string): Condition | undefined {
  return conditions?.find((one) => one.type === type);
}

/** `namespace/name`, as people and the CLI name a resource. */
export function keyOf(resource: { metadata: ObjectMeta }): string {
  return `${resource.metadata.namespace ?? ""}/${resource.metadata.name}`;
}
