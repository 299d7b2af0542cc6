import { useMemo, useState } from "react";

import type { Client } from "../api/client";
import type { Member, RolloutSurvey, VersionStage } from "../api/generated";
import type { List } from "../api/kinds";
import { Reading } from "../api/reading";
import { clusterName, COLUMNS_UP_TO, columnsOf, type Mark, marksOf, MEMBERS_UP_TO, PAGE, placesOf, type Row, rowIndex, rowsOf } from "../fleet/matrix";
import { countAll, PROGRESS_WORDS, type Standing, tallies, total } from "../fleet/rollout";
import { plain, shortRevision } from "../fleet/text";
import { useReading } from "./hooks";
import { Link, serviceQuery } from "./link";
import { Legend, ProgressMark } from "./progress-mark";

interface Props {
  client: Client;
  /** Path of the set in the API. */
  path: string;
  namespace: string;
  survey: RolloutSurvey;
}

/** The clusters to list. A small set lists all of them. A large set lists one step, page by page, after a click. */
interface Asked {
  step: string;
  /** Continue tokens of this page and of all pages before it. The first page's token is empty. */
  places: string[];
}

/** Versions × clusters. Small sets have a column for each cluster, larger sets one for each step. */
export function VersionMatrix({ client, path, namespace, survey }: Props) {
  const number = total(countAll(survey.stages));
  const small = number <= MEMBERS_UP_TO;
  const [asked, setAsked] = useState<Asked>({ step: "", places: [""] });
  const page = useMembers(client, path, small ? undefined : asked, survey.countedAt ?? "");
  const rows = useMemo(() => rowsOf(survey), [survey]);
  if (number === 0) return null;
  const columns = number <= COLUMNS_UP_TO && page.members.length > 0;
  return (
    <section aria-labelledby="versions-title">
      <h2 id="versions-title">Versions and clusters</h2>
      {page.trouble && (
        <p role="alert" className="trouble">
          The clusters can&rsquo;t be listed: {plain(page.trouble)}
        </p>
      )}
      <div className={columns ? "scroll fitted" : "scroll"} role="region" aria-label="Versions by cluster" tabIndex={0}>
        {columns ? (
          <ClusterColumns survey={survey} rows={rows} members={page.members} namespace={namespace} />
        ) : (
          <StepColumns survey={survey} rows={rows} page={page} asked={small ? undefined : asked} onAsk={setAsked} />
        )}
      </div>
      <Legend standings={shownIn(survey)} />
    </section>
  );
}

/** The marks that occur in the survey. */
function shownIn(survey: RolloutSurvey): Standing[] {
  const shown: Standing[] = tallies(countAll(survey.stages)).map(({ progress }) => progress);
  if (survey.versions.some((version) => version.stages.some((stage) => stage.kept))) shown.push("Kept");
  return shown;
}

interface Page {
  members: Member[];
  next: string;
  trouble?: string;
}

const NOTHING: Page = { members: [], next: "" };

function useMembers(client: Client, path: string, asked: Asked | undefined, version: string): Page {
  const query = asked && new URLSearchParams({ step: asked.step, limit: String(PAGE), continue: asked.places.at(-1) ?? "" });
  const address = asked && !asked.step ? "" : `${path}/members?${query ?? new URLSearchParams({ limit: String(MEMBERS_UP_TO) })}`;
  const reading = useMemo(
    () =>
      new Reading<Page>(async (signal) => {
        if (!address) return NOTHING;
        const list = await client.get<List<Member>>(address, signal);
        return { members: list.items ?? [], next: list.metadata.continue ?? "" };
      }),
    [client, address],
  );
  const { value, trouble } = useReading(reading, version);
  return { ...(value ?? NOTHING), ...(trouble && { trouble }) };
}

function RowHead({ row, newest }: { row: Row; newest: boolean }) {
  return (
    <th scope="row">
      {row.versions > 1 ? (
        <span>{row.versions} older versions</span>
      ) : (
        <span className="mono" title={plain(row.revision)}>
          {shortRevision(row.revision) || "nothing yet"}
        </span>
      )}
      {newest && <span className="chip-text">newest</span>}
      {row.author && (
        <span className="detail" title={plain(row.author)}>
          {plain(row.author).replace(/ *<[^>]*>$/, "")}
        </span>
      )}
    </th>
  );
}

