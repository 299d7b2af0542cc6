import { useCallback, useEffect, useRef, useState, useSyncExternalStore } from "react";

import type { Collection } from "../api/collection";
import type { Feed } from "../api/feed";
import type { Resource } from "../api/kinds";
import type { Reading, Told } from "../api/reading";

export function useFeed<T extends Resource>(feed: Feed<T>): Collection<T> {
  return useSyncExternalStore(feed.subscribe, feed.current);
}

/** What is read as long as it is shown, and again with each other `version` of what it depends on. */
export function useReading<T>(reading: Reading<T>, version: string): Told<T> {
  useEffect(() => {
    const stop = new AbortController();
    void reading.run(stop.signal);
    return () => stop.abort();
  }, [reading]);
  const known = useRef(version);
  useEffect(() => {
    // It is read at first without being asked for.
    if (known.current !== version) reading.ask();
    known.current = version;
  }, [reading, version]);
  return useSyncExternalStore(reading.subscribe, reading.current);
}

/** The time, as often as ages need it. */
export function useNow(everyMs: number): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return now;
}

/** A value of the address, so that a view can be shared and survives a reload. */
export function useAddress(key: string): [string, (value: string) => void] {
  const read = useCallback(() => new URLSearchParams(location.search).get(key) ?? "", [key]);
  const [value, setValue] = useState(read);
  useEffect(() => {
    const reread = () => setValue(read());
    addEventListener("popstate", reread);
    return () => removeEventListener("popstate", reread);
  }, [read]);
  const change = useCallback(
    (next: string) => {
      const query = new URLSearchParams(location.search);
      if (next) query.set(key, next);
      else query.delete(key);
      const text = query.toString();
      history.replaceState(null, "", text ? `?${text}` : location.pathname);
      setValue(next);
    },
    [key],
  );
  return [value, change];
}

/** Another view of the page; the browser's own way back leads out of it. */
export function go(query: string): void {
  history.pushState(null, "", query || location.pathname);
  dispatchEvent(new PopStateEvent("popstate"));
  scrollTo(0, 0);
}
