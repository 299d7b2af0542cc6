import type { State } from "../fleet/health";

/** A shape for each state: circle healthy, half circle progressing, diamond failed, bars held, dashed ring unknown. */
export function Mark({ state, label }: { state: State; label?: string }) {
  const named = label ? { role: "img", "aria-label": label } : { "aria-hidden": true };
  return (
    <svg className={`mark ${state}`} viewBox="0 0 16 16" width="16" height="16" {...named}>
      {SHAPES[state]}
    </svg>
  );
}

export const SHAPES: Record<State, React.ReactNode> = {
  healthy: (
    <>
      <circle cx="8" cy="8" r="7" className="fill" />
      <path d="M4.800 8.300l2.200 2.200 4.200-4.600" className="ink" />
    </>
  ),
  progressing: (
    <>
      <circle cx="8" cy="8" r="6.200" className="line" />
      <path d="M8 3.500a4.500 4.500 0 0 1 0 9z" className="fill" />
    </>
  ),
  failed: (
    <>
      <path d="M8 .8L15.200 8 8 15.200.8 8z" className="fill" />
      <path d="M8 4.600v4.200M8 11v.2" className="ink" />
    </>
  ),
  held: (
    <>
      <rect x="1.500" y="1.500" width="13" height="13" rx="2.500" className="fill" />
      <path d="M6 5v6M10 5v6" className="ink" />
    </>
  ),
  unknown: (
    <>
      <circle cx="8" cy="8" r="6.200" className="line dashed" />
      <path d="M6.300 6.500c0-2.200 3.500-2.200 3.500 0 0 1.300-1.700 1.300-1.700 2.700M8.100 11.300v.2" className="stroke" />
    </>
  ),
};
