// Versions × clusters: the version of each cluster, the version that it wants, and its progress. Pure.

import type { Member, RolloutSurvey, VersionStage } from "../api/generated";
import type { Standing } from "./rollout";

/** Maximum number of clusters with one column each. Larger sets have one column for each step. */
export const COLUMNS_UP_TO = 32;
/** Maximum number of clusters that are all read at once, in one response. */
export const MEMBERS_UP_TO = 500;
/** Page size for larger sets: clusters of one step that are read and drawn at once. */
export const PAGE = 200;

export interface Row {
  /** Empty: no version yet, or several versions. */
  revision: string;
  author: string;
  /** Number of versions that the row stands for. */
  versions: number;
  /** Stages by the name of their step. */
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

/** Rows that show a cluster: the version that it wants, and its current version until it has the wanted one. */
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

/** Index of a version's row. Versions without a row of their own share the last row. */
export function rowIndex(rows: readonly Row[], revision: string): number {
  const found = rows.findIndex((row) => row.versions === 1 && row.revision === revision);
  return found >= 0 ? found : rows.findIndex((row) => row.versions > 1);
}

/** Marks by row and step, sorted by cluster. A member whose version is newer than the survey's count has no row yet. */
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

/** Columns of clusters, by step and then by name. */
export function columnsOf(survey: RolloutSurvey, members: readonly Member[]): Group[] {
  const groups: Group[] = survey.stages.map(({ step }) => ({ step, members: [] }));
  for (const member of members) groups.find(({ step }) => step === member.step)?.members.push(member);
  for (const group of groups) group.members.sort((a, b) => a.cluster.localeCompare(b.cluster));
  return groups.filter((group) => group.members.length > 0);
}

/** Name of a cluster, without its namespace. */
export function clusterName(cluster: string): string {
  return cluster.split("/").pop() ?? cluster;
}
