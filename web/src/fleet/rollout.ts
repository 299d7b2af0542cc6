// What is said of a set and of how its last change spreads: pure, so that the page and its tests agree.

import type { Member, Progress, ProgressCounts, RolloutPhase, RolloutSurvey, ServiceSetStatus, Stage } from "../api/generated";
import { condition, type ServiceSet } from "../api/kinds";
import type { Verdict } from "./health";
import { shellWord } from "./text";

/** Worst first, as the hub sorts them. */
export const PROGRESSES: readonly Progress[] = ["Failed", "Progressing", "Soaking", "Deferred", "Still", "Waiting", "Done"];

/** Where a cluster is in a version's row: on its way to it, or with it while it waits for another. */
export type Standing = Progress | "Kept";

/** What stands after a number: `12 done`. */
export const PROGRESS_WORDS: Record<Standing, string> = {
  Failed: "failed",
  Progressing: "on the way",
  Soaking: "healthy, soaking",
  Deferred: "silent, passed over",
  Still: "standing still",
  Waiting: "waiting",
  Done: "done",
  Kept: "here, for another",
};

/** As in a bar that fills from the left. */
export const BAR_ORDER: readonly Progress[] = ["Done", "Soaking", "Progressing", "Failed", "Deferred", "Still", "Waiting"];

const FIELDS: Record<Progress, keyof ProgressCounts> = {
  Failed: "failed",
  Progressing: "progressing",
  Soaking: "soaking",
  Deferred: "deferred",
  Still: "still",
  Waiting: "waiting",
  Done: "done",
};

export interface Tally {
  progress: Progress;
  count: number;
}

/** Those that are more than none. */
export function tallies(counts: ProgressCounts, order = PROGRESSES): Tally[] {
  return order.map((progress) => ({ progress, count: counts[FIELDS[progress]] })).filter(({ count }) => count > 0);
}

export function total(counts: ProgressCounts): number {
  return PROGRESSES.reduce((sum, progress) => sum + counts[FIELDS[progress]], 0);
}

/** Over all stages. */
export function countAll(stages: readonly Stage[]): ProgressCounts {
  const sum: ProgressCounts = { done: 0, soaking: 0, progressing: 0, failed: 0, deferred: 0, waiting: 0, still: 0 };
  for (const { counts } of stages) for (const field of Object.values(FIELDS)) sum[field] += counts[field];
  return sum;
}

export type StageState = "empty" | "failed" | "moving" | "waiting" | "done";

/** What a stage as a whole is: of a step nobody waits for who is passed over or stands still. */
export function judgeStage(counts: ProgressCounts): StageState {
  if (total(counts) === 0) return "empty";
  if (counts.failed > 0) return "failed";
  if (counts.progressing + counts.soaking > 0) return "moving";
  return counts.waiting > 0 ? "waiting" : "done";
}

const STAGE_WORDS: Record<StageState, string> = {
  empty: "no clusters",
  failed: "failed",
  moving: "progressing",
  waiting: "not begun",
  done: "done",
};

/** A stage that waits is not begun only where nobody in it has got through. */
export function stageWord(counts: ProgressCounts): string {
  const state = judgeStage(counts);
  return state === "waiting" && counts.done > 0 ? "partly done" : STAGE_WORDS[state];
}

const PHASE_WORDS: Record<RolloutPhase, string> = {
  Complete: "complete",
  Progressing: "progressing",
  Paused: "paused",
  OnHold: "on hold",
  Halted: "halted",
  RollingBack: "rolling back",
  Aborted: "aborted",
};

export function judgeSet(set: ServiceSet): Verdict {
  const { status } = set;
  const ready = condition(status?.conditions, "Ready");
  const message = ready?.message ?? "";
  if (set.metadata.deletionTimestamp) return { state: "progressing", word: "being deleted", message };
  if (!ready) return { state: "unknown", word: "no status yet", message: "The hub has not looked at it yet." };
  const braked = condition(status?.conditions, "Braked");
  if (braked?.status === "True") return { state: "held", word: "braked", message: braked.message };
  const phase = status?.rollout?.phase ?? "Complete";
  const word = PHASE_WORDS[phase];
  switch (phase) {
    case "Halted":
      return { state: "failed", word, message };
    case "Paused":
    case "OnHold":
    case "Aborted":
      return { state: "held", word, message };
    case "RollingBack":
    case "Progressing":
      if (condition(status?.conditions, "Stalled")?.status === "True") return { state: "failed", word: "failed", message };
      return { state: "progressing", word, message };
    case "Complete":
      if (ready.status === "True") return { state: "healthy", word: "healthy", message };
      if (condition(status?.conditions, "Stalled")?.status === "True") return { state: "failed", word: "failed", message };
      return { state: "progressing", word: "not all healthy", message };
  }
}

/** What is said of the step that is open; empty: nothing moves, or another way. */
export function stepNote(phase: RolloutPhase | undefined): string {
  switch (phase) {
    case "Progressing":
      return "open now";
    case "Halted":
      return "stopped here";
    case "Paused":
      return "paused here";
    default:
      return "";
  }
}

