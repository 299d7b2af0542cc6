import { describe, expect, it } from "vitest";

import type { Condition } from "../api/generated";
import type { Cluster, Service } from "../api/kinds";
import { homeNamespace, isNamespace } from "../session";
import { withGranted } from "./granted";
import { count, judgeCluster, judgeObject, judgeService } from "./health";
import { place } from "./placement";
import { age, approveCommand, cliCommand, plain, sentence, shortRevision } from "./text";

const condition = (type: string, status: string, message = ""): Condition => ({
  type,
  status,
  message,
  reason: "R",
  lastTransitionTime: "2026-01-01T00:00:00Z",
});

const service = (name: string, conditions?: Condition[], cluster: Service["spec"]["clusterRef"] = { name: "east" }, namespace = "team-a"): Service => ({
  metadata: { name, namespace, uid: `${namespace}-${name}`, resourceVersion: "1" },
  spec: {
    clusterRef: cluster,
    deletionPolicy: "Orphan",
    path: "",
    prune: true,
    sourceRef: { kind: "GitRepository", name: "infra" },
    suspend: false,
    targetNamespace: name,
  },
  status: conditions && { conditions },
});

const cluster = (namespace: string, name: string, status: Cluster["status"] = {}): Cluster => ({
  metadata: { name, namespace, uid: `${namespace}-${name}`, resourceVersion: "1" },
  spec: { pollInterval: "30s", suspend: false },
  status,
});

describe("a service", () => {
  it.each([
    [undefined, "unknown"],
    [[condition("Ready", "True")], "healthy"],
    [[condition("Ready", "False"), condition("Reconciling", "True")], "progressing"],
    [[condition("Ready", "False"), condition("Stalled", "True")], "failed"],
    [[condition("Ready", "False"), condition("PruneHeld", "True")], "held"],
    [[condition("Ready", "Unknown")], "held"],
  ] as const)("with %j is %s", (conditions, state) => {
    expect(judgeService(service("web", conditions && [...conditions])).state).toBe(state);
  });

  it("that a person suspended is shown as suspended", () => {
    const suspended = service("web", [condition("Ready", "Unknown")]);
    suspended.spec.suspend = true;
    expect(judgeService(suspended)).toMatchObject({ state: "held", word: "suspended" });
  });

  it("that is being deleted is progressing, whatever its conditions say", () => {
    const deleted = service("web", [condition("Ready", "True")]);
    deleted.metadata.deletionTimestamp = "2026-01-01T00:00:00Z";
    expect(judgeService(deleted)).toMatchObject({ state: "progressing", word: "being deleted" });
  });
});

it("distinguishes a silent cluster from one that never joined", () => {
  expect(judgeCluster(cluster("a", "b")).word).toBe("never joined");
  const silent = { agentVersion: "0.1.0", conditions: [condition("Ready", "False", "not heard for 5m")] };
  expect(judgeCluster(cluster("a", "b", silent))).toMatchObject({ state: "failed", word: "silent" });
});

it("shows a refused object as failed, whatever its health", () => {
  const report = { group: "", version: "v1", kind: "Service", name: "web", sync: "Refused", health: "Current" } as const;
  expect(judgeObject(report).state).toBe("failed");
  expect(count([judgeObject(report)])).toMatchObject({ failed: 1, healthy: 0 });
});

it("finds a service's cluster as the hub does: own namespace, admin namespace, then the bare name", () => {
  const places = place(
    [cluster("farwater-admin", "east"), cluster("team-b", "east")],
    [
      service("shared"),
      service("own", undefined, { name: "east" }, "team-b"),
      service("named", undefined, { name: "east", namespace: "team-b" }),
      service("lost", undefined, { name: "west" }),
    ],
  );
  expect(places.map((one) => [one.key, one.services.map((each) => each.metadata.name)])).toEqual([
    ["farwater-admin/east", ["shared"]],
    ["team-b/east", ["named", "own"]],
    ["west", ["lost"]],
  ]);
});

describe("external text", () => {
  it("loses characters that would hide or reorder text", () => {
    expect(plain("a\u001b[31mb\u202ec\u0000")).toBe("a [31mb c ");
  });

  it("is quoted in commands", () => {
    expect(cliCommand("why", { name: "web", namespace: "team-a" })).toBe("farwater why web -n team-a");
    expect(cliCommand("why", { name: "x; rm -rf '~'" })).toBe("farwater why 'x; rm -rf '\\''~'\\'''");
    expect(approveCommand({ name: "web", namespace: "team-a" }, "sha256:1a")).toBe(
      "farwater approve web -n team-a --digest sha256:1a",
    );
  });

  it("is shortened only if it is a commit", () => {
    const commit = "a1".repeat(20);
    expect(shortRevision(`main@sha1:${commit}`)).toBe("main@a1a1a1a1a1a1");
    expect(shortRevision(commit)).toBe("a1a1a1a1a1a1");
    expect(shortRevision("v1.2.0")).toBe("v1.2.0");
    expect(sentence(`applied main@sha1:${commit}; ok`)).toBe("applied main@a1a1a1a1a1a1; ok");
    expect(sentence(`sha256:${"0".repeat(64)}`)).toBe(`sha256:${"0".repeat(64)}`);
  });

  it("becomes an age", () => {
    const now = Date.parse("2026-01-01T12:00:00Z");
    expect(age("2026-01-01T11:59:18Z", now)).toBe("42s");
    expect(age("2026-01-01T09:00:00Z", now)).toBe("3h");
    expect(age("not a time", now)).toBe("");
  });
});

it("finds the home namespace of a service account", () => {
  expect(homeNamespace("system:serviceaccount:team-a:viewer")).toBe("team-a");
  expect(homeNamespace("admin")).toBeUndefined();
  expect(isNamespace("team-a")).toBe(true);
  expect(isNamespace("../farwater-admin")).toBe(false);
});

describe("clusters of a tenant", () => {
  it("are those that may be read and those that are granted", () => {
    const granted = (name: string, ready: string) => ({
      metadata: { name, namespace: "team-a", uid: name, resourceVersion: "" },
      spec: { clusterRef: { name, namespace: "farwater-admin" } },
      status: { ready, connected: true },
    });
    const known = withGranted([cluster("team-a", "own")], [granted("east", "True"), granted("west", "False"), granted("new", "Unknown")]);
    const told = known.map((one) => [one.metadata.namespace, one.metadata.name, judgeCluster(one).word]);
    expect(told).toEqual([
      ["team-a", "own", "never joined"],
      ["farwater-admin", "east", "ready"],
      ["farwater-admin", "west", "not ready"],
      ["farwater-admin", "new", "not ready"],
    ]);
    expect(place(known, [service("web")]).find((one) => one.key === "farwater-admin/east")?.services).toHaveLength(1);
  });
});
