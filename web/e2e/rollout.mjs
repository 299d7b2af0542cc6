// Simulates a hub's answers about a rollout of any size. The fleets of other tests are too small for this.

const NEW = `main@sha1:${"4c1d".repeat(10)}`;
const OLD = `main@sha1:${"0b7e".repeat(10)}`;
const OLDER = `main@sha1:${"9f3a".repeat(10)}`;
const NOTHING = { done: 0, soaking: 0, progressing: 0, failed: 0, deferred: 0, waiting: 0, still: 0 };
const WORDS = {
  Done: "is done",
  Soaking: "is healthy and soaks",
  Progressing: "is on its way",
  Failed: "failed: Deployment web/web: the image registry.example/shop:2 can't be pulled",
  Deferred: "is silent: it gets the change when it is heard",
  Still: "is suspended",
  Waiting: "waits for step eu: fleet/eu-0061 is not done",
};
const ORDER = Object.keys({ Failed: 0, Progressing: 0, Soaking: 0, Deferred: 0, Still: 0, Waiting: 0, Done: 0 });

function progressOf(step, index, size, halted) {
  if (step === "canary") return halted ? "Failed" : "Done";
  if (halted) return "Waiting";
  if (step !== "eu") return index % 90 === 7 ? "Still" : index % 40 === 3 ? "Deferred" : "Waiting";
  if (index % 37 === 5) return "Deferred";
  if (index < size * 0.6) return "Done";
  if (index < size * 0.65) return "Soaking";
  return index < size * 0.75 ? "Progressing" : "Waiting";
}

/** `sizes`: number of clusters in each step. */
export function simulate(sizes, { halted = false } = {}) {
  const since = (seconds) => new Date(Date.now() - seconds * 1000).toISOString();
  const members = Object.entries(sizes).flatMap(([step, size]) =>
    Array.from({ length: size }, (_, index) => {
      const progress = progressOf(step, index, size, halted);
      const has = ["Done", "Soaking", "Progressing", "Failed"].includes(progress);
      const name = `${step}-${String(index + 1).padStart(4, "0")}`;
      const left = index % 25 === 11 ? OLDER : OLD;
      return {
        cluster: `fleet/${name}`,
        service: `shop-${name}`,
        state: progress === "Done" ? "Ready" : "Progressing",
        step,
        standing: halted && progress === "Waiting" ? "waits: the rollout is halted, since fleet/canary-0001 failed" : WORDS[progress],
        progress,
        ...(progress !== "Waiting" && { since: since(30 + index * 7) }),
        revision: has ? NEW : left,
        ...(!has && { wantedRevision: NEW }),
      };
    }),
  );
  const count = (some) => some.reduce((counts, { progress }) => ({ ...counts, [progress.toLowerCase()]: counts[progress.toLowerCase()] + 1 }), NOTHING);
  const steps = Object.keys(sizes);
  const of = (step) => members.filter((member) => member.step === step);
  const stages = steps.map((step) => ({ step, counts: count(of(step)) }));
  const kept = (revision) =>
    steps.map((step) => ({ step, counts: NOTHING, kept: of(step).filter((one) => one.wantedRevision && one.revision === revision).length })).filter((stage) => stage.kept);
  const all = count(members);
  const open = members.filter((one) => one.progress !== "Done").sort((a, b) => ORDER.indexOf(a.progress) - ORDER.indexOf(b.progress)).slice(0, 50);
  return {
    members,
    survey: {
      countedAt: since(0),
      stages,
      versions: [
        { revision: NEW, author: "Ann Example <ann@example.org>", stages },
        { revision: OLD, stages: kept(OLD) },
        { revision: OLDER, stages: kept(OLDER) },
      ].filter((version) => version.stages.length > 0),
      unavailable: all.soaking + all.progressing,
      maxUnavailable: Math.max(1, Math.floor(members.length / 10)),
      ...(!halted && { waitsFor: members.find((one) => one.progress === "Soaking") ?? open[0] }),
      open,
    },
    status: {
      observedGeneration: 1,
      clusters: { matched: members.length, ready: members.length - all.progressing, failed: 0, leaving: 0 },
      conditions: [
        { type: "Ready", status: "False", reason: halted ? "RolloutHalted" : "Progressing", message: halted ? "rollout 7 is halted: fleet/canary-0001 failed" : "on their way", lastTransitionTime: since(60) },
        { type: halted ? "Stalled" : "Reconciling", status: "True", reason: "Progressing", message: "on their way", lastTransitionTime: since(60) },
      ],
      rollout: {
        number: 7,
        phase: halted ? "Halted" : "Progressing",
        step: halted ? "canary" : "eu",
        updated: all.done,
        progressing: all.soaking + all.progressing,
        failed: all.failed,
        deferred: all.deferred,
        waiting: all.waiting + all.still,
        ...(halted && { haltedBy: "fleet/canary-0001" }),
      },
    },
  };
}

/** Answers a page's requests about a set with these data, and records the requests. */
export async function serve(page, name, { members, survey, status }) {
  const asked = { rollout: 0, members: [] };
  const json = (body) => ({ status: 200, contentType: "application/json", body: JSON.stringify(body) });
  await page.route(new RegExp(`/servicesets/${name}/rollout$`), (route) => {
    asked.rollout += 1;
    return route.fulfill(json({ metadata: {}, status: survey }));
  });
  await page.route(new RegExp(`/servicesets/${name}/members\\?`), (route) => {
    const query = new URL(route.request().url()).searchParams;
    const [step, limit, from] = [query.get("step"), Number(query.get("limit")), Number(query.get("continue") || 0)];
    asked.members.push(`${step ?? "all"} ${from}`);
    const some = members.filter((member) => !step || member.step === step);
    const next = from + limit < some.length ? { continue: String(from + limit) } : {};
    return route.fulfill(json({ metadata: { resourceVersion: "1", ...next }, items: some.slice(from, from + limit) }));
  });
  await page.route(/\/servicesets\?/, async (route) => {
    if (route.request().url().includes("watch=true")) return route.continue();
    const response = await route.fetch();
    const list = await response.json();
    for (const set of list.items) if (set.metadata.name === name) set.status = status;
    return route.fulfill({ response, json: list });
  });
  return asked;
}