/** Clusters that a rollout counts, and those of them that are done. */
export function doneOf(status: ServiceSetStatus | undefined): { done: number; all: number } {
  const rollout = status?.rollout;
  if (!rollout) return { done: 0, all: 0 };
  const { updated, progressing, failed, deferred, waiting } = rollout;
  return { done: updated, all: updated + progressing + failed + deferred + waiting };
}

/** What of a rollout is told first. */
export interface Story {
  headline: string;
  /** The cluster that it is about, and how that is brought in. */
  because?: { lead: string; member: Member };
  /** What goes on by itself, or what somebody can do. */
  then: string;
}

export function tellStory(set: ServiceSet, survey: RolloutSurvey | undefined): Story {
  const rollout = set.status?.rollout;
  if (!rollout || rollout.number === 0) return { headline: "Nothing was rolled out yet", then: "The first rollout begins when a source has something for its clusters." };
  const name = `Rollout ${rollout.number}`;
  const halted = survey?.open.find((member) => member.cluster === rollout.haltedBy);
  const broken = halted && { lead: "It was stopped by", member: halted };
  const waits = survey?.waitsFor && { lead: "The next step waits for", member: survey.waitsFor };
  switch (rollout.phase) {
    case "Complete":
      return { headline: `${name} is complete`, then: rollout.deferred > 0 ? "Silent clusters get it when they are heard." : "" };
    case "Halted":
      return { headline: `${name} is halted`, ...(broken && { because: broken }), then: "The others keep what they have. A newer version goes to the broken clusters first; promote goes on as it is." };
    case "RollingBack":
      return { headline: `${name} goes back`, ...(broken && { because: broken }), then: "What has changed gets again what was healthy before." };
    case "Aborted":
      return { headline: `${name} was aborted`, then: "What had changed was taken back. A newer version, or promote, goes on." };
    case "Paused":
      return { headline: `${name} is paused`, then: "Nothing is begun and nothing taken back until it is resumed." };
    case "OnHold":
      return { headline: `${name} is on hold`, then: "It begins when somebody promotes it." };
    case "Progressing":
      return {
        headline: rollout.step ? `${name} is at step ${rollout.step}` : `${name} is progressing`,
        ...(waits && { because: waits }),
        then: survey && survey.unavailable > 0 ? `${survey.unavailable} of at most ${survey.maxUnavailable} clusters are unavailable.` : "",
      };
  }
}

/** The version that a set is pinned to, by a person; empty: it follows its sources. */
export function pinNote(set: ServiceSet): string {
  const pin = set.spec?.pin;
  if (!pin) return "";
  const by = set.status?.pinnedBy ? ` by ${set.status.pinnedBy}` : "";
  return `Pinned to version ${pin.version}${by}${pin.reason ? `: ${pin.reason}` : ""}`;
}

export interface Command {
  /** What it is good for, as a beginning of a sentence. */
  what: string;
  command: string;
}

/** What somebody can say of a set now. The page itself orders nothing. */
export function rolloutCommands(set: ServiceSet): Command[] {
  const { name, namespace, ownerReferences } = set.metadata;
  const maker = ownerReferences?.find((owner) => owner.kind === "ManagedNamespace");
  const scope = `${maker ? `managednamespace/${shellWord(maker.name)}` : shellWord(name)}${namespace ? ` -n ${shellWord(namespace)}` : ""}`;
  const reason = "--reason 'say why'";
  const unpin = set.spec?.pin ? [{ what: "Unpin, and roll out what the sources have", command: `farwater rollback serviceset/${shellWord(name)}${namespace ? ` -n ${shellWord(namespace)}` : ""} --clear` }] : [];
  const watch = { what: "The same in a terminal", command: `farwater rollout status ${scope} --watch` };
  const pause = { what: "Pause", command: `farwater rollout pause ${scope} ${reason}` };
  const resume = { what: "Resume", command: `farwater rollout resume ${scope}` };
  const abort = { what: "Abort, and roll back what has changed", command: `farwater rollout abort ${scope} ${reason}` };
  const promote = (what: string, past: string) => ({ what, command: `farwater rollout promote ${scope}${past} ${reason}` });
  switch (set.status?.rollout?.phase ?? "Complete") {
    case "Complete":
      return [...unpin, watch];
    case "Progressing":
      return [...unpin, watch, pause, promote("Skip the soak", ""), promote("Skip the rest of this step", " --past step"), abort];
    case "Paused":
      return [...unpin, watch, resume, abort];
    case "OnHold":
      return [...unpin, watch, promote("Start", ""), abort];
    case "Halted":
      return [...unpin, watch, promote("Continue in spite of the failure", " --past halt"), abort];
    case "RollingBack":
      return [...unpin, watch, pause, promote("Continue in spite of the failure", " --past halt")];
    case "Aborted":
      return [...unpin, watch, promote("Try again", " --past halt")];
  }
}
