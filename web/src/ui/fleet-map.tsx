import { keyOf } from "../api/kinds";
import { judgeCluster, judgeService, type Verdict } from "../fleet/health";
import type { Place } from "../fleet/placement";
import { plain } from "../fleet/text";
import { Mark } from "./mark";

/** Clusters with more services show cells without names. The table below names them. */
const NAMED_UP_TO = 24;
/** Maximum number of cells for a cluster. The remaining services are only counted. */
const CELLS_UP_TO = 400;

interface Props {
  places: Place[];
  loading: boolean;
  onOpen: (key: string) => void;
}

/** A map of the fleet: a card for each cluster, a cell for each service. The tables below show the same data. */
export function FleetMap({ places, loading, onOpen }: Props) {
  if (places.length === 0) {
    return loading ? <div className="map skeleton" aria-hidden="true" /> : null;
  }
  return (
    <section aria-labelledby="map-title">
      <h2 id="map-title" className="visually-hidden">
        Fleet map
      </h2>
      <div className="map">
        {places.map((one) => (
          <Card key={one.key} place={one} onOpen={onOpen} />
        ))}
      </div>
    </section>
  );
}

function Card({ place, onOpen }: { place: Place; onOpen: (key: string) => void }) {
  const verdict: Verdict = place.cluster
    ? judgeCluster(place.cluster)
    : { state: "unknown", word: "not readable", message: "You may not read this cluster." };
  const [namespace, name] = place.cluster ? [place.cluster.metadata.namespace, place.cluster.metadata.name] : ["", place.key];
  const shown = place.services.slice(0, CELLS_UP_TO);
  const named = place.services.length <= NAMED_UP_TO;
  return (
    <article className={`card ${verdict.state}`} aria-label={`cluster ${plain(place.key)}: ${verdict.word}`}>
      <header>
        <Mark state={verdict.state} />
        <h3>
          <bdi>{plain(name)}</bdi>
        </h3>
        <span className="faint">
          <bdi>{plain(namespace)}</bdi>
        </span>
        <span className={`word ${verdict.state}`}>{verdict.word}</span>
      </header>
      {place.services.length === 0 && <p className="faint">No services on this cluster.</p>}
      <ul className={named ? "cells named" : "cells"}>
        {shown.map((service) => {
          const health = judgeService(service);
          const key = keyOf(service);
          const label = `${plain(service.metadata.name)}: ${health.word}`;
          return (
            <li key={service.metadata.uid}>
              <button type="button" className={`cell ${health.state}`} aria-label={label} title={label} onClick={() => onOpen(key)}>
                <Mark state={health.state} />
                {named && <bdi>{plain(service.metadata.name)}</bdi>}
              </button>
            </li>
          );
        })}
      </ul>
      {place.services.length > shown.length && <p className="faint">and {place.services.length - shown.length} more</p>}
    </article>
  );
}
