import { describe, expect, it } from "vitest";

import type { Namespace, Service, Source } from "../api/kinds";
import { attention, worstFirst } from "./attention";

const metadata = (name: string, annotations?: Record<string, string>) => ({ name, uid: name, resourceVersion: "1", ...(annotations && { annotations }) });
const source = (name: string, status: string): Source => ({ metadata: metadata(name), spec: {}, status: { conditions: [{ type: "Ready", status, reason: "R", message: "", lastTransitionTime: "2026-01-01T00:00:00Z" }] } });

describe("notices that need a person to act", () => {
  it("are absent while all is well", () => {
    expect(attention([{ metadata: metadata("farwater-admin"), spec: {} }], [source("infra", "True"), source("new", "Unknown")], [])).toEqual([]);
  });

  it("name paused deletions, held prunes and failing sources", () => {
    const braked: Namespace = { metadata: metadata("farwater-admin", { "farwater.dev/freeze-prunes": "prunes of 3 services" }), spec: {} };
    const held = { metadata: metadata("web"), spec: {}, status: { heldPrune: { count: 3 } } } as unknown as Service;
    const sources = ["d", "b", "c", "a"].map((name) => source(name, "False"));
    expect(attention([braked], sources, [held]).map(({ text }) => text)).toEqual([
      "All deletions are paused in the whole fleet until an administrator reviews them: prunes of 3 services",
      "The prune of 1 service waits for an approval",
      "4 sources fail: a, b, c and 1 more",
    ]);
  });
});

it("lists the worst first, then by name", () => {
  expect(worstFirst(["b1", "a2", "a1", "c0"], (item) => Number(item[1]), (item) => item)).toEqual(["c0", "a1", "b1", "a2"]);
});
