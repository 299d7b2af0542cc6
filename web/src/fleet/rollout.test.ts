import { describe, expect, it } from "vitest";

import type { Condition, Member, ProgressCounts, RolloutStatus, RolloutSurvey, ServiceSetStatus } from "../api/generated";
import type { ServiceSet } from "../api/kinds";
import { clusterName, columnsOf, marksOf, placesOf, rowsOf } from "./matrix";
import { countAll, doneOf, judgeSet, judgeStage, pinNote, rolloutCommands, stageWord, stepNote, tallies, tellStory, total } from "./rollout";
import { approveCommand, cliCommand } from "./text";

const condition = (type: string, status: string, message = ""): Condition => ({ type, status, message, reason: "R", lastTransitionTime: "2026-01-01T00:00:00Z" });

function set(rollout: Partial<RolloutStatus> | undefined, conditions?: Condition[], name = "web"): ServiceSet {
  const status = {
    clusters: { matched: 4, ready: 1, failed: 0, leaving: 0 },
    ...(conditions && { conditions }),
    ...(rollout && { rollout: { number: 7, phase: "Complete", updated: 1, progressing: 0, failed: 0, deferred: 0, waiting: 0, ...rollout } }),
  } as ServiceSetStatus;
  return { metadata: { name, namespace: "team-a", uid: name, resourceVersion: "1" }, spec: {} as ServiceSet["spec"], status };
}

const counts = (some: Partial<ProgressCounts> = {}): ProgressCounts => ({ done: 0, soaking: 0, progressing: 0, failed: 0, deferred: 0, waiting: 0, still: 0, ...some });

const member = (cluster: string, step: string, rest: Partial<Member> = {}): Member => ({ cluster: `fleet/${cluster}`, state: "Progressing", step, ...rest });

describe("a set", () => {
  const stalled = [condition("Ready", "False", "why"), condition("Stalled", "True", "why")];
  const moves = [condition("Ready", "False"), condition("Reconciling", "True")];
  it.each([
    [undefined, undefined, "unknown", "no status yet"],
    [{}, [condition("Ready", "True")], "healthy", "healthy"],
    [{}, moves, "progressing", "not all healthy"],
    [{}, stalled, "failed", "failed"],
    [{ phase: "Progressing" }, moves, "progressing", "progressing"],
    [{ phase: "Progressing" }, stalled, "failed", "failed"],
    [{ phase: "Halted" }, stalled, "failed", "halted"],
    [{ phase: "Paused" }, moves, "held", "paused"],
    [{ phase: "OnHold" }, moves, "held", "on hold"],
    [{ phase: "Aborted" }, moves, "held", "aborted"],
    [{ phase: "RollingBack" }, moves, "progressing", "rolling back"],
    [{ phase: "Halted" }, [...stalled, condition("Braked", "True", "many")], "held", "braked"],
  ] as const)("in %j with %j is %s: %s", (rollout, conditions, state, word) => {
    expect(judgeSet(set(rollout, conditions && [...conditions]))).toMatchObject({ state, word });
  });

  it("that is being deleted is progressing, whatever its conditions say", () => {
    const deleted = set({}, [condition("Ready", "True")]);
    deleted.metadata.deletionTimestamp = "2026-01-01T00:00:00Z";
    expect(judgeSet(deleted)).toMatchObject({ state: "progressing", word: "being deleted" });
  });

  it("counts all clusters of its rollout, whatever their state", () => {
    expect(doneOf(set({ updated: 5, progressing: 1, failed: 2, deferred: 3, waiting: 4 }).status)).toEqual({ done: 5, all: 15 });
    expect(doneOf(undefined)).toEqual({ done: 0, all: 0 });
  });
});

