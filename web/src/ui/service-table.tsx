import { Fragment, useMemo, useState } from "react";

import type { Client } from "../api/client";
import type { Collection } from "../api/collection";
import { keyOf, type Service } from "../api/kinds";
import { worstFirst } from "../fleet/attention";
import { judgeService, type State, STATES, WORDS } from "../fleet/health";
import type { Place } from "../fleet/placement";
import { age, plain, sentence, shortRevision } from "../fleet/text";
import { Bar } from "./cluster-table";
import { rowId } from "./dashboard";
import { Details } from "./details";
import { useNow } from "./hooks";
import { FILTER_ID } from "./keyboard";
import { Mark } from "./mark";

/** Number of rows that are drawn at first, and added by each click: few enough to be drawn in one frame. */
const STEP = 200;

interface Props {
  collection: Collection<Service>;
  places: Place[];
  client: Client;
  filter: string;
  onFilter: (text: string) => void;
  state: State | "";
  onState: (state: string) => void;
  opened: ReadonlySet<string>;
  onToggle: (key: string) => void;
}

export function ServiceTable(props: Props) {
  const { collection, places, filter, state } = props;
  const [limit, setLimit] = useState(STEP);
  const clusters = useMemo(
    () => new Map(places.flatMap((place) => place.services.map((service) => [service.metadata.uid, place.key]))),
    [places],
  );
  const all = useMemo(
    () => worstFirst(collection.items.values(), (service) => STATES.indexOf(judgeService(service).state), keyOf),
    [collection.items],
  );
  const matching = useMemo(() => select(all, filter, state, clusters), [all, filter, state, clusters]);
  return (
    <section aria-labelledby="services-title">
      <div className="title-row">
        <h2 id="services-title">Services</h2>
        <input
          id={FILTER_ID}
          type="search"
          placeholder="Filter by name, cluster, revision or message"
          aria-label="Filter services"
          value={filter}
          onChange={(event) => props.onFilter(event.target.value)}
        />
        <span className="faint">
          {filter || state ? `${matching.length} of ${all.length}` : all.length}
          {state && (
            <button type="button" className="chip" onClick={() => props.onState("")}>
              {WORDS[state]} ×
            </button>
          )}
        </span>
      </div>
      <Nothing phase={collection.phase} all={all.length} matching={matching.length} />
      {matching.length > 0 && <Rows {...props} services={matching.slice(0, limit)} clusters={clusters} />}
      {matching.length > limit && (
        <button type="button" onClick={() => setLimit(limit + STEP)}>
          Show {Math.min(STEP, matching.length - limit)} more of {matching.length}
        </button>
      )}
    </section>
  );
}

function select(all: Service[], filter: string, state: State | "", clusters: ReadonlyMap<string, string>): Service[] {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  return all.filter((service) => {
    const verdict = judgeService(service);
    if (state && verdict.state !== state) return false;
    const cluster = clusters.get(service.metadata.uid);
    const text = [keyOf(service), cluster, service.status?.appliedRevision, verdict.word, verdict.message].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

function Nothing({ phase, all, matching }: { phase: Collection<Service>["phase"]; all: number; matching: number }) {
  if (phase === "loading") return <p className="empty">Loading services…</p>;
  if (phase === "refused" || matching > 0) return null;
  if (all > 0) return <p className="empty">No service matches. Esc clears the filter.</p>;
  return (
    <p className="empty">
      Nothing is deployed yet. <code>farwater deploy GIT-URL --path FOLDER --cluster NAME</code> deploys a folder of a
      repository.
    </p>
  );
}

function Rows(props: Props & { services: Service[]; clusters: ReadonlyMap<string, string> }) {
  const now = useNow(5000);
  return (
    <div className="scroll">
      <table className="services folding">
        <thead>
          <tr>
            <th scope="col">Name</th>
            <th scope="col">State</th>
            <th scope="col">Objects</th>
            <th scope="col">Revision</th>
            <th scope="col">Cluster</th>
            <th scope="col">Applied</th>
          </tr>
        </thead>
        <tbody>
          {props.services.map((service) => {
            const key = keyOf(service);
            const open = props.opened.has(key);
            return (
              <Fragment key={service.metadata.uid}>
                <Row service={service} cluster={props.clusters.get(service.metadata.uid) ?? ""} open={open} now={now} onToggle={() => props.onToggle(key)} />
                {open && (
                  <tr className="opened">
                    <td colSpan={6} id={`details-${key}`}>
                      <Details service={service} client={props.client} now={now} />
                    </td>
                  </tr>
                )}
              </Fragment>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

function Row({ service, cluster, open, now, onToggle }: { service: Service; cluster: string; open: boolean; now: number; onToggle: () => void }) {
  const verdict = judgeService(service);
  const { status } = service;
  const key = keyOf(service);
  // Show the cluster's namespace only if it differs from the service's.
  const foreign = cluster.includes("/") && !cluster.startsWith(`${service.metadata.namespace}/`) ? cluster.split("/")[0] : "";
  const moving = status?.assignedRevision && status.assignedRevision !== status.appliedRevision;
  return (
    <tr className={open ? "open" : ""}>
      <th scope="row">
        <button type="button" id={rowId(key)} className="disclosure" data-row aria-expanded={open} aria-controls={`details-${key}`} onClick={onToggle}>
          <svg viewBox="0 0 8 8" width="9" height="9" aria-hidden="true">
            <path d="M2 1l4 3-4 3z" />
          </svg>
          <bdi>{plain(service.metadata.name)}</bdi> <span className="faint">{plain(service.metadata.namespace)}</span>
        </button>
      </th>
      <td>
        <span className="with-mark">
          <Mark state={verdict.state} /> {verdict.word}
        </span>
        {verdict.state !== "healthy" && verdict.message && <span className="detail">{sentence(verdict.message)}</span>}
      </td>
      <td data-label="Objects">{status?.objects?.total ? <Bar part={status.objects.healthy} whole={status.objects.total} /> : "–"}</td>
      <td className="mono" data-label="Revision" title={status?.appliedRevision}>
        {shortRevision(status?.appliedRevision) || "–"}
        {moving && <span className="detail">→ {shortRevision(status?.assignedRevision)}</span>}
      </td>
      <td data-label="Cluster">
        <bdi>{plain(cluster.split("/").pop())}</bdi>
        {foreign && <span className="detail">{plain(foreign)}</span>}
      </td>
      <td className="nowrap" data-label="Applied" title={status?.lastAppliedTime}>{status?.lastAppliedTime ? `${age(status.lastAppliedTime, now)} ago` : "–"}</td>
    </tr>
  );
}
