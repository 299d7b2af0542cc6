// Text from elsewhere, for people.

/** Control characters, and those that hide or reorder what is read. */
// eslint-disable-next-line no-control-regex
const UNSAFE = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+/g;

export function plain(text: string | undefined): string {
  return (text ?? "").replace(UNSAFE, " ");
}

/** `main@sha1:<40 digits>` as people read it: `main@1a2b3c4d5e6f`. */
export function shortRevision(revision: string | undefined): string {
  const text = plain(revision);
  return text.replace(/(^|@)(?:sha(?:1|256):)?([0-9a-f]{12})[0-9a-f]{28,52}$/, "$1$2");
}

/** A sentence of the hub's or an agent's, with its commits as people read them. */
export function sentence(text: string | undefined): string {
  return plain(text).replace(/sha1:([0-9a-f]{12})[0-9a-f]{28}(?![0-9a-f])/g, "$1");
}

/** `42s`, `7m`, `3h`, `5d`: the largest unit is enough to know how worried to be. */
export function age(then: string | number | undefined, now: number): string {
  if (then === undefined) return "";
  const at = typeof then === "number" ? then : Date.parse(then);
  if (Number.isNaN(at)) return "";
  const seconds = Math.max(0, Math.floor((now - at) / 1000));
  if (seconds < 120) return `${seconds}s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)}m`;
  if (seconds < 172_800) return `${Math.floor(seconds / 3600)}h`;
  return `${Math.floor(seconds / 86_400)}d`;
}

/** A word of a shell's command line: quoted unless it is plainly harmless. */
export function shellWord(word: string): string {
  return /^[A-Za-z0-9._/:@=-]+$/.test(word) && !word.startsWith("-") ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/** The command that shows the same thing in a terminal. */
export function cliCommand(verb: "why" | "objects" | "tree", resource: { namespace?: string; name: string }): string {
  const scope = resource.namespace ? ` -n ${shellWord(resource.namespace)}` : "";
  return `farwater ${verb} ${shellWord(resource.name)}${scope}`;
}

/** The command that lets a held prune go: bound to the digest of its plan. */
export function approveCommand(resource: { namespace?: string; name: string }, digest: string): string {
  const scope = resource.namespace ? ` -n ${shellWord(resource.namespace)}` : "";
  return `farwater approve ${shellWord(resource.name)}${scope} --digest ${shellWord(digest)}`;
}
