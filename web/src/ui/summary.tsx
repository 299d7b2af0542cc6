import { useEffect, useRef, useState } from "react";

import { count, type State, STATES, type Verdict, WORDS } from "../fleet/health";
import { Mark } from "./mark";

/** Minimum time between two announcements, so that a screen reader does not speak all the time. */
const ANNOUNCE_MS = 5000;

interface Props {
  services: Verdict[];
  clusters: Verdict[];
  loaded: boolean;
  selected: State | "";
  onSelect: (state: string) => void;
}

export function Summary({ services, clusters, loaded, selected, onSelect }: Props) {
  const counts = count(services);
  const ready = clusters.filter((verdict) => verdict.state === "healthy").length;
  const sentence = loaded
    ? `${ready} of ${clusters.length} clusters ready, ${counts.healthy} of ${services.length} services healthy`
    : "";
  return (
    <section className="summary" aria-label="Summary">
      <div className="figure">
        <strong>
          {ready}
          <small>/{clusters.length}</small>
        </strong>
        <span>clusters ready</span>
      </div>
      <div className="figure">
        <strong>
          {counts.healthy}
          <small>/{services.length}</small>
        </strong>
        <span>services healthy</span>
      </div>
      <div className="states" role="group" aria-label="Filter services by state">
        {STATES.filter((state) => counts[state] > 0 || state === selected).map((state) => (
          <button
            key={state}
            type="button"
            className="state-button"
            aria-pressed={selected === state}
            onClick={() => onSelect(selected === state ? "" : state)}
          >
            <Mark state={state} /> <b>{counts[state]}</b> {WORDS[state]}
          </button>
        ))}
      </div>
      <Announcer sentence={sentence} />
    </section>
  );
}

/** Announces the sentence to screen readers, but not too often. */
export function Announcer({ sentence }: { sentence: string }) {
  const [said, setSaid] = useState("");
  const last = useRef(0);
  useEffect(() => {
    const wait = Math.max(0, last.current + ANNOUNCE_MS - Date.now());
    const timer = setTimeout(() => {
      last.current = Date.now();
      setSaid(sentence);
    }, wait);
    return () => clearTimeout(timer);
  }, [sentence]);
  return (
    <p className="visually-hidden" aria-live="polite">
      {said}
    </p>
  );
}
