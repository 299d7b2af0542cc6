import { useEffect, useMemo, useRef, useState } from "react";

import { type Client, FARWATER } from "../api/client";
import type { Collection } from "../api/collection";
import type { Member, RolloutSurvey } from "../api/generated";
import { keyOf, type ServiceSet } from "../api/kinds";
import { Reading } from "../api/reading";
import { doneOf, judgeSet, pinNote, rolloutCommands, stepNote, type Story, tellStory } from "../fleet/rollout";
import { age, plain, sentence, shortRevision } from "../fleet/text";
import { CopyCommand } from "./copy-command";
import { useNow, useReading } from "./hooks";
import { Link, serviceQuery } from "./link";
import { Mark } from "./mark";
import { ProgressMark } from "./progress-mark";
import { RolloutGraph } from "./rollout-graph";
import { Announcer } from "./summary";
import { VersionMatrix } from "./version-matrix";

interface Props {
  /** `namespace/name` */
  name: string;
  collection: Collection<ServiceSet>;
  client: Client;
}

/** View of one set: the progress of its last rollout, by step and cluster. */
export function SetView({ name, collection, client }: Props) {
  const set = useMemo(() => [...collection.items.values()].find((one) => keyOf(one) === name), [collection.items, name]);
  const title = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    title.current?.focus();
    const before = document.title;
    document.title = `${name} – Farwater`;
    return () => void (document.title = before);
  }, [name]);
  return (
    <>
      <div className="set-head">
        <Link query="" className="back">
          ← Fleet
        </Link>
        <h1 ref={title} tabIndex={-1}>
          <bdi>{plain(name.split("/").pop())}</bdi> <span className="faint">{plain(name.split("/")[0])}</span>
        </h1>
        {set && <State set={set} />}
      </div>
      {set ? <Rollout key={set.metadata.uid} set={set} client={client} /> : <Missing name={name} phase={collection.phase} />}
    </>
  );
}

function Missing({ name, phase }: { name: string; phase: Collection<ServiceSet>["phase"] }) {
  if (phase === "loading") return <p className="empty">Loading service sets…</p>;
  if (phase === "refused") return null;
  return (
    <p className="empty">
      There is no ServiceSet {plain(name)}, or you may not read it. <Link query="">Back to the fleet</Link>
    </p>
  );
}

function State({ set }: { set: ServiceSet }) {
  const verdict = judgeSet(set);
  return (
    <span className={`with-mark word ${verdict.state}`}>
      <Mark state={verdict.state} /> {verdict.word}
    </span>
  );
}

function Rollout({ set, client }: { set: ServiceSet; client: Client }) {
  const { namespace = "", name, resourceVersion } = set.metadata;
  const path = `${FARWATER}/namespaces/${encodeURIComponent(namespace)}/servicesets/${encodeURIComponent(name)}`;
  const reading = useMemo(
    () => new Reading<RolloutSurvey>(async (signal) => (await client.get<{ status: RolloutSurvey }>(`${path}/rollout`, signal)).status),
    [client, path],
  );
  const { value: survey, trouble } = useReading(reading, resourceVersion);
  const now = useNow(1000);
  const story = tellStory(set, survey);
  const pinned = pinNote(set);
  const rollout = set.status?.rollout;
  const { done, all } = doneOf(set.status);
  return (
    <>
      <section className="story" aria-label="Rollout">
        <h2>{story.headline}</h2>
        {pinned && (
          <p className="held-box">
            <Mark state="held" /> {sentence(pinned)}
          </p>
        )}
        {all > 0 && (
          <p>
            <strong>{done}</strong> of {all} clusters are done.
          </p>
        )}
        <Because story={story} now={now} />
        {story.then && <p>{story.then}</p>}
        <Announcer sentence={`${story.headline}, ${done} of ${all} clusters are done`} />
      </section>
      <Problems set={set} />
      {trouble && (
        <p role="alert" className="trouble">
          The progress of the steps can&rsquo;t be read: {plain(trouble)}
          {survey && " The progress below is older."}
        </p>
      )}
      {!survey && !trouble && <p className="empty">Counting clusters…</p>}
      {survey && survey.stages.length > 0 && (
        <>
          <section aria-labelledby="graph-title">
            <h2 id="graph-title" className="visually-hidden">
              Steps
            </h2>
            <RolloutGraph survey={survey} step={rollout?.step ?? ""} note={stepNote(rollout?.phase)} />
          </section>
          <VersionMatrix client={client} path={path} namespace={namespace} survey={survey} />
          <Open survey={survey} namespace={namespace} now={now} all={all - done} />
        </>
      )}
      <section aria-labelledby="commands-title">
        <h2 id="commands-title">In a terminal</h2>
        <dl className="orders">
          {rolloutCommands(set).map(({ what, command }) => (
            <div key={command}>
              <dt>{what}</dt>
              <dd>
                <CopyCommand command={command} />
              </dd>
            </div>
          ))}
        </dl>
      </section>
    </>
  );
}

