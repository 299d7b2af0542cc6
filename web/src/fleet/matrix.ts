// Versions × clusters: who has which version, who wants which, and how far it is. Pure.

import type { Member, RolloutSurvey, VersionStage } from "../api/generated";
import type { Standing } from "./rollout";

/** Up to so many clusters each is a column of its own; beyond, columns are steps. */
export const COLUMNS_UP_TO = 32;
/** Up to so many clusters all of them are read, in one answer. */
export const MEMBERS_UP_TO = 500;
/** Of larger sets: clusters of one step that are read and drawn at once. */
export const PAGE = 200;

export interface Row {
  /** Empty: nothing yet, or several versions. */
  revision: string;
  author: string;
  /** How many versions it stands for. */
  versions: number;
  /** By step. */
  stages: ReadonlyMap<string, VersionStage>;
}

export function rowsOf(survey: RolloutSurvey): Row[] {
  return survey.versions.map((version, index) => ({
    revision: version.revision,
    author: version.author ?? "",
    versions: index === survey.versions.length - 1 ? (survey.others ?? 1) : 1,
    stages: new Map(version.stages.map((stage) => [stage.step, stage])),
  }));
}

/** The rows that a cluster is in: with what it is to be, and, until it has that, with what it has. */
export function placesOf(member: Member): { revision: string; standing: Standing }[] {
  const { revision = "", wantedRevision = "", progress = "Waiting" } = member;
  if (!wantedRevision || wantedRevision === revision) return [{ revision, standing: progress }];
  const wanted = { revision: wantedRevision, standing: progress };
  return revision ? [wanted, { revision, standing: "Kept" as const }] : [wanted];
}

export interface Mark {
  member: Member;
  standing: Standing;
}

/** Which row a version is in: of those that have no row of their own the last. */
export function rowIndex(rows: readonly Row[], revision: string): number {
  const found = rows.findIndex((row) => row.versions === 1 && row.revision === revision);
  return found >= 0 ? found : rows.findIndex((row) => row.versions > 1);
}

/** By row and step, in the order of names. A member whose version has come since it was counted is in no row yet. */
export function marksOf(rows: readonly Row[], members: readonly Member[]): Map<string, Mark[]>[] {
  const marks: Map<string, Mark[]>[] = rows.map(() => new Map<string, Mark[]>());
  const sorted = [...members].sort((a, b) => a.cluster.localeCompare(b.cluster));
  for (const member of sorted) {
    for (const { revision, standing } of placesOf(member)) {
      const row = marks[rowIndex(rows, revision)];
      if (!row) continue;
      const step = member.step ?? "";
      const known = row.get(step);
      if (known) known.push({ member, standing });
      else row.set(step, [{ member, standing }]);
    }
  }
  return marks;
}

export interface Group {
  step: string;
  members: Member[];
}

/** Clusters as columns: step by step, and by name. */
export function columnsOf(survey: RolloutSurvey, members: readonly Member[]): Group[] {
  const groups: Group[] = survey.stages.map(({ step }) => ({ step, members: [] }));
  for (const member of members) groups.find(({ step }) => step === member.step)?.members.push(member);
  for (const group of groups) group.members.sort((a, b) => a.cluster.localeCompare(b.cluster));
  return groups.filter((group) => group.members.length > 0);
}

/** The name of a cluster; its namespace is worth a word only where there are several. */
export function clusterName(cluster: string): string {
  return cluster.split("/").pop() ?? cluster;
}
