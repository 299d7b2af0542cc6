// A value that no watch reports. It is read again when something that it depends on has changed. Only one read runs at
// a time, with a pause between reads.

import { ApiError } from "./client";

/** Minimum pause between two reads, however often `ask` is called. */
const REST_MS = 2000;
/** Pause before a read without a call of `ask`. Such reads show changes that only time causes. */
const QUIET_MS = 15_000;

export interface Told<T> {
  /** The last value. It stays while later reads fail. */
  value?: T;
  /** Why the last read failed, for people. Absent: it succeeded. */
  trouble?: string;
}

export class Reading<T> {
  private state: Told<T> = {};
  private readonly listeners = new Set<() => void>();
  private asked = false;
  private wake = () => {};

  /** `isLooked`: whether the value is visible. If it isn't, it is read only when `ask` is called. */
  constructor(
    private readonly read: (signal: AbortSignal) => Promise<T>,
    private readonly isLooked: () => boolean = () => document.visibilityState === "visible",
  ) {}

  readonly current = (): Told<T> => this.state;

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  readonly ask = (): void => {
    this.asked = true;
    this.wake();
  };

  async run(signal: AbortSignal): Promise<void> {
    for (;;) {
      this.asked = false;
      try {
        this.tell({ value: await this.read(signal) });
      } catch (error) {
        if (signal.aborted) return;
        const trouble = error instanceof ApiError ? error.message : "the hub can't be reached";
        this.tell({ ...this.state, trouble });
      }
      await this.pause(REST_MS, signal);
      while (!signal.aborted && !this.asked) {
        await this.pause(QUIET_MS, signal, (wake) => (this.wake = wake));
        if (this.isLooked()) break;
      }
      if (signal.aborted) return;
    }
  }

  private tell(state: Told<T>): void {
    this.state = state;
    for (const listener of this.listeners) listener();
  }

  private pause(ms: number, signal: AbortSignal, wakes: (wake: () => void) => void = () => {}): Promise<void> {
    return new Promise((resolve) => {
      const end = () => {
        clearTimeout(timer);
        signal.removeEventListener("abort", end);
        this.wake = () => {};
        resolve();
      };
      const timer = setTimeout(end, ms);
      signal.addEventListener("abort", end);
      wakes(end);
      if (signal.aborted) end();
    });
  }
}
