import { useMemo, useState } from "react";

import type { Collection } from "../api/collection";
import { keyOf, type ServiceSet } from "../api/kinds";
import { worstFirst } from "../fleet/attention";
import { STATES } from "../fleet/health";
import { doneOf, judgeSet } from "../fleet/rollout";
import { plain, sentence } from "../fleet/text";
import { Bar } from "./cluster-table";
import { Link, setQuery } from "./link";
import { Mark } from "./mark";

/** Number of rows that are drawn at first, and added by each click. */
const STEP = 100;

/** Table of the sets. Without any set there is no table. */
export function SetTable({ collection }: { collection: Collection<ServiceSet> }) {
  const sets = useMemo(() => worstFirst(collection.items.values(), (set) => STATES.indexOf(judgeSet(set).state), keyOf), [collection.items]);
  const [limit, setLimit] = useState(STEP);
  if (sets.length === 0) return null;
  return (
    <section aria-labelledby="sets-title">
      <h2 id="sets-title">Service sets</h2>
      <div className="scroll">
        <table className="folding">
          <thead>
            <tr>
              <th scope="col">Name</th>
              <th scope="col">State</th>
              <th scope="col">Rolled out</th>
              <th scope="col">Step</th>
              <th scope="col">Clusters healthy</th>
            </tr>
          </thead>
          <tbody>
            {sets.slice(0, limit).map((set) => (
              <Row key={set.metadata.uid} set={set} />
            ))}
          </tbody>
        </table>
      </div>
      {sets.length > limit && (
        <button type="button" className="more" onClick={() => setLimit(limit + STEP)}>
          Show {Math.min(STEP, sets.length - limit)} more of {sets.length}
        </button>
      )}
    </section>
  );
}

export function setRowId(key: string): string {
  return `set-${key}`;
}

function Row({ set }: { set: ServiceSet }) {
  const key = keyOf(set);
  const verdict = judgeSet(set);
  const { done, all } = doneOf(set.status);
  const { matched = 0, ready = 0 } = set.status?.clusters ?? {};
  const rollout = set.status?.rollout;
  return (
    <tr>
      <th scope="row">
        <Link query={setQuery(key)} id={setRowId(key)} row>
          <bdi>{plain(set.metadata.name)}</bdi>
        </Link>{" "}
        <span className="faint">{plain(set.metadata.namespace)}</span>
      </th>
      <td>
        <span className="with-mark">
          <Mark state={verdict.state} /> {verdict.word}
        </span>
        {verdict.state !== "healthy" && verdict.message && <span className="detail">{sentence(verdict.message)}</span>}
      </td>
      <td data-label="Rolled out">{all > 0 ? <Bar part={done} whole={all} /> : "–"}</td>
      <td data-label="Step">{plain(rollout?.phase === "Complete" ? "" : rollout?.step) || "–"}</td>
      <td className="nowrap" data-label="Clusters healthy">
        {ready}/{matched}
      </td>
    </tr>
  );
}
