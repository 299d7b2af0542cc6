// Requests to the hub that served this page. The token stays in this tab's memory and sessionStorage. It is sent in one
// header and is never part of a URL.

import type { List, Status, WatchEvent } from "./kinds";
import { readLines } from "./lines";

export const FARWATER = "/apis/farwater.dev/v1alpha1";
const PAGE = 500;
/** The hub ends a watch after this time. The next watch continues from the last version. */
const WATCH_SECONDS = 300;
/** A stream that is silent for this long is considered dead. The hub sends bookmarks far more often. */
const SILENCE_MS = 100_000;

export class ApiError extends Error {
  constructor(
    readonly code: number,
    message: string,
  ) {
    super(message);
  }
}

export class Client {
  constructor(private readonly token: string) {}

  private async send(path: string, init: RequestInit): Promise<Response> {
    const headers = { Authorization: `Bearer ${this.token}`, Accept: "application/json", ...init.headers };
    const response = await fetch(path, { ...init, headers, credentials: "omit", cache: "no-store", redirect: "error" });
    if (!response.ok) throw new ApiError(response.status, await refusal(response));
    return response;
  }

  async get<T>(path: string, signal?: AbortSignal): Promise<T> {
    return (await this.send(path, { signal: signal ?? null })).json() as Promise<T>;
  }

  /** Name of the token's user. */
  async whoAmI(): Promise<string> {
    const review = { apiVersion: "authentication.k8s.io/v1", kind: "SelfSubjectReview" };
    const response = await this.send("/apis/authentication.k8s.io/v1/selfsubjectreviews", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(review),
    });
    const answer = (await response.json()) as { status?: { userInfo?: { username?: string } } };
    return answer.status?.userInfo?.username ?? "unknown";
  }

  /** Lists every object, page by page, and returns the version to watch from. */
  async list<T>(path: string, signal: AbortSignal): Promise<{ items: T[]; version: string }> {
    const items: T[] = [];
    let version = "";
    let next = "";
    do {
      const query = new URLSearchParams({ limit: String(PAGE) });
      if (next) query.set("continue", next);
      const page = await this.get<List<T>>(withQuery(path, query), signal);
      items.push(...(page.items ?? []));
      version ||= page.metadata.resourceVersion;
      next = page.metadata.continue ?? "";
    } while (next);
    return { items, version };
  }

  /** Yields events until the hub ends the stream. Throws if the connection breaks or falls silent. */
  async *watch<T>(path: string, version: string, signal: AbortSignal, onOpen: () => void): AsyncGenerator<WatchEvent<T>> {
    const silence = new AbortController();
    let timer = 0;
    const heard = () => {
      clearTimeout(timer);
      timer = window.setTimeout(() => silence.abort(new Error("the hub fell silent")), SILENCE_MS);
    };
    const query = new URLSearchParams({
      watch: "true",
      allowWatchBookmarks: "true",
      timeoutSeconds: String(WATCH_SECONDS),
      resourceVersion: version,
    });
    try {
      heard();
      const either = AbortSignal.any([signal, silence.signal]);
      const response = await this.send(withQuery(path, query), { signal: either });
      if (!response.body) return;
      onOpen();
      for await (const line of readLines(response.body)) {
        heard();
        yield JSON.parse(line) as WatchEvent<T>;
      }
    } finally {
      clearTimeout(timer);
    }
  }
}

/** Appends a query. The path may already have a selector. */
function withQuery(path: string, query: URLSearchParams): string {
  return `${path}${path.includes("?") ? "&" : "?"}${query}`;
}

async function refusal(response: Response): Promise<string> {
  const text = await response.text().catch(() => "");
  try {
    return (JSON.parse(text) as Status).message || response.statusText;
  } catch {
    return text.slice(0, 200) || response.statusText || `HTTP ${response.status}`;
  }
}
