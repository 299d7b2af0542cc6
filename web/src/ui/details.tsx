import { useEffect, useState } from "react";

import { ApiError, type Client, FARWATER } from "../api/client";
import type { ObjectReport } from "../api/generated";
import type { Service } from "../api/kinds";
import { judgeObject, STATES } from "../fleet/health";
import { age, approveCommand, cliCommand, plain, sentence } from "../fleet/text";
import { CopyCommand } from "./copy-command";
import { Mark } from "./mark";

/** Details below a service's row: its spec, its conditions and every object. */
export function Details({ service, client, now }: { service: Service; client: Client; now: number }) {
  const { spec, status, metadata } = service;
  const held = status?.heldPrune;
  const conditions = status?.conditions ?? [];
  const frozen = conditions.some(({ type, reason }) => type === "PruneHeld" && reason === "FleetFrozen");
  return (
    <div className="details">
      <dl>
        <dt>Source</dt>
        <dd>
          {plain(spec.sourceRef.kind)} <bdi>{plain(spec.sourceRef.name)}</bdi>, folder <bdi className="mono">{plain(spec.path) || "."}</bdi>
        </dd>
        <dt>Target</dt>
        <dd>
          namespace <bdi>{plain(spec.targetNamespace)}</bdi>, prune {spec.prune ? "on" : "off"}, on deletion {plain(spec.deletionPolicy).toLowerCase()}
        </dd>
        <dt>Revision</dt>
        <dd className="mono">{plain(status?.appliedRevision) || "nothing applied yet"}</dd>
        {conditions.map((condition, index) => {
          // Ready, Stalled and PruneHeld may have the same message: show it once.
          const said = conditions.findIndex(({ message }) => message === condition.message) < index;
          return <Condition key={condition.type} {...condition} message={said ? "" : condition.message} since={age(condition.lastTransitionTime, now)} />;
        })}
      </dl>
      {held && (
        <div className="held-box">
          <p>
            <Mark state="held" /> {held.count} {held.count === 1 ? "object waits" : "objects wait"} to be deleted: {plain(held.reason)}
          </p>
          <ul>
            {held.objects.map((object) => (
              <li key={`${object.kind}/${object.namespace}/${object.name}`}>
                {plain(object.kind)} <bdi>{plain([object.namespace, object.name].filter(Boolean).join("/"))}</bdi>
              </li>
            ))}
          </ul>
          {frozen ? (
            <p>Approvals have no effect until an administrator has reviewed the fleet.</p>
          ) : (
            <>
              <p>To approve exactly these deletions, and none that are added later:</p>
              <CopyCommand command={approveCommand(metadata, held.digest)} />
            </>
          )}
        </div>
      )}
      <Objects service={service} client={client} />
      <div className="commands">
        <CopyCommand command={cliCommand("why", metadata)} />
        <CopyCommand command={cliCommand("tree", metadata)} />
      </div>
    </div>
  );
}

function Condition({ type, status, reason, message, since }: { type: string; status: string; reason: string; message: string; since: string }) {
  return (
    <>
      <dt>{plain(type)}</dt>
      <dd>
        {plain(status)} <span className="faint">({plain(reason)}, for {since})</span> {sentence(message)}
      </dd>
    </>
  );
}

interface Loaded {
  objects?: ObjectReport[];
  trouble?: string;
}

/** Reads the objects again whenever the service changes. The previous objects stay until the answer arrives. */
function useObjects(service: Service, client: Client): Loaded {
  const [loaded, setLoaded] = useState<Loaded>({});
  const { namespace = "", name, resourceVersion } = service.metadata;
  useEffect(() => {
    const stop = new AbortController();
    const path = `${FARWATER}/namespaces/${encodeURIComponent(namespace)}/servicedeployments/${encodeURIComponent(name)}/objects`;
    client
      .get<ObjectReport[] | { items?: ObjectReport[] }>(path, stop.signal)
      .then((answer) => setLoaded({ objects: Array.isArray(answer) ? answer : (answer.items ?? []) }))
      .catch((error: unknown) => {
        if (stop.signal.aborted) return;
        if (error instanceof ApiError && error.code === 404) return setLoaded({ objects: [] });
        const trouble = error instanceof ApiError ? error.message : "the hub can't be reached";
        setLoaded((before) => ({ ...before, trouble }));
      });
    return () => stop.abort();
  }, [client, namespace, name, resourceVersion]);
  return loaded;
}

function Objects({ service, client }: { service: Service; client: Client }) {
  const { objects, trouble } = useObjects(service, client);
  const rows = (objects ?? [])
    .map((report) => ({ report, verdict: judgeObject(report) }))
    .sort((a, b) => STATES.indexOf(a.verdict.state) - STATES.indexOf(b.verdict.state));
  return (
    <>
      {trouble && (
        <p role="alert" className="trouble">
          The objects can&rsquo;t be read: {plain(trouble)}
        </p>
      )}
      {!objects && !trouble && <p className="empty">Loading objects…</p>}
      {objects?.length === 0 && <p className="empty">The agent has reported no object yet.</p>}
      {rows.length > 0 && (
        <table className="objects" aria-label={`objects of ${plain(service.metadata.name)}`}>
          <thead>
            <tr>
              <th scope="col">State</th>
              <th scope="col">Kind</th>
              <th scope="col">Name</th>
              <th scope="col">Namespace</th>
              <th scope="col">Message</th>
            </tr>
          </thead>
          <tbody>
            {rows.map(({ report, verdict }) => (
              <tr key={`${report.group}/${report.kind}/${report.namespace}/${report.name}`}>
                <td>
                  <span className="with-mark">
                    <Mark state={verdict.state} /> {verdict.word}
                  </span>
                </td>
                <td>{plain(report.kind)}</td>
                <td>
                  <bdi>{plain(report.name)}</bdi>
                </td>
                <td>
                  <bdi>{plain(report.namespace)}</bdi>
                </td>
                <td className="message">{plain(report.message)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </>
  );
}
