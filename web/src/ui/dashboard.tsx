import { useCallback, useEffect, useMemo, useRef } from "react";

import { Client, FARWATER } from "../api/client";
import type { Collection } from "../api/collection";
import { Feed } from "../api/feed";
import type { Cluster, Resource, Service, ServiceSet } from "../api/kinds";
import { judgeCluster, judgeService, type State } from "../fleet/health";
import { place } from "../fleet/placement";
import { plain } from "../fleet/text";
import type { Session } from "../session";
import { Brand } from "./brand";
import { ClusterTable } from "./cluster-table";
import { FleetMap } from "./fleet-map";
import { go, useAddress, useFeed } from "./hooks";
import { useKeyboard } from "./keyboard";
import { Pill } from "./pill";
import { ServiceTable } from "./service-table";
import { setRowId, SetTable } from "./set-table";
import { SetView } from "./set-view";
import { Summary } from "./summary";
import { ThemeButton } from "./theme";

/** When an agent was last heard wakes no watch, so the clusters are read again this often while they are looked at. */
const HEARD_REFRESH_MS = 15_000;

interface Props {
  session: Session;
  onChange: (session: Session) => void;
  onLeave: (reason: string) => void;
}

export function Dashboard({ session, onChange, onLeave }: Props) {
  const { client, clusterFeed, serviceFeed, setFeed } = useFeeds(session, onLeave);
  const clusters = useFeed(clusterFeed);
  const services = useFeed(serviceFeed);
  const sets = useFeed(setFeed);
  const [set] = useAddress("set");
  const [filter, setFilter] = useAddress("q");
  const [state, setState] = useAddress("state");
  const [open, setOpen] = useAddress("open");
  const clear = useCallback(() => {
    setFilter("");
    setState("");
  }, [setFilter, setState]);
  const leave = useCallback(() => go(""), []);
  useKeyboard(set ? leave : clear);
  const left = useRef("");
  useEffect(() => {
    // Who comes back from a set is where it was left, as soon as that is drawn.
    const row = set ? null : document.getElementById(setRowId(left.current));
    if (row && document.activeElement === document.body) row.focus();
    if (set || row) left.current = set;
  }, [set, sets.items]);

  const places = useMemo(() => place(clusters.items.values(), services.items.values()), [clusters.items, services.items]);
  const verdicts = useMemo(() => [...services.items.values()].map(judgeService), [services.items]);
  const clusterVerdicts = useMemo(() => [...clusters.items.values()].map(judgeCluster), [clusters.items]);
  const opened = useMemo(() => new Set(open.split(",").filter(Boolean)), [open]);
  const toggle = (key: string) => {
    const next = new Set(opened);
    if (!next.delete(key)) next.add(key);
    setOpen([...next].join(","));
  };
  const reveal = (key: string) => {
    clear();
    setOpen([...opened, key].filter((one, i, all) => all.indexOf(one) === i).join(","));
    // The row is drawn by the time the frame after next begins.
    requestAnimationFrame(() => requestAnimationFrame(() => document.getElementById(rowId(key))?.focus()));
  };

  return (
    <>
      <header className="bar">
        <Brand />
        <Pill collections={[clusters, services, sets]} />
        <span className="spacer" />
        <span className="who" title="who the hub takes this token's bearer for">
          {plain(session.user)}
          {session.namespace && (
            <button type="button" className="chip" title="show every namespace" onClick={() => onChange({ token: session.token, user: session.user })}>
              {session.namespace} ×
            </button>
          )}
        </span>
        <ThemeButton />
        <button type="button" onClick={() => onLeave("You have signed out.")}>
          Sign out
        </button>
      </header>
      <main>
        <Refused collections={[clusters, services, sets]} />
        {set ? (
          <SetView name={set} collection={sets} client={client} />
        ) : (
          <>
            <h1 className="visually-hidden">Fleet</h1>
            <Summary services={verdicts} clusters={clusterVerdicts} loaded={services.phase !== "loading"} selected={state as State | ""} onSelect={setState} />
            <FleetMap places={places} loading={clusters.phase === "loading" || services.phase === "loading"} onOpen={reveal} />
            <SetTable collection={sets} />
            <ClusterTable collection={clusters} places={places} />
            <ServiceTable
              collection={services}
              places={places}
              client={client}
              filter={filter}
              onFilter={setFilter}
              state={state as State | ""}
              onState={setState}
              opened={opened}
              onToggle={toggle}
            />
          </>
        )}
      </main>
      <footer className="hints">
        {set ? (
          <>
            <kbd>j</kbd> <kbd>k</kbd> move · <kbd>Enter</kbd> open · <kbd>Esc</kbd> back to the fleet
          </>
        ) : (
          <>
            <kbd>/</kbd> filter · <kbd>j</kbd> <kbd>k</kbd> move · <kbd>Enter</kbd> open · <kbd>Esc</kbd> clear · in a terminal: <code>farwater tree -w</code>
          </>
        )}
      </footer>
    </>
  );
}

export function rowId(key: string): string {
  return `service-${key}`;
}

function useFeeds(session: Session, onLeave: (reason: string) => void) {
  const feeds = useMemo(() => {
    const client = new Client(session.token);
    const root = session.namespace ? `${FARWATER}/namespaces/${session.namespace}` : FARWATER;
    const signedOut = () => onLeave("The hub no longer accepts the token: it has expired or was revoked.");
    return {
      client,
      clusterFeed: new Feed<Cluster>(client, `${root}/clusters`, signedOut),
      serviceFeed: new Feed<Service>(client, `${root}/servicedeployments`, signedOut),
      setFeed: new Feed<ServiceSet>(client, `${root}/servicesets`, signedOut),
    };
  }, [session.token, session.namespace, onLeave]);
  useEffect(() => {
    const stop = new AbortController();
    void feeds.clusterFeed.run(stop.signal);
    void feeds.serviceFeed.run(stop.signal);
    void feeds.setFeed.run(stop.signal);
    const timer = setInterval(() => {
      if (document.visibilityState === "visible") void feeds.clusterFeed.refresh(stop.signal);
    }, HEARD_REFRESH_MS);
    return () => {
      clearInterval(timer);
      stop.abort();
    };
  }, [feeds]);
  return feeds;
}

function Refused({ collections }: { collections: Collection<Resource>[] }) {
  const refused = collections.filter((one) => one.phase === "refused");
  if (refused.length === 0) return null;
  return (
    <div role="alert" className="trouble">
      {refused.map((one) => (
        <p key={one.trouble}>{plain(one.trouble)}</p>
      ))}
      <p>What you may not read is not shown. Sign in with a namespace that you may read, or ask for the right.</p>
    </div>
  );
}
