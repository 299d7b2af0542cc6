// What is known of one collection, as a pure function of what was listed and heard.

import type { Resource, WatchEvent } from "./kinds";

export type Phase =
  /** Nothing was listed yet. */
  | "loading"
  /** Listed, and a watch is open. */
  | "live"
  /** What is shown was true at `heardAt`; the connection is being made again. */
  | "disconnected"
  /** The hub does not let this token read it. */
  | "refused";

export interface Collection<T extends Resource> {
  phase: Phase;
  /** By uid. */
  items: ReadonlyMap<string, T>;
  /** The version that a watch goes on from. */
  version: string;
  /** When the hub last said anything, by this machine's clock. */
  heardAt: number;
  /** Why it is not live, for people. */
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
      // Before the first list there is nothing to show: it stays loading, and says why it takes so long.
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
  // A stream that was resumed may repeat itself; time never runs backwards here.
  if (known && isOlder(version, known.metadata.resourceVersion)) return heard;
  const items = new Map(state.items);
  if (event.type === "DELETED") items.delete(event.object.metadata.uid);
  else items.set(event.object.metadata.uid, event.object);
  return { ...heard, items };
}

/** Farwater's versions are plain decimal numbers of any length. */
export function isOlder(a: string, b: string): boolean {
  return a.length === b.length ? a < b : a.length < b.length;
}

function newer(a: string, b: string): string {
  return isOlder(a, b) ? b : a;
}
