// Notices about the fleet that need a person to act. Pure, so that the page and its tests use the same functions.

import { condition, type Namespace, type Service, type Source } from "../api/kinds";
import type { State } from "./health";

/** Annotation of the hub's own namespace. While it is set, no cluster of the fleet deletes anything. */
const FREEZE_PRUNES = "farwater.dev/freeze-prunes";
/** Maximum number of sources that a notice names. */
const NAMED = 3;

export interface Notice {
  state: State;
  text: string;
  /** State that a click filters the services by. Absent: the notice has no filter. */
  filter?: State;
  command?: string;
}

export function attention(namespaces: Iterable<Namespace>, sources: Iterable<Source>, services: Iterable<Service>): Notice[] {
  const notices: Notice[] = [];
  for (const { metadata } of namespaces) {
    const why = metadata.annotations?.[FREEZE_PRUNES];
    if (why === undefined) continue;
    const detail = why && why !== "true" ? `: ${why}` : "";
    notices.push({ state: "held", text: `All deletions are paused in the whole fleet until an administrator reviews them${detail}`, command: "farwater doctor" });
  }
  const held = [...services].filter(({ status }) => status?.heldPrune).length;
  if (held > 0) notices.push({ state: "held", text: `${held === 1 ? "The prune of 1 service waits" : `Prunes of ${held} services wait`} for an approval`, filter: "held" });
  const failing = [...sources].filter((source) => condition(source.status?.conditions, "Ready")?.status === "False");
  if (failing.length > 0) {
    const names = failing.map(({ metadata }) => metadata.name).sort();
    const more = names.length > NAMED ? ` and ${names.length - NAMED} more` : "";
    notices.push({ state: "failed", text: `${failing.length === 1 ? "1 source fails" : `${failing.length} sources fail`}: ${names.slice(0, NAMED).join(", ")}${more}`, command: "farwater doctor" });
  }
  return notices;
}

/** Sorts the items: worst first, then by name. */
export function worstFirst<T>(items: Iterable<T>, rank: (item: T) => number, name: (item: T) => string): T[] {
  const ranked = [...items].map((item) => ({ item, rank: rank(item), name: name(item) }));
  return ranked.sort((a, b) => a.rank - b.rank || a.name.localeCompare(b.name)).map(({ item }) => item);
}
