// Keeps a collection up to date: lists it, then watches from the version of the list until stopped.

import { ApiError, type Client } from "./client";
import { type Action, type Collection, empty, reduce } from "./collection";
import type { Resource } from "./kinds";

const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 10_000;
const REFRESH_TIMEOUT_MS = 10_000;

export class Feed<T extends Resource> {
  private state: Collection<T> = empty();
  /** State that listeners were last notified of. Each render uses one state. */
  private published: Collection<T> = this.state;
  private readonly listeners = new Set<() => void>();
  private scheduled = false;

  constructor(
    private readonly client: Client,
    readonly path: string,
    private readonly onSignedOut: () => void,
  ) {}

  readonly current = (): Collection<T> => this.published;

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  private act(action: Action<T>): void {
    this.state = reduce(this.state, action);
    if (this.scheduled) return;
    this.scheduled = true;
    // A burst of events leads to one render. The delay is a timer, because hidden tabs get no animation frames.
    setTimeout(() => {
      this.scheduled = false;
      this.published = this.state;
      for (const listener of this.listeners) listener();
    }, 50);
  }

  /** Lists the collection again, for changes that wake no watch, such as the time when an agent last reported. It also
   * detects within seconds that a hub which keeps its connections open no longer answers. */
  async refresh(signal: AbortSignal): Promise<void> {
    if (this.state.phase === "loading" || this.state.phase === "refused") return;
    const answered = await this.client
      .list<T>(this.path, AbortSignal.any([signal, AbortSignal.timeout(REFRESH_TIMEOUT_MS)]))
      .catch((error: unknown) => {
        if (!signal.aborted && !(error instanceof ApiError)) this.act({ type: "disconnected", trouble: "the hub does not answer" });
      });
    const { items } = answered ?? { items: [] };
    for (const object of items) {
      // The watch may have deleted objects since the list was read: don't bring them back. It also reports new ones.
      if (!this.state.items.has(object.metadata.uid)) continue;
      this.act({ type: "event", event: { type: "MODIFIED", object }, at: Date.now() });
    }
  }

  async run(signal: AbortSignal): Promise<void> {
    let retry = FIRST_RETRY_MS;
    let relist = true;
    while (!signal.aborted) {
      try {
        if (relist) {
          const listed = await this.client.list<T>(this.path, signal);
          this.act({ type: "listed", ...listed, at: Date.now() });
          relist = false;
        }
        const opened = () => {
          retry = FIRST_RETRY_MS;
          this.act({ type: "opened", at: Date.now() });
        };
        for await (const event of this.client.watch<T>(this.path, this.state.version, signal, opened)) {
          if (event.type === "ERROR") throw new ApiError(event.object.code ?? 500, event.object.message ?? "watch error");
          this.act({ type: "event", event, at: Date.now() });
        }
      } catch (error) {
        if (signal.aborted) return;
        const code = error instanceof ApiError ? error.code : 0;
        const trouble = error instanceof Error ? error.message : String(error);
        if (code === 401) return this.onSignedOut();
        if (code === 403 || code === 404) return this.act({ type: "refused", trouble });
        if (code === 410) {
          relist = true;
          continue;
        }
        this.act({ type: "disconnected", trouble: code ? trouble : "the hub can't be reached" });
        // Jitter, so that not every page reconnects to a restarted hub at the same moment.
        await sleep(retry * (0.5 + Math.random()), signal);
        retry = Math.min(retry * 2, LAST_RETRY_MS);
      }
    }
  }
}

function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