describe("a stage", () => {
  it.each([
    [{}, "empty", "no clusters"],
    [{ done: 2 }, "done", "done"],
    [{ done: 2, deferred: 1, still: 1 }, "done", "done"],
    [{ done: 2, waiting: 1 }, "waiting", "partly done"],
    [{ waiting: 3 }, "waiting", "not started"],
    [{ done: 1, soaking: 1, waiting: 3 }, "moving", "progressing"],
    [{ done: 1, progressing: 1, failed: 1 }, "failed", "failed"],
  ] as const)("of %j is %s: %s", (some, state, word) => {
    expect([judgeStage(counts(some)), stageWord(counts(some))]).toEqual([state, word]);
  });

  it("names the states that occur, worst first", () => {
    expect(tallies(counts({ done: 3, failed: 1, soaking: 2 }))).toEqual([
      { progress: "Failed", count: 1 },
      { progress: "Soaking", count: 2 },
      { progress: "Done", count: 3 },
    ]);
    const stages = [counts({ done: 3, failed: 1 }), counts({ done: 1, waiting: 5 })].map((some) => ({ step: "x", counts: some }));
    expect(total(countAll(stages))).toBe(10);
  });
});

it("notes at the open step what the rollout does there", () => {
  expect((["Progressing", "Halted", "Paused", "Complete", undefined] as const).map(stepNote)).toEqual(["open now", "stopped here", "paused here", "", ""]);
});

describe("the story of a rollout", () => {
  const survey = (rest: Partial<RolloutSurvey>): RolloutSurvey => ({ stages: [], versions: [], open: [], unavailable: 1, maxUnavailable: 3, ...rest });
  it("names the cluster that stopped it", () => {
    const broken = member("a", "canary", { standing: "failed: crashes" });
    const story = tellStory(set({ phase: "Halted", haltedBy: "fleet/a" }), survey({ open: [member("b", "rest"), broken] }));
    expect(story.headline).toBe("Rollout 7 is halted");
    expect(story.because).toEqual({ lead: "It was stopped by", member: broken });
    expect(tellStory(set({ phase: "Halted", haltedBy: "fleet/a" }), undefined).because).toBeUndefined();
  });

  it("names the cluster that the next step waits for", () => {
    const waitsFor = member("b", "eu", { standing: "is healthy and soaks" });
    const story = tellStory(set({ phase: "Progressing", step: "eu" }), survey({ waitsFor }));
    expect(story).toEqual({ headline: "Rollout 7 is at step eu", because: { lead: "The next step waits for", member: waitsFor }, then: "1 of at most 3 clusters are unavailable." });
  });

  it("says that there is none yet", () => {
    for (const nothing of [set(undefined), set({ number: 0 })]) expect(tellStory(nothing, undefined).headline).toBe("No rollout yet");
  });
});

it("offers the commands that make sense now, quoted", () => {
  const verbs = (phase: RolloutStatus["phase"]) => rolloutCommands(set({ phase })).map(({ command }) => command.replace("farwater rollout ", "").replace(" web -n team-a", ""));
  expect(verbs("Complete")).toEqual(["status --watch"]);
  expect(verbs("Halted")).toEqual(["status --watch", "promote --past halt --reason 'say why'", "abort --reason 'say why'"]);
  expect(verbs("Paused")).toContain("resume");
  expect(verbs("Progressing")).toContain("pause --reason 'say why'");
  expect(verbs("Progressing")).toContain("promote --past step --reason 'say why'");
  expect(rolloutCommands(set({}, undefined, "x; rm -rf"))[0]?.command).toBe("farwater rollout status 'x; rm -rf' -n team-a --watch");
  const made = set({});
  made.metadata.ownerReferences = [{ kind: "ManagedNamespace", name: "shop" }];
  expect(rolloutCommands(made)[0]?.command).toBe("farwater rollout status managednamespace/shop -n team-a --watch");
});

