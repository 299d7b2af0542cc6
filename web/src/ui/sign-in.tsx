import { type FormEvent, useState } from "react";

import { ApiError, Client, FARWATER } from "../api/client";
import { homeNamespace, isNamespace, type Session } from "../session";
import { Brand } from "./brand";

export function SignIn({ notice, onEnter }: { notice: string; onEnter: (session: Session) => void }) {
  const [token, setToken] = useState("");
  const [namespace, setNamespace] = useState("");
  const [trouble, setTrouble] = useState("");
  const [busy, setBusy] = useState(false);

  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setTrouble("");
    try {
      onEnter(await signIn(token.trim(), namespace.trim()));
    } catch (error) {
      setTrouble(explain(error));
    } finally {
      setBusy(false);
    }
  };

  return (
    <main className="sign-in">
      <form onSubmit={submit} aria-labelledby="sign-in-title">
        <Brand />
        <h1 id="sign-in-title">Sign in</h1>
        {notice && <p className="notice">{notice}</p>}
        <label>
          Token
          <input
            name="token"
            type="password"
            autoComplete="off"
            spellCheck={false}
            required
            autoFocus
            value={token}
            onChange={(event) => setToken(event.target.value)}
          />
        </label>
        <label>
          Namespace <span className="faint">(optional: show only this one)</span>
          <input
            name="namespace"
            autoComplete="off"
            spellCheck={false}
            value={namespace}
            onChange={(event) => setNamespace(event.target.value)}
          />
        </label>
        <div role="alert" className="trouble" hidden={!trouble}>
          {trouble}
        </div>
        <button type="submit" className="primary" disabled={busy || !token.trim()}>
          {busy ? "Signing in…" : "Sign in"}
        </button>
        <p className="faint">
          The token stays in this tab. The administrator&rsquo;s token is in <code>admin.kubeconfig</code>. For other tokens, run{" "}
          <code>kubectl create token NAME -n NAMESPACE</code>.
        </p>
      </form>
    </main>
  );
}

/** Asks the hub for the token's user, and whether the user may read every namespace or only their own. */
async function signIn(token: string, wanted: string): Promise<Session> {
  if (/[^\x21-\x7e]/.test(token)) throw new Error("This is not a token: a token contains no spaces or special characters.");
  if (wanted && !isNamespace(wanted)) throw new Error(`"${wanted}" is not a valid namespace.`);
  const client = new Client(token);
  const user = await client.whoAmI();
  if (wanted) return { token, user, namespace: wanted };
  try {
    await client.get(`${FARWATER}/servicedeployments?limit=1`);
    return { token, user };
  } catch (error) {
    if (!(error instanceof ApiError && error.code === 403)) throw error;
    const home = homeNamespace(user);
    if (!home) throw new Error(`${user} may not read every namespace. Enter the namespace to show.`);
    return { token, user, namespace: home };
  }
}

function explain(error: unknown): string {
  if (error instanceof ApiError && error.code === 401) return "The hub does not accept this token. It may have expired.";
  if (error instanceof ApiError) return `The hub refused: ${error.message}`;
  if (error instanceof TypeError) return "The hub can't be reached.";
  return error instanceof Error ? error.message : String(error);
}
