import { PROGRESS_WORDS, type Standing } from "../fleet/rollout";

/** Where a cluster is, as a shape: a tick is done, a ring around one soaks, half is on its way, pointed is broken, barred stands
 * still, dashed is silent, open waits, a small dot is a version that is left. */
export function ProgressMark({ standing, size = 16 }: { standing: Standing; size?: number }) {
  return (
    <svg className={`mark ${CLASSES[standing]}`} viewBox="0 0 16 16" width={size} height={size} aria-hidden="true">
      {SHAPES[standing]}
    </svg>
  );
}

/** The same shapes with their words: what colours repeat. */
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

const SHAPES: Record<Standing, React.ReactNode> = {
  Done: (
    <>
      <circle cx="8" cy="8" r="7" className="fill" />
      <path d="M4.800 8.300l2.200 2.200 4.200-4.600" className="ink" />
    </>
  ),
  Soaking: (
    <>
      <circle cx="8" cy="8" r="6.200" className="line" />
      <path d="M5 8.200l2.100 2.100 3.900-4.300" className="line" />
    </>
  ),
  Progressing: (
    <>
      <circle cx="8" cy="8" r="6.200" className="line" />
      <path d="M8 3.500a4.500 4.500 0 0 1 0 9z" className="fill" />
    </>
  ),
  Failed: (
    <>
      <path d="M8 .8L15.200 8 8 15.200.8 8z" className="fill" />
      <path d="M8 4.600v4.200M8 11v.2" className="ink" />
    </>
  ),
  Deferred: <circle cx="8" cy="8" r="6.200" className="line dashed" />,
  Still: (
    <>
      <rect x="1.500" y="1.500" width="13" height="13" rx="2.500" className="fill" />
      <path d="M6 5v6M10 5v6" className="ink" />
    </>
  ),
  Waiting: <circle cx="8" cy="8" r="5" className="stroke" />,
  Kept: <circle cx="8" cy="8" r="2.800" className="fill" />,
};
