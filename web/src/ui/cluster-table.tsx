import type { Collection } from "../api/collection";
import type { Cluster } from "../api/kinds";
import { judgeCluster, judgeService } from "../fleet/health";
import { ADMIN_NAMESPACE, type Place } from "../fleet/placement";
import { age, plain, sentence } from "../fleet/text";
import { useNow } from "./hooks";
import { Mark } from "./mark";

interface Props {
  collection: Collection<Cluster>;
  places: Place[];
  /** The only namespace that is shown. */
  tenant: string | undefined;
}

export function ClusterTable({ collection, places, tenant }: Props) {
  const now = useNow(1000);
  const known = places.filter((place) => place.cluster);
  return (
    <section aria-labelledby="clusters-title">
      <h2 id="clusters-title">Clusters</h2>
      {collection.phase === "loading" && <p className="empty">Loading clusters…</p>}
      {collection.phase !== "loading" && collection.phase !== "refused" && known.length === 0 && (
        <Empty tenant={tenant} />
      )}
      {known.length > 0 && (
        <div className="scroll">
          <table className="folding">
            <thead>
              <tr>
                <th scope="col">Name</th>
                <th scope="col">State</th>
                <th scope="col">Services healthy</th>
                <th scope="col">Kubernetes</th>
                <th scope="col">Agent</th>
                <th scope="col">Last heard</th>
              </tr>
            </thead>
            <tbody>
              {known.map(({ key, cluster, services }) => cluster && <Row key={key} cluster={cluster} healthy={services.filter((service) => judgeService(service).state === "healthy").length} total={services.length} now={now} />)}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

function Empty({ tenant }: { tenant: string | undefined }) {
  if (tenant && tenant !== ADMIN_NAMESPACE) {
    return <p className="empty">No ClusterGrant allows namespace {tenant} to deploy to a cluster. Ask an administrator of the hub for one.</p>;
  }
  return (
    <p className="empty">
      No clusters yet. <code>farwater cluster join NAME</code> prints the command that joins one.
    </p>
  );
}

function Row({ cluster, healthy, total, now }: { cluster: Cluster; healthy: number; total: number; now: number }) {
  const verdict = judgeCluster(cluster);
  const heard = cluster.status?.lastHeardTime;
  return (
    <tr>
      <th scope="row">
        <bdi>{plain(cluster.metadata.name)}</bdi> <span className="faint">{plain(cluster.metadata.namespace)}</span>
      </th>
      <td>
        <span className="with-mark">
          <Mark state={verdict.state} /> {verdict.word}
        </span>
        {verdict.state !== "healthy" && verdict.message && <span className="detail">{sentence(verdict.message)}</span>}
      </td>
      <td data-label="Services healthy">
        {total > 0 ? <Bar part={healthy} whole={total} /> : "–"}
      </td>
      <td data-label="Kubernetes">{plain(cluster.status?.kubernetesVersion) || "–"}</td>
      <td data-label="Agent">{plain(cluster.status?.agentVersion) || "–"}</td>
      <td className="nowrap" data-label="Last heard" title={heard}>{lastHeard(cluster, now)}</td>
    </tr>
  );
}

function lastHeard(cluster: Cluster, now: number): string {
  const heard = cluster.status?.lastHeardTime;
  if (heard) return `${age(heard, now)} ago`;
  return cluster.granted ? "–" : "never";
}

export function Bar({ part, whole }: { part: number; whole: number }) {
  const width = whole === 0 ? 0 : Math.round((part / whole) * 60);
  return (
    <span className="bar-figure">
      <svg viewBox="0 0 60 6" width="60" height="6" aria-hidden="true" className={part === whole ? "meter full" : "meter"}>
        <rect width="60" height="6" rx="3" className="ground" />
        <rect width={width} height="6" rx="3" className="value" />
      </svg>
      {part}/{whole}
    </span>
  );
}