/** A table with a column for each cluster, below its step. */
function ClusterColumns({ survey, rows, members, namespace }: { survey: RolloutSurvey; rows: Row[]; members: Member[]; namespace: string }) {
  const groups = useMemo(() => columnsOf(survey, members), [survey, members]);
  const all = groups.flatMap((group) => group.members.map((member, index) => ({ member, first: index === 0 })));
  return (
    <table className="matrix columns">
      <thead>
        <tr>
          <th scope="col" rowSpan={2}>
            Version
          </th>
          {groups.map(({ step, members: some }) => (
            <th key={step} scope="colgroup" colSpan={some.length} className="first">
              <bdi>{plain(step)}</bdi>
            </th>
          ))}
        </tr>
        <tr>
          {all.map(({ member, first }) => (
            <th key={member.cluster} scope="col" className={first ? "upright first" : "upright"} title={plain(member.cluster)}>
              {member.service ? (
                <Link query={serviceQuery(`${namespace}/${member.service}`)}>
                  <bdi>{plain(clusterName(member.cluster))}</bdi>
                </Link>
              ) : (
                <bdi>{plain(clusterName(member.cluster))}</bdi>
              )}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {rows.map((row, index) => (
          <tr key={`${row.revision}/${row.versions}`}>
            <RowHead row={row} newest={index === 0 && rows.length > 1} />
            {all.map(({ member, first }) => (
              <td key={member.cluster} className={first ? "first" : ""}>
                {placesOf(member)
                  .filter(({ revision }) => rowIndex(rows, revision) === index)
                  .map(({ standing }) => (
                    <Spot key={standing} standing={standing} member={member} />
                  ))}
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function told(member: Member, standing: Standing): string {
  const words = standing === "Kept" ? "has this version and waits for another" : plain(member.standing) || PROGRESS_WORDS[standing];
  return `${plain(member.cluster)} ${words}`;
}

function Spot({ standing, member }: { standing: Standing; member: Member }) {
  return (
    <span className="spot" title={told(member, standing)}>
      <ProgressMark standing={standing} />
      <span className="visually-hidden">{PROGRESS_WORDS[standing]}</span>
    </span>
  );
}

interface StepsProps {
  survey: RolloutSurvey;
  rows: Row[];
  page: Page;
  /** Undefined: all clusters are listed. */
  asked: Asked | undefined;
  onAsk: (asked: Asked) => void;
}

/** A table with a column for each step: numbers, and a mark for each listed cluster. */
function StepColumns({ survey, rows, page, asked, onAsk }: StepsProps) {
  const marks = useMemo(() => marksOf(rows, page.members), [rows, page.members]);
  const stages = survey.stages.filter((stage) => total(stage.counts) > 0);
  return (
    <table className="matrix steps">
      <thead>
        <tr>
          <th scope="col">Version</th>
          {stages.map(({ step, counts }) => (
            <th key={step} scope="col">
              <bdi>{plain(step)}</bdi> <span className="faint">{total(counts)}</span>
              {asked && <StepPages step={step} number={total(counts)} asked={asked} next={asked.step === step ? page.next : ""} onAsk={onAsk} />}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {rows.map((row, index) => (
          <tr key={`${row.revision}/${row.versions}`}>
            <RowHead row={row} newest={index === 0 && rows.length > 1} />
            {stages.map(({ step }) => (
              <td key={step}>
                <Tallies stage={row.stages.get(step)} />
                <Marks marks={marks[index]?.get(step)} />
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function StepPages({ step, number, asked, next, onAsk }: { step: string; number: number; asked: Asked; next: string; onAsk: (asked: Asked) => void }) {
  if (asked.step !== step) {
    return (
      <button type="button" className="chip" onClick={() => onAsk({ step, places: [""] })}>
        show clusters
      </button>
    );
  }
  const from = (asked.places.length - 1) * PAGE;
  return (
    <span className="pages">
      <button type="button" disabled={from === 0} aria-label={`clusters of ${plain(step)} before these`} onClick={() => onAsk({ step, places: asked.places.slice(0, -1) })}>
        ‹
      </button>
      {from + 1}–{Math.min(from + PAGE, number)}
      <button type="button" disabled={!next} aria-label={`clusters of ${plain(step)} after these`} onClick={() => onAsk({ step, places: [...asked.places, next] })}>
        ›
      </button>
    </span>
  );
}

function Tallies({ stage }: { stage: VersionStage | undefined }) {
  if (!stage) return <span className="faint">–</span>;
  return (
    <ul className="tallies short">
      {tallies(stage.counts).map(({ progress, count }) => (
        <Tallied key={progress} standing={progress} count={count} />
      ))}
      {(stage.kept ?? 0) > 0 && <Tallied standing="Kept" count={stage.kept ?? 0} />}
    </ul>
  );
}

function Tallied({ standing, count }: { standing: Standing; count: number }) {
  return (
    <li title={PROGRESS_WORDS[standing]}>
      <ProgressMark standing={standing} /> <b>{count}</b> <span className="visually-hidden">{PROGRESS_WORDS[standing]}</span>
    </li>
  );
}

/** Shows the numbers above as marks, with names as tooltips. The table below names the clusters that are not done. */
function Marks({ marks }: { marks: Mark[] | undefined }) {
  if (!marks) return null;
  return (
    <ul className="marks" aria-hidden="true">
      {marks.map(({ member, standing }) => (
        <li key={member.cluster} title={told(member, standing)}>
          <ProgressMark standing={standing} size={13} />
        </li>
      ))}
    </ul>
  );
}
