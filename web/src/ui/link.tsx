import type { ReactNode } from "react";

import { go } from "./hooks";

interface Props {
  /** Query of the URL, with its question mark. Empty: the fleet. */
  query: string;
  children: ReactNode;
  id?: string;
  className?: string;
  title?: string;
  /** Whether `j` and `k` move to the link. */
  row?: boolean;
}

/** A link to a view of this page. It has a URL, but a click does not reload the page. */
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

/** The fleet view with the details of one service open. */
export function serviceQuery(key: string): string {
  return `?${new URLSearchParams({ q: key, open: key })}`;
}
