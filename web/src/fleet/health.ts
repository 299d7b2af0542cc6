// The state of each resource, its word and its message. Pure, so that the page, its counts and its tests agree.

import type { ObjectReport } from "../api/generated";
import { type Cluster, condition, type Service } from "../api/kinds";

export type State = "healthy" | "progressing" | "failed" | "held" | "unknown";

/** Worst first: the order of lists that show what needs attention. */
export const STATES: readonly State[] = ["failed", "held", "progressing", "unknown", "healthy"];

export const WORDS: Record<State, string> = {
  healthy: "healthy",
  progressing: "progressing",
  failed: "failed",
  held: "held",
  unknown: "unknown",
};

export interface Verdict {
  state: State;
  /** One or two words. */
  word: string;
  /** One sentence. Empty: there is nothing to add. */
  message: string;
}

export function judgeService(service: Service): Verdict {
  const conditions = service.status?.conditions;
  const ready = condition(conditions, "Ready");
  const holds = (type: string) => condition(conditions, type)?.status === "True";
  const message = ready?.message ?? "";
  if (service.metadata.deletionTimestamp) return { state: "progressing", word: "being deleted", message };
  if (!ready) return { state: "unknown", word: "no status yet", message: "The hub has not reconciled this service yet." };
  if (ready.status === "True") return { state: "healthy", word: "healthy", message };
  if (ready.status === "Unknown" && service.spec.suspend) return { state: "held", word: "suspended", message };
  if (ready.status === "Unknown") return { state: "held", word: "held", message };
  if (holds("Stalled")) return { state: "failed", word: "failed", message };
  if (holds("PruneHeld")) return { state: "held", word: "prune held", message };
  return { state: "progressing", word: "progressing", message };
}

export function judgeCluster(cluster: Cluster): Verdict {
  const ready = condition(cluster.status?.conditions, "Ready");
  const message = ready?.message ?? "";
  if (ready?.status === "True") {
    if (cluster.spec.suspend) return { state: "held", word: "suspended", message: "Changes to this cluster are held." };
    return { state: "healthy", word: "ready", message };
  }
  if (cluster.granted) {
    return { state: ready?.status === "False" ? "failed" : "unknown", word: "not ready", message };
  }
  if (!cluster.status?.agentVersion && !cluster.status?.lastHeardTime) {
    return { state: "unknown", word: "never joined", message };
  }
  return { state: "failed", word: "silent", message };
}

export function judgeObject(report: ObjectReport): Verdict {
  const message = report.message ?? "";
  switch (report.sync) {
    case "Refused":
      return { state: "failed", word: "refused", message };
    case "Waiting":
      return { state: "progressing", word: "waiting", message };
    case "PruneHeld":
      return { state: "held", word: "prune held", message };
    case "Drifted":
      return { state: report.health === "Current" ? "held" : "unknown", word: "drifted", message };
    case "Unknown":
      return { state: "unknown", word: "unknown", message };
    case "Synced":
      switch (report.health) {
        case "Current":
          return { state: "healthy", word: "healthy", message };
        case "Failed":
          return { state: "failed", word: "failed", message };
        case "InProgress":
          return { state: "progressing", word: "progressing", message };
        case "Terminating":
          return { state: "progressing", word: "terminating", message };
        case "Unknown":
          return { state: "unknown", word: "unknown", message };
      }
  }
}

/** Number of verdicts in each state. */
export function count(verdicts: Iterable<Verdict>): Record<State, number> {
  const counts: Record<State, number> = { healthy: 0, progressing: 0, failed: 0, held: 0, unknown: 0 };
  for (const { state } of verdicts) counts[state] += 1;
  return counts;
}
