import { type Cluster, keyOf, type Resource } from "../api/kinds";

/** What the hub tells a namespace of a cluster that ClusterGrants let it deploy to. */
export type GrantedCluster = Resource<{ clusterRef: { name: string; namespace: string } }, { ready: string; connected: boolean }>;

/** The Clusters that may be read, and the granted ones beside them. */
export function withGranted(clusters: Iterable<Cluster>, granted: readonly GrantedCluster[]): Cluster[] {
  const all = new Map([...clusters].map((cluster) => [keyOf(cluster), cluster]));
  for (const one of granted) {
    const cluster = asCluster(one);
    if (!all.has(keyOf(cluster))) all.set(keyOf(cluster), cluster);
  }
  return [...all.values()];
}

function asCluster({ metadata, spec, status }: GrantedCluster): Cluster {
  const { name, namespace } = spec.clusterRef;
  const ready = { type: "Ready", status: status?.ready ?? "Unknown", reason: "", message: "", lastTransitionTime: "" };
  return {
    granted: true,
    metadata: { name, namespace, uid: metadata.uid, resourceVersion: "" },
    spec: { pollInterval: "", suspend: false },
    status: { conditions: [ready] },
  };
}
