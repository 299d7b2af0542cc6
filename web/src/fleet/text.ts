// Makes text from other systems safe and short enough to show.

/** Control characters, and characters that hide or reorder text. */
// eslint-disable-next-line no-control-regex
const UNSAFE = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+/g;

export function plain(text: string | undefined): string {
  return (text ?? "").replace(UNSAFE, " ");
}

/** Shortens `main@sha1:<40 digits>` to `main@1a2b3c4d5e6f`. */
export function shortRevision(revision: string | undefined): string {
  const text = plain(revision);
  return text.replace(/(^|@)(?:sha(?:1|256):)?([0-9a-f]{12})[0-9a-f]{28,52}$/, "$1$2");
}

/** A sentence from the hub or an agent, with shortened commits. */
export function sentence(text: string | undefined): string {
  return plain(text).replace(/sha1:([0-9a-f]{12})[0-9a-f]{28}(?![0-9a-f])/g, "$1");
}

/** An age in its largest unit: `42s`, `7m`, `3h`, `5d`. */
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

/** Quotes a word for a shell, unless all its characters are known to be harmless. */
export function shellWord(word: string): string {
  return /^[A-Za-z0-9._/:@=-]+$/.test(word) && !word.startsWith("-") ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/** The command that shows the same information in a terminal. */
export function cliCommand(verb: "why" | "objects" | "tree", resource: { namespace?: string; name: string }): string {
  const scope = resource.namespace ? ` -n ${shellWord(resource.namespace)}` : "";
  return `farwater ${verb} ${shellWord(resource.name)}${scope}`;
}

/** The command that approves a held prune. It is bound to the digest of the plan. */
export function approveCommand(resource: { namespace?: string; name: string }, digest: string): string {
  const scope = resource.namespace ? ` -n ${shellWord(resource.namespace)}` : "";
  return `farwater approve ${shellWord(resource.name)}${scope} --digest ${shellWord(digest)}`;
}