function Because({ story, now }: { story: Story; now: number }) {
  if (!story.because) return null;
  const { lead, member } = story.because;
  return (
    <p>
      {lead} <bdi className="strong">{plain(member.cluster)}</bdi>, which {sentence(standingOf(member))}
      {member.since && (
        <>
          , <span title={member.since}>{member.progress === "Failed" ? `${age(member.since, now)} ago` : `for ${age(member.since, now)}`}</span>
        </>
      )}
      .
    </p>
  );
}

/** The cluster's state as a predicate, such as `failed: crashes` or `is on its way`. It follows "which". */
function standingOf(member: Member): string {
  return (member.message || member.standing || "is not reconciled yet").replace(/\.$/, "");
}

/** Problems of the set other than its rollout. */
function Problems({ set }: { set: ServiceSet }) {
  const { clusters, errors = [], conditions = [] } = set.status ?? {};
  const braked = conditions.find(({ type, status }) => type === "Braked" && status === "True");
  const { failed = 0, leaving = 0 } = clusters ?? {};
  if (!braked && failed === 0 && leaving === 0) return null;
  return (
    <div className="held-box">
      {braked && (
        <p>
          <Mark state="held" /> {sentence(braked.message)}
        </p>
      )}
      {leaving > 0 && !braked && <p>{leaving === 1 ? "1 cluster is no longer selected and still has its service." : `${leaving} clusters are no longer selected and still have their services.`}</p>}
      {failed > 0 && (
        <>
          <p>
            <Mark state="failed" /> The service can&rsquo;t be created or updated on {failed === 1 ? "1 cluster" : `${failed} clusters`}:
          </p>
          <ul>
            {errors.map(({ cluster, message }) => (
              <li key={cluster}>
                <bdi className="strong">{plain(cluster)}</bdi>: {sentence(message)}
              </li>
            ))}
            {failed > errors.length && <li>and {failed - errors.length} more</li>}
          </ul>
        </>
      )}
    </div>
  );
}

/** Number of clusters that are named at first: the worst, and a few that only wait. */
const OPEN_SHOWN = 12;

/** Clusters that are not done, worst first. */
function Open({ survey, namespace, now, all }: { survey: RolloutSurvey; namespace: string; now: number; all: number }) {
  const [whole, setWhole] = useState(false);
  if (survey.open.length === 0) return null;
  const open = whole ? survey.open : survey.open.slice(0, OPEN_SHOWN);
  return (
    <section aria-labelledby="open-title">
      <h2 id="open-title">Not done</h2>
      <div className="scroll">
        <table>
          <thead>
            <tr>
              <th scope="col">Cluster</th>
              <th scope="col">State</th>
              <th scope="col">Step</th>
              <th scope="col">Version</th>
              <th scope="col">For</th>
            </tr>
          </thead>
          <tbody>
            {open.map((member) => (
              <tr key={member.cluster}>
                <th scope="row">
                  {member.service ? (
                    <Link query={serviceQuery(`${namespace}/${member.service}`)} row>
                      <bdi>{plain(member.cluster)}</bdi>
                    </Link>
                  ) : (
                    <bdi>{plain(member.cluster)}</bdi>
                  )}
                </th>
                <td className="standing">
                  <ProgressMark standing={member.progress ?? "Waiting"} /> {sentence(standingOf(member))}
                </td>
                <td>{plain(member.step)}</td>
                <td className="mono" title={plain(member.revision)}>
                  {shortRevision(member.revision) || "–"}
                  {member.wantedRevision && <span className="detail">→ {shortRevision(member.wantedRevision)}</span>}
                </td>
                <td className="nowrap" title={member.since}>
                  {member.since ? age(member.since, now) : "–"}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {open.length < survey.open.length && (
        <button type="button" className="more" onClick={() => setWhole(true)}>
          Show {survey.open.length - open.length} more
        </button>
      )}
      {open.length === survey.open.length && all > open.length && <p className="faint more">and {all - open.length} more: the command below lists them.</p>}
    </section>
  );
}
