import { useCallback, useEffect, useState, useSyncExternalStore } from "react";

import type { Collection } from "../api/collection";
import type { Feed } from "../api/feed";
import type { Resource } from "../api/kinds";

export function useFeed<T extends Resource>(feed: Feed<T>): Collection<T> {
  return useSyncExternalStore(feed.subscribe, feed.current);
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
