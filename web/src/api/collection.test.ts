import { describe, expect, it } from "vitest";

import { type Action, type Collection, empty, isOlder, reduce } from "./collection";
import type { Resource } from "./kinds";

const resource = (name: string, version: string): Resource => ({
  metadata: { name, namespace: "team-a", uid: `uid-${name}`, resourceVersion: version },
  spec: {},
});
const play = (...actions: Action<Resource>[]): Collection<Resource> => actions.reduce(reduce<Resource>, empty<Resource>());
const listed = (version: string, ...items: Resource[]): Action<Resource> => ({ type: "listed", items, version, at: 1 });
const event = (type: "ADDED" | "MODIFIED" | "DELETED", object: Resource): Action<Resource> => ({
  type: "event",
  event: { type, object },
  at: 2,
});
const names = (state: Collection<Resource>) => [...state.items.values()].map((one) => one.metadata.name);

describe("a collection", () => {
  it("is loading until it is listed, and says why that fails", () => {
    expect(play().phase).toBe("loading");
    const state = play({ type: "disconnected", trouble: "the hub can't be reached" });
    expect(state).toMatchObject({ phase: "loading", trouble: "the hub can't be reached" });
  });

  it("follows added, changed and deleted objects", () => {
    const state = play(
      listed("5", resource("web", "3"), resource("old", "4")),
      event("ADDED", resource("new", "6")),
      event("MODIFIED", resource("web", "7")),
      event("DELETED", resource("old", "8")),
    );
    expect(names(state)).toEqual(["web", "new"]);
    expect(state.items.get("uid-web")?.metadata.resourceVersion).toBe("7");
    expect(state.version).toBe("8");
  });

  it("continues from a bookmark's version and changes nothing else", () => {
    const before = play(listed("5", resource("web", "3")));
    const after = reduce(before, {
      type: "event",
      event: { type: "BOOKMARK", object: { metadata: { resourceVersion: "90" } } },
      at: 9,
    });
    expect(after).toMatchObject({ version: "90", heardAt: 9 });
    expect(after.items).toBe(before.items);
  });

  it("keeps its objects while the hub is away, and is live again with the first event", () => {
    const away = play(listed("5", resource("web", "3")), { type: "disconnected", trouble: "gone" });
    expect(away).toMatchObject({ phase: "disconnected", trouble: "gone", heardAt: 1 });
    expect(names(away)).toEqual(["web"]);
    expect(reduce(away, event("MODIFIED", resource("web", "6")))).toMatchObject({ phase: "live", trouble: "" });
  });

  it("forgets deleted objects when it is listed again", () => {
    const state = play(listed("5", resource("web", "3"), resource("gone", "4")), listed("900", resource("web", "3")));
    expect(names(state)).toEqual(["web"]);
    expect(state.version).toBe("900");
  });

  it("ignores a repeated, older event", () => {
    const state = play(listed("10", resource("web", "10")), event("MODIFIED", resource("web", "9")));
    expect(state.items.get("uid-web")?.metadata.resourceVersion).toBe("10");
    expect(state.version).toBe("10");
  });

  it("shows nothing that the user may no longer read", () => {
    const state = play(listed("5", resource("web", "3")), { type: "refused", trouble: "forbidden" });
    expect(state).toMatchObject({ phase: "refused", trouble: "forbidden" });
    expect(names(state)).toEqual([]);
  });
});

it("compares versions as numbers of any length", () => {
  expect(isOlder("9", "10")).toBe(true);
  expect(isOlder("10", "9")).toBe(false);
  expect(isOlder("90071992547409930", "90071992547409931")).toBe(true);
  expect(isOlder("7", "7")).toBe(false);
});
