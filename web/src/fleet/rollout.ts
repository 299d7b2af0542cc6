// Words and sentences about a set and its last rollout. Pure, so that the page and its tests agree.

import type { Member, Progress, ProgressCounts, RolloutPhase, RolloutSurvey, ServiceSetStatus, Stage } from "../api/generated";
import { condition, type ServiceSet } from "../api/kinds";
import type { Verdict } from "./health";
import { shellWord } from "./text";

/** Worst first, as the hub sorts them. */
export const PROGRESSES: readonly Progress[] = ["Failed", "Progressing", "Soaking", "Deferred", "Still", "Waiting", "Done"];

/** State of a cluster in a version's row: its progress to that version, or `Kept` if it has it and wants another. */
export type Standing = Progress | "Kept";

/** Words after a number: `12 done`. */
export const PROGRESS_WORDS: Record<Standing, string> = {
  Failed: "failed",
  Progressing: "progressing",
  Soaking: "healthy, soaking",
  Deferred: "silent, skipped",
  Still: "not taking part",
  Waiting: "waiting",
  Done: "done",
  Kept: "has it, waits for another",
};

/** Order of the parts of a bar that fills from the left. */
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

/** The counts that are not zero, in the given order. */
export function tallies(counts: ProgressCounts, order = PROGRESSES): Tally[] {
  return order.map((progress) => ({ progress, count: counts[FIELDS[progress]] })).filter(({ count }) => count > 0);
}

export function total(counts: ProgressCounts): number {
  return PROGRESSES.reduce((sum, progress) => sum + counts[FIELDS[progress]], 0);
}

/** Sum over all stages. */
export function countAll(stages: readonly Stage[]): ProgressCounts {
  const sum: ProgressCounts = { done: 0, soaking: 0, progressing: 0, failed: 0, deferred: 0, waiting: 0, still: 0 };
  for (const { counts } of stages) for (const field of Object.values(FIELDS)) sum[field] += counts[field];
  return sum;
}

export type StageState = "empty" | "failed" | "moving" | "waiting" | "done";

/** State of a whole stage. Clusters that are skipped or don't take part delay no stage. */
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
  waiting: "not started",
  done: "done",
};

/** The word for a stage. A waiting stage with clusters that are done is "partly done". */
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
  if (!ready) return { state: "unknown", word: "no status yet", message: "The hub has not reconciled this set yet." };
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

/** Note beside the open step. Empty: the rollout has no open step, or is on hold, rolling back or aborted. */
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

/** Number of clusters in a rollout, and how many of them are done. */
export function doneOf(status: ServiceSetStatus | undefined): { done: number; all: number } {
  const rollout = status?.rollout;
  if (!rollout) return { done: 0, all: 0 };
  const { updated, progressing, failed, deferred, waiting } = rollout;
  return { done: updated, all: updated + progressing + failed + deferred + waiting };
}

/** The first sentences about a rollout. */
export interface Story {
  headline: string;
  /** The cluster that delays or stopped the rollout, and the words before its name. */
  because?: { lead: string; member: Member };
  /** What happens next, or what a person can do. May be empty. */
  then: string;
}

export function tellStory(set: ServiceSet, survey: RolloutSurvey | undefined): Story {
  const rollout = set.status?.rollout;
  if (!rollout || rollout.number === 0) return { headline: "No rollout yet", then: "The first rollout starts when a source has a version for the set's clusters." };
  const name = `Rollout ${rollout.number}`;
  const halted = survey?.open.find((member) => member.cluster === rollout.haltedBy);
  const broken = halted && { lead: "It was stopped by", member: halted };
  const waits = survey?.waitsFor && { lead: "The next step waits for", member: survey.waitsFor };
  switch (rollout.phase) {
    case "Complete":
      return { headline: `${name} is complete`, then: rollout.deferred > 0 ? "Silent clusters are updated when they report again." : "" };
    case "Halted":
      return { headline: `${name} is halted`, ...(broken && { because: broken }), then: "The other clusters keep their version. A newer version goes to the failed clusters first. To continue with this version, promote it." };
    case "RollingBack":
      return { headline: `${name} is rolling back`, ...(broken && { because: broken }), then: "Changed clusters return to the last healthy version." };
    case "Aborted":
      return { headline: `${name} was aborted`, then: "Changed clusters were rolled back. To continue, release a newer version or promote this one." };
    case "Paused":
      return { headline: `${name} is paused`, then: "No cluster is updated or rolled back until the rollout is resumed." };
    case "OnHold":
      return { headline: `${name} is on hold`, then: "The rollout starts when it is promoted." };
    case "Progressing":
      return {
        headline: rollout.step ? `${name} is at step ${rollout.step}` : `${name} is progressing`,
        ...(waits && { because: waits }),
        then: survey && survey.unavailable > 0 ? `${survey.unavailable} of at most ${survey.maxUnavailable} clusters are unavailable.` : "",
      };
  }
}

/** The version that a set is pinned to, by whom and why. Empty: the set follows its sources. */
export function pinNote(set: ServiceSet): string {
  const pin = set.spec?.pin;
  if (!pin) return "";
  const by = set.status?.pinnedBy ? ` by ${set.status.pinnedBy}` : "";
  return `Pinned to version ${pin.version}${by}${pin.reason ? `: ${pin.reason}` : ""}`;
}

export interface Command {
  /** What the command does, in the imperative. */
  what: string;
  command: string;
}

/** Commands that make sense for a set now. The page itself changes nothing. */
export function rolloutCommands(set: ServiceSet): Command[] {
  const { name, namespace, ownerReferences } = set.metadata;
  const maker = ownerReferences?.find((owner) => owner.kind === "ManagedNamespace");
  const scope = `${maker ? `managednamespace/${shellWord(maker.name)}` : shellWord(name)}${namespace ? ` -n ${shellWord(namespace)}` : ""}`;
  const reason = "--reason 'say why'";
  const unpin = set.spec?.pin ? [{ what: "Unpin, and roll out the latest version", command: `farwater rollback serviceset/${shellWord(name)}${namespace ? ` -n ${shellWord(namespace)}` : ""} --clear` }] : [];
  const watch = { what: "Watch in a terminal", command: `farwater rollout status ${scope} --watch` };
  const pause = { what: "Pause", command: `farwater rollout pause ${scope} ${reason}` };
  const resume = { what: "Resume", command: `farwater rollout resume ${scope}` };
  const abort = { what: "Abort, and roll back changed clusters", command: `farwater rollout abort ${scope} ${reason}` };
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
      return [...unpin, watch, promote("Continue despite the failure", " --past halt"), abort];
    case "RollingBack":
      return [...unpin, watch, pause, promote("Continue despite the failure", " --past halt")];
    case "Aborted":
      return [...unpin, watch, promote("Try again", " --past halt")];
  }
}
