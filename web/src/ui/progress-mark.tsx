import { PROGRESS_WORDS, type Standing } from "../fleet/rollout";
import { SHAPES } from "./mark";

/** A shape for each progress: filled tick done, ringed tick soaking, half circle progressing, diamond failed, bars not
 * taking part, dashed ring silent, open ring waiting, small dot a version that the cluster is about to leave. */
export function ProgressMark({ standing, size = 16 }: { standing: Standing; size?: number }) {
  return (
    <svg className={`mark ${CLASSES[standing]}`} viewBox="0 0 16 16" width={size} height={size} aria-hidden="true">
      {STANDINGS[standing]}
    </svg>
  );
}

/** The shapes with their words. Colours only repeat them. */
export function Legend({ standings }: { standings: readonly Standing[] }) {
  return (
    <ul className="legend" aria-label="Marks">
      {standings.map((standing) => (
        <li key={standing} className="with-mark">
          <ProgressMark standing={standing} /> {PROGRESS_WORDS[standing]}
        </li>
      ))}
    </ul>
  );
}

const CLASSES: Record<Standing, string> = {
  Done: "healthy",
  Soaking: "healthy",
  Progressing: "progressing",
  Failed: "failed",
  Deferred: "unknown",
  Still: "held",
  Waiting: "unknown",
  Kept: "unknown",
};

const STANDINGS: Record<Standing, React.ReactNode> = {
  Done: SHAPES.healthy,
  Soaking: (
    <>
      <circle cx="8" cy="8" r="6.200" className="line" />
      <path d="M5 8.200l2.100 2.100 3.900-4.300" className="line" />
    </>
  ),
  Progressing: SHAPES.progressing,
  Failed: SHAPES.failed,
  Deferred: <circle cx="8" cy="8" r="6.200" className="line dashed" />,
  Still: SHAPES.held,
  Waiting: <circle cx="8" cy="8" r="5" className="stroke" />,
  Kept: <circle cx="8" cy="8" r="2.800" className="fill" />,
};
