import { useCallback, useEffect, useMemo, useRef } from "react";

import { Client, FARWATER } from "../api/client";
import type { Collection } from "../api/collection";
import { Feed } from "../api/feed";
import { Reading } from "../api/reading";
import type { Cluster, Namespace, Resource, Service, ServiceSet, Source } from "../api/kinds";
import { attention, type Notice } from "../fleet/attention";
import { type GrantedCluster, withGranted } from "../fleet/granted";
import { judgeCluster, judgeService, type State } from "../fleet/health";
import { ADMIN_NAMESPACE, place } from "../fleet/placement";
import { plain, sentence } from "../fleet/text";
import type { Session } from "../session";
import { Brand } from "./brand";
import { ClusterTable } from "./cluster-table";
import { FleetMap } from "./fleet-map";
import { go, useAddress, useFeed, useReading } from "./hooks";
import { useKeyboard } from "./keyboard";
import { Mark } from "./mark";
import { Pill } from "./pill";
import { ServiceTable } from "./service-table";
import { setRowId, SetTable } from "./set-table";
import { SetView } from "./set-view";
import { Summary } from "./summary";
import { ThemeButton } from "./theme";

/** A new `lastHeardTime` wakes no watch, so a visible page lists the clusters again at this interval. */
const HEARD_REFRESH_MS = 15_000;

interface Props {
  session: Session;
  onChange: (session: Session) => void;
  onLeave: (reason: string) => void;
}

export function Dashboard({ session, onChange, onLeave }: Props) {
  const { client, clusterFeed, serviceFeed, setFeed, gitFeed, helmFeed, ociFeed, namespaceFeed } = useFeeds(session, onLeave);
  const clusters = useFeed(clusterFeed);
  const services = useFeed(serviceFeed);
  const sets = useFeed(setFeed);
  const [git, helm, oci, namespaces] = [useFeed(gitFeed), useFeed(helmFeed), useFeed(ociFeed), useFeed(namespaceFeed)];
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
    // After a set is closed, focus its row again as soon as the row is drawn.
    const row = set ? null : document.getElementById(setRowId(left.current));
    if (row && document.activeElement === document.body) row.focus();
    if (set || row) left.current = set;
  }, [set, sets.items]);

  const { value: granted } = useReading(useGranted(client, session.namespace), "");
  const known = useMemo(() => withGranted(clusters.items.values(), granted ?? []), [clusters.items, granted]);
  const places = useMemo(() => place(known, services.items.values()), [known, services.items]);
  const verdicts = useMemo(() => [...services.items.values()].map(judgeService), [services.items]);
  const clusterVerdicts = useMemo(() => known.map(judgeCluster), [known]);
  const notices = useMemo(() => {
    const sources = [git, helm, oci].flatMap(({ items }) => [...items.values()]);
    return attention(namespaces.items.values(), sources, services.items.values());
  }, [git, helm, oci, namespaces, services.items]);
  const opened = useMemo(() => new Set(open.split(",").filter(Boolean)), [open]);
  const toggle = (key: string) => {
    const next = new Set(opened);
    if (!next.delete(key)) next.add(key);
    setOpen([...next].join(","));
  };
  const reveal = (key: string) => {
    clear();
    setOpen([...opened, key].filter((one, i, all) => all.indexOf(one) === i).join(","));
    // React draws the row before the frame after next.
    requestAnimationFrame(() => requestAnimationFrame(() => document.getElementById(rowId(key))?.focus()));
  };

  return (
    <>
      <header className="bar">
        <Brand />
        <Pill collections={[clusters, services, sets]} />
        <span className="spacer" />
        <span className="who" title="the user that you are signed in as">
          {plain(session.user)}
          {session.namespace && (
            <button type="button" className="chip" title="show all namespaces" onClick={() => onChange({ token: session.token, user: session.user })}>
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
            <Notices notices={notices} onFilter={setState} />
            <FleetMap places={places} loading={clusters.phase === "loading" || services.phase === "loading"} onOpen={reveal} />
            <SetTable collection={sets} />
            <ClusterTable collection={clusters} places={places} tenant={session.namespace} />
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

/** The clusters that a namespace may deploy to; the administrators' may read all Clusters. */
function useGranted(client: Client, namespace: string | undefined): Reading<GrantedCluster[]> {
  return useMemo(
    () =>
      new Reading(async (signal) => {
        if (!namespace || namespace === ADMIN_NAMESPACE) return [];
        return (await client.list<GrantedCluster>(`${FARWATER}/namespaces/${namespace}/grantedclusters`, signal)).items;
      }),
    [client, namespace],
  );
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
      gitFeed: new Feed<Source>(client, `${root}/gitrepositories`, signedOut),
      helmFeed: new Feed<Source>(client, `${root}/helmrepositories`, signedOut),
      ociFeed: new Feed<Source>(client, `${root}/ocirepositories`, signedOut),
      // Only the hub's own namespace: its annotation says whether deletions are paused. Tenants may not read it and see
      // no notice.
      namespaceFeed: new Feed<Namespace>(client, "/api/v1/namespaces?fieldSelector=metadata.name%3Dfarwater-admin", signedOut),
    };
  }, [session.token, session.namespace, onLeave]);
  useEffect(() => {
    const stop = new AbortController();
    const { client: _, ...all } = feeds;
    for (const feed of Object.values(all)) void feed.run(stop.signal);
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

/** Notices about the fleet as a whole. */
function Notices({ notices, onFilter }: { notices: Notice[]; onFilter: (state: string) => void }) {
  if (notices.length === 0) return null;
  return (
    <ul className="notices" aria-label="Needs attention">
      {notices.map(({ state, text, filter, command }) => (
        <li key={text}>
          <Mark state={state} /> <span>{sentence(text)}</span>
          {filter && (
            <button type="button" className="chip" onClick={() => onFilter(filter)}>
              show
            </button>
          )}
          {command && <code>{command}</code>}
        </li>
      ))}
    </ul>
  );
}

function Refused({ collections }: { collections: Collection<Resource>[] }) {
  const refused = collections.filter((one) => one.phase === "refused");
  if (refused.length === 0) return null;
  return (
    <div role="alert" className="trouble">
      {refused.map((one) => (
        <p key={one.trouble}>{plain(one.trouble)}</p>
      ))}
      <p>Resources that you may not read are not shown. Sign in with a namespace that you may read, or ask an administrator for access.</p>
    </div>
  );
}
