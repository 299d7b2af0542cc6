import { afterEach, beforeEach, expect, it, vi } from "vitest";

import { ApiError } from "./client";
import { Reading } from "./reading";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

/** A reading of what `answers` give one after the other, the last of them for ever. */
function start(answers: (string | Error)[], isLooked = () => true) {
  const stop = new AbortController();
  let reads = 0;
  const reading = new Reading<string>(async () => {
    const answer = answers[Math.min(reads++, answers.length - 1)] ?? "";
    if (answer instanceof Error) throw answer;
    return answer;
  }, isLooked);
  void reading.run(stop.signal);
  return { reading, stop, reads: () => reads };
}

it("is read at once, and however often it is asked for only once in two seconds", async () => {
  const { reading, stop, reads } = start(["a", "b", "c"]);
  await vi.advanceTimersByTimeAsync(0);
  expect(reading.current()).toEqual({ value: "a" });
  for (let i = 0; i < 10; i += 1) reading.ask();
  await vi.advanceTimersByTimeAsync(1900);
  expect(reads()).toBe(1);
  await vi.advanceTimersByTimeAsync(200);
  expect(reading.current()).toEqual({ value: "b" });
  await vi.advanceTimersByTimeAsync(5000);
  expect(reads()).toBe(2);
  reading.ask();
  await vi.advanceTimersByTimeAsync(0);
  expect(reading.current()).toEqual({ value: "c" });
  stop.abort();
  reading.ask();
  await vi.advanceTimersByTimeAsync(60_000);
  expect(reads()).toBe(3);
});

it("is read again by itself only while somebody looks", async () => {
  let looked = false;
  const { reads } = start(["a"], () => looked);
  await vi.advanceTimersByTimeAsync(60_000);
  expect(reads()).toBe(1);
  looked = true;
  await vi.advanceTimersByTimeAsync(16_000);
  expect(reads()).toBe(2);
});

it("keeps what it has while it can't be read, and says why", async () => {
  const { reading } = start(["a", new ApiError(403, "not allowed"), new TypeError("network"), "b"]);
  await vi.advanceTimersByTimeAsync(0);
  for (const expected of [
    { value: "a", trouble: "not allowed" },
    { value: "a", trouble: "the hub can't be reached" },
    { value: "b" },
  ]) {
    await vi.advanceTimersByTimeAsync(2000);
    reading.ask();
    await vi.advanceTimersByTimeAsync(0);
    expect(reading.current()).toEqual(expected);
  }
});