// A test of the CLI parses each line of `commands.txt`.
it("prints only commands that the CLI is tested with", async () => {
  const phases = ["Complete", "Progressing", "Paused", "OnHold", "Halted", "RollingBack", "Aborted"] as const;
  const pinned = set({});
  pinned.spec.pin = { version: 3 };
  const made = set({});
  made.metadata.ownerReferences = [{ kind: "ManagedNamespace", name: "shop" }];
  const service = { name: "web", namespace: "team-a" };
  const ofSets = [...phases.map((phase) => set({ phase })), pinned, made].flatMap(rolloutCommands).map(({ command }) => command);
  const ofServices = [cliCommand("why", service), cliCommand("tree", service), cliCommand("objects", service), approveCommand(service, `sha256:${"1".repeat(64)}`)];
  const all = [...new Set([...ofSets, ...ofServices])].sort();
  await expect(`${all.join("\n")}\n`).toMatchFileSnapshot("commands.txt");
});

it("says which version a set is pinned to, by whom and why", () => {
  const pinned = set({});
  expect(pinNote(pinned)).toBe("");
  pinned.spec.pin = { version: 3, reason: "4 is slow" };
  pinned.status = { ...pinned.status, pinnedBy: "ada" } as ServiceSetStatus;
  expect(pinNote(pinned)).toBe("Pinned to version 3 by ada: 4 is slow");
});

describe("versions and clusters", () => {
  const stages = [
    { step: "canary", counts: counts({ done: 1 }) },
    { step: "rest", counts: counts({ waiting: 2 }) },
  ];
  const survey: RolloutSurvey = {
    stages,
    versions: [
      { revision: "2", author: "Ann", stages: [{ step: "canary", counts: counts({ done: 1 }) }, { step: "rest", counts: counts({ waiting: 2 }) }] },
      { revision: "1", stages: [{ step: "rest", counts: counts(), kept: 1 }] },
      { revision: "", stages: [{ step: "rest", counts: counts(), kept: 1 }] },
    ],
    others: 4,
    open: [],
    unavailable: 0,
    maxUnavailable: 1,
  };

  it("shows a cluster at its wanted and at its current version", () => {
    expect(placesOf(member("a", "rest", { revision: "1", wantedRevision: "2", progress: "Waiting" }))).toEqual([
      { revision: "2", standing: "Waiting" },
      { revision: "1", standing: "Kept" },
    ]);
    expect(placesOf(member("a", "rest", { revision: "2", progress: "Done" }))).toEqual([{ revision: "2", standing: "Done" }]);
    expect(placesOf(member("a", "rest", { wantedRevision: "2", progress: "Progressing" }))).toEqual([{ revision: "2", standing: "Progressing" }]);
    expect(placesOf(member("a", "rest"))).toEqual([{ revision: "", standing: "Waiting" }]);
  });

  it("have a row for each version, and one for all older ones", () => {
    const rows = rowsOf(survey);
    expect(rows.map(({ revision, author, versions }) => [revision, author, versions])).toEqual([
      ["2", "Ann", 1],
      ["1", "", 1],
      ["", "", 4],
    ]);
    const members = [
      member("c", "rest", { revision: "0", wantedRevision: "2" }),
      member("b", "rest", { revision: "1", wantedRevision: "2" }),
      member("a", "canary", { revision: "2", progress: "Done" }),
    ];
    const told = marksOf(rows, members).map((row) => [...row].map(([step, marks]) => `${step} ${marks.map(({ member: one, standing }) => `${clusterName(one.cluster)}:${standing}`).join(" ")}`));
    expect(told).toEqual([["canary a:Done", "rest b:Waiting c:Waiting"], ["rest b:Kept"], ["rest c:Kept"]]);
  });

  it("have columns by step and then by name", () => {
    const members = [member("c", "rest"), member("b", "rest"), member("a", "canary"), member("gone", "")];
    expect(columnsOf(survey, members).map(({ step, members: some }) => [step, some.map((one) => clusterName(one.cluster))])).toEqual([
      ["canary", ["a"]],
      ["rest", ["b", "c"]],
    ]);
  });
});
