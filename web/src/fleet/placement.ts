import { type Cluster, keyOf, type Service } from "../api/kinds";

/** The admin namespace. Services of every namespace can refer to its clusters. */
export const ADMIN_NAMESPACE = "farwater-admin";

export interface Place {
  /** `namespace/name`, or the bare name if the cluster can't be read. */
  key: string;
  cluster?: Cluster;
  services: Service[];
}

/** Finds the cluster as the hub does: in the given namespace, or else in the service's own, then in the admin one. */
export function clusterKey(service: Service, known: ReadonlySet<string>): string {
  const { name, namespace } = service.spec.clusterRef;
  if (namespace) return `${namespace}/${name}`;
  const own = `${service.metadata.namespace ?? ""}/${name}`;
  if (known.has(own)) return own;
  const shared = `${ADMIN_NAMESPACE}/${name}`;
  return known.has(shared) ? shared : name;
}

/** Clusters with their services. A cluster that can't be read is named by its services only. */
export function place(clusters: Iterable<Cluster>, services: Iterable<Service>): Place[] {
  const places = new Map<string, Place>();
  for (const cluster of clusters) places.set(keyOf(cluster), { key: keyOf(cluster), cluster, services: [] });
  const known = new Set(places.keys());
  for (const service of services) {
    const key = clusterKey(service, known);
    const found = places.get(key);
    if (found) found.services.push(service);
    else places.set(key, { key, services: [service] });
  }
  const sorted = [...places.values()].sort((a, b) => a.key.localeCompare(b.key));
  for (const one of sorted) one.services.sort((a, b) => keyOf(a).localeCompare(keyOf(b)));
  return sorted;
}
