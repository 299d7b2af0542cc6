import { useCallback, useEffect, useRef, useState, useSyncExternalStore } from "react";

import type { Collection } from "../api/collection";
import type { Feed } from "../api/feed";
import type { Resource } from "../api/kinds";
import type { Reading, Told } from "../api/reading";

export function useFeed<T extends Resource>(feed: Feed<T>): Collection<T> {
  return useSyncExternalStore(feed.subscribe, feed.current);
}

/** Runs a reading while the component is shown, and reads again when `version`, which it depends on, changes. */
export function useReading<T>(reading: Reading<T>, version: string): Told<T> {
  useEffect(() => {
    const stop = new AbortController();
    void reading.run(stop.signal);
    return () => stop.abort();
  }, [reading]);
  const known = useRef(version);
  useEffect(() => {
    // `run` does the first read by itself.
    if (known.current !== version) reading.ask();
    known.current = version;
  }, [reading, version]);
  return useSyncExternalStore(reading.subscribe, reading.current);
}

/** The current time in milliseconds, updated every `everyMs`. */
export function useNow(everyMs: number): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return now;
}

/** A value in the page's URL, so that a view can be shared and survives a reload. */
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

/** Opens another view of the page. The browser's back button leaves it. */
export function go(query: string): void {
  history.pushState(null, "", query || location.pathname);
  dispatchEvent(new PopStateEvent("popstate"));
  scrollTo(0, 0);
}
