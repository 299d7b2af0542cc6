import { expect, it } from "vitest";

import { readLines } from "./lines";

async function linesOf(chunks: (string | Uint8Array)[]): Promise<string[]> {
  const encoder = new TextEncoder();
  const stream = new ReadableStream<Uint8Array>({
    start(controller) {
      for (const chunk of chunks) controller.enqueue(typeof chunk === "string" ? encoder.encode(chunk) : chunk);
      controller.close();
    },
  });
  const lines: string[] = [];
  for await (const line of readLines(stream)) lines.push(line);
  return lines;
}

it("joins lines, wherever the network split them", async () => {
  expect(await linesOf(['{"a"', ':1}\n{"b":2}\n', "\n", '{"c":3}\n'])).toEqual(['{"a":1}', '{"b":2}', '{"c":3}']);
});

it("joins characters that the network split", async () => {
  const bytes = new TextEncoder().encode('"é"\n');
  expect(await linesOf([bytes.slice(0, 2), bytes.slice(2)])).toEqual(['"é"']);
});

it("ignores an incomplete last line", async () => {
  expect(await linesOf(['{"a":1}\n{"b":'])).toEqual(['{"a":1}']);
});
