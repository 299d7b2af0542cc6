import type { Collection } from "../api/collection";
import type { Resource } from "../api/kinds";
import { age } from "../fleet/text";
import { useNow } from "./hooks";

/** Data older than this may mislead. */
const OLD_MS = 30_000;

/** Shows how fresh the page is: live, or its age and why it is not live. */
export function Pill({ collections }: { collections: Collection<Resource>[] }) {
  const now = useNow(1000);
  const broken = collections.find((one) => one.phase === "disconnected");
  const loading = collections.find((one) => one.phase === "loading");
  const heardAt = Math.min(...collections.map((one) => one.heardAt || now));
  if (broken) {
    const old = now - heardAt > OLD_MS;
    return (
      <span role="status" className={`pill ${old ? "bad" : "doubtful"}`} title={broken.trouble}>
        <span className="dot hollow" /> disconnected · {age(heardAt, now)} old
      </span>
    );
  }
  if (loading) {
    return (
      <span role="status" className={`pill ${loading.trouble ? "doubtful" : ""}`} title={loading.trouble}>
        <span className="dot hollow" /> {loading.trouble ? `connecting: ${loading.trouble}` : "loading"}
      </span>
    );
  }
  return (
    <span role="status" className="pill good" title="changes arrive as they happen">
      <span className="dot" /> live
    </span>
  );
}
