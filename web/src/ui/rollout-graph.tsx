import type { ProgressCounts, RolloutSurvey } from "../api/generated";
import { BAR_ORDER, countAll, judgeStage, PROGRESS_WORDS, stageWord, tallies, total } from "../fleet/rollout";
import { plain } from "../fleet/text";
import { ProgressMark } from "./progress-mark";

interface Props {
  survey: RolloutSurvey;
  /** The open step. Empty: every step is open. */
  step: string;
  /** Note beside the open step. Empty: no note. */
  note: string;
}

/** How a change spreads through a set: one stage after the other, each with the progress of its clusters. The text
 * repeats everything that the bars show. */
export function RolloutGraph({ survey, step, note }: Props) {
  const { stages } = survey;
  const all = countAll(stages);
  const number = total(all);
  return (
    <ol className="stages">
      {stages.map((stage) => (
        <Stage key={stage.step} name={stage.step} counts={stage.counts} note={stage.step === step ? note : ""} />
      ))}
      <li className={`stage end ${number > 0 && all.done === number ? "done" : "waiting"}`}>
        <h3>everywhere</h3>
        <p className="stage-figure">
          <strong>{all.done}</strong>/{number} done
        </p>
        <StackedBar counts={all} />
      </li>
    </ol>
  );
}

function Stage({ name, counts, note }: { name: string; counts: ProgressCounts; note: string }) {
  const state = judgeStage(counts);
  const number = total(counts);
  return (
    <li className={`stage ${state}`} {...(note && { "aria-current": "step" as const })}>
      <h3>
        <bdi>{plain(name)}</bdi>
      </h3>
      <p className="stage-word">
        {stageWord(counts)}
        {note && <span className="chip-text">{note}</span>}
      </p>
      {number > 0 && <StackedBar counts={counts} />}
      <ul className="tallies">
        {tallies(counts).map(({ progress, count }) => (
          <li key={progress}>
            <ProgressMark standing={progress} /> <b>{count}</b> {PROGRESS_WORDS[progress]}
          </li>
        ))}
      </ul>
    </li>
  );
}

const WIDTH = 200;

/** Shows the numbers beside it as a bar. */
export function StackedBar({ counts }: { counts: ProgressCounts }) {
  const number = total(counts);
  let at = 0;
  return (
    <svg className="stack" viewBox={`0 0 ${WIDTH} 8`} width="100%" height="8" preserveAspectRatio="none" aria-hidden="true">
      <rect width={WIDTH} height="8" className="ground" />
      {tallies(counts, BAR_ORDER).map(({ progress, count }) => {
        const x = at;
        // One cluster of ten thousand must still be visible.
        const width = Math.max(1, (count / number) * WIDTH);
        at += width;
        return <rect key={progress} x={x} width={width} height="8" className={`part ${progress.toLowerCase()}`} />;
      })}
    </svg>
  );
}
