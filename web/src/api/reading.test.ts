import { afterEach, beforeEach, expect, it, vi } from "vitest";

import { ApiError } from "./client";
import { Reading } from "./reading";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

/** Starts a reading that gets the `answers` one after the other, and then the last one again and again. */
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

it("reads at once, and then at most once in two seconds however often it is asked", async () => {
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

it("reads again unasked only while the page is visible", async () => {
  let looked = false;
  const { reads } = start(["a"], () => looked);
  await vi.advanceTimersByTimeAsync(60_000);
  expect(reads()).toBe(1);
  looked = true;
  await vi.advanceTimersByTimeAsync(16_000);
  expect(reads()).toBe(2);
});

it("keeps its last value while reads fail, and says why they fail", async () => {
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
