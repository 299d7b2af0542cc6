// Who is signed in, in this tab: sessionStorage ends with the tab and is sent nowhere by itself.

const KEY = "farwater-session";

export interface Session {
  token: string;
  user: string;
  /** The only namespace that is shown; absent: all of them. */
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

/** The namespace of a service account, which is the one that its token is most likely for. */
export function homeNamespace(user: string): string | undefined {
  const parts = user.split(":");
  return parts.length === 4 && parts[0] === "system" && parts[1] === "serviceaccount" ? parts[2] : undefined;
}

/** Whether a text can be a namespace (RFC 1123 label), and so can't change the path that it becomes a part of. */
export function isNamespace(text: string): boolean {
  return /^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/.test(text);
}
