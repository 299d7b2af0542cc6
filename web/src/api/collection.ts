// The state of one collection, as a pure function of its lists and watch events.

import type { Resource, WatchEvent } from "./kinds";

export type Phase =
  /** The first list has not arrived yet. */
  | "loading"
  /** Listed, and a watch is open. */
  | "live"
  /** The objects are as of `heardAt`. The page is reconnecting. */
  | "disconnected"
  /** The token may not read this collection. */
  | "refused";

export interface Collection<T extends Resource> {
  phase: Phase;
  /** Objects by uid. */
  items: ReadonlyMap<string, T>;
  /** Resource version that the next watch continues from. Empty: never listed. */
  version: string;
  /** Time of the hub's last answer or event, by this machine's clock, in milliseconds. */
  heardAt: number;
  /** Why the collection is not live, for people. Empty: it is, or is still loading. */
  trouble: string;
}

export type Action<T extends Resource> =
  | { type: "listed"; items: T[]; version: string; at: number }
  | { type: "opened"; at: number }
  | { type: "event"; event: WatchEvent<T>; at: number }
  | { type: "disconnected"; trouble: string }
  | { type: "refused"; trouble: string };

export function empty<T extends Resource>(): Collection<T> {
  return { phase: "loading", items: new Map(), version: "", heardAt: 0, trouble: "" };
}

export function reduce<T extends Resource>(state: Collection<T>, action: Action<T>): Collection<T> {
  switch (action.type) {
    case "listed": {
      const items = new Map(action.items.map((item) => [item.metadata.uid, item]));
      return { phase: "live", items, version: action.version, heardAt: action.at, trouble: "" };
    }
    case "opened":
      return { ...state, phase: "live", heardAt: action.at, trouble: "" };
    case "event":
      return hear(state, action.event, action.at);
    case "disconnected":
      // Without a first list there are no objects to show, so the phase stays "loading" and `trouble` says why.
      return { ...state, phase: state.version ? "disconnected" : "loading", trouble: action.trouble };
    case "refused":
      return { ...empty<T>(), phase: "refused", trouble: action.trouble };
  }
}

function hear<T extends Resource>(state: Collection<T>, event: WatchEvent<T>, at: number): Collection<T> {
  if (event.type === "ERROR") return state;
  const version = event.object.metadata.resourceVersion || state.version;
  const heard = { ...state, phase: "live" as const, heardAt: at, trouble: "", version: newer(version, state.version) };
  if (event.type === "BOOKMARK") return heard;
  const known = state.items.get(event.object.metadata.uid);
  // A resumed stream may repeat events. An older event must not overwrite a newer object.
  if (known && isOlder(version, known.metadata.resourceVersion)) return heard;
  const items = new Map(state.items);
  if (event.type === "DELETED") items.delete(event.object.metadata.uid);
  else items.set(event.object.metadata.uid, event.object);
  return { ...heard, items };
}

/** Compares resource versions. The hub's are decimal numbers of any length. */
export function isOlder(a: string, b: string): boolean {
  return a.length === b.length ? a < b : a.length < b.length;
}

function newer(a: string, b: string): string {
  return isOlder(a, b) ? b : a;
}
