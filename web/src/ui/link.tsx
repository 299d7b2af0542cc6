import type { ReactNode } from "react";

import { go } from "./hooks";

interface Props {
  /** Of the address, with its question mark; empty: the fleet. */
  query: string;
  children: ReactNode;
  id?: string;
  className?: string;
  title?: string;
  /** Reached by `j` and `k`. */
  row?: boolean;
}

/** A view of this page: an address as any other, without loading the page again. */
export function Link({ query, row, children, ...rest }: Props) {
  return (
    <a
      {...rest}
      {...(row && { "data-row": "" })}
      href={query || "."}
      onClick={(event) => {
        if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
        event.preventDefault();
        go(query);
      }}
    >
      {children}
    </a>
  );
}

export function setQuery(key: string): string {
  return `?${new URLSearchParams({ set: key })}`;
}

/** A service on the fleet's view, opened. */
export function serviceQuery(key: string): string {
  return `?${new URLSearchParams({ q: key, open: key })}`;
}
