import { useCallback, useState } from "react";

import { load, save, type Session } from "../session";
import { Dashboard } from "./dashboard";
import { SignIn } from "./sign-in";

export function App() {
  const [session, setSession] = useState(load);
  const [notice, setNotice] = useState("");
  const enter = (entered: Session) => {
    save(entered);
    setNotice("");
    setSession(entered);
  };
  const leave = useCallback((reason: string) => {
    save(undefined);
    setNotice(reason);
    setSession(undefined);
  }, []);
  return session ? <Dashboard session={session} onChange={enter} onLeave={leave} /> : <SignIn notice={notice} onEnter={enter} />;
}
