// The session of this tab. sessionStorage ends with the tab, and the browser sends it nowhere.

const KEY = "farwater-session";

export interface Session {
  token: string;
  user: string;
  /** The only namespace that is shown. Absent: all namespaces. */
  namespace?: string;
}

export function load(): Session | undefined {
  try {
    const session = JSON.parse(sessionStorage.getItem(KEY) ?? "null") as Session | null;
    return session?.token ? session : undefined;
  } catch {
    return undefined;
  }
}

export function save(session: Session | undefined): void {
  if (session) sessionStorage.setItem(KEY, JSON.stringify(session));
  else sessionStorage.removeItem(KEY);
}

/** Namespace of a service account: the one that its token most likely may read. */
export function homeNamespace(user: string): string | undefined {
  const parts = user.split(":");
  return parts.length === 4 && parts[0] === "system" && parts[1] === "serviceaccount" ? parts[2] : undefined;
}

/** Whether the text is a valid namespace (RFC 1123 label), and therefore safe to insert into a path. */
export function isNamespace(text: string): boolean {
  return /^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/.test(text);
}
