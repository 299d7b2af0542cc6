// The page in a real browser, served by a real hub.

import assert from "node:assert/strict";
import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { chromium } from "playwright-core";

import { Hub, until } from "./hub.mjs";
import { serve, simulate } from "./rollout.mjs";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const HOSTILE = `<img src=x onerror="window.hit=1">\u202e\u001b[31m`;
const SCREENSHOTS = process.env.FARWATER_SCREENSHOTS;

let hub;
let browser;
before(async () => {
  hub = await Hub.start();
  const executablePath = process.env.FARWATER_CHROMIUM ?? "/usr/bin/chromium";
  // Tests run as root in containers, where Chromium's own sandbox can't start.
  browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
  await hub.create("clusters", "Cluster", "east", {});
  await service("web");
});
after(async () => {
  await browser?.close();
  await hub?.end();
});

function service(name, path = "apps/web", namespace = "farwater-admin") {
  const spec = { clusterRef: { name: "east" }, targetNamespace: "web", sourceRef: { kind: "GitRepository", name: "infra" }, path };
  return hub.create("servicedeployments", "ServiceDeployment", name, spec, namespace);
}

/** Opens a page. Any error on its console, and any request to another origin, fails the test. */
async function withPage(run, options = {}) {
  const context = await browser.newContext({ ignoreHTTPSErrors: true, viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  const complaints = [];
  page.on("pageerror", (error) => complaints.push(`error: ${error.message}`));
  page.on("console", (message) => {
    // The browser itself logs refused and lost requests. The tests check the page's own messages about them.
    const network = /Failed to load resource|net::ERR_/.test(message.text());
    if (message.type() === "error" && !network) complaints.push(`console: ${message.text()}`);
  });
  page.on("request", (request) => {
    if (new URL(request.url()).origin !== hub.url) complaints.push(`request to ${request.url()}`);
  });
  try {
    await page.goto(`${hub.url}/ui/`);
    await run(page);
    assert.deepEqual(complaints, []);
  } finally {
    await context.close();
  }
}

async function signIn(page, token = hub.token) {
  await page.getByLabel("Token").fill(token);
  await page.getByRole("button", { name: "Sign in" }).click();
}

async function live(page) {
  await page.getByRole("status").getByText("live", { exact: true }).waitFor();
}

const row = (page, name) => page.getByRole("button", { name: new RegExp(`^${name} `), expanded: false });

async function picture(page, name) {
  if (!SCREENSHOTS) return;
  mkdirSync(SCREENSHOTS, { recursive: true });
  await page.evaluate(() => scrollTo(0, 0));
  await page.screenshot({ path: join(SCREENSHOTS, `${name}.png`), fullPage: true });
}

test("a wrong token gives an error message, and a right one is kept only in the tab", () =>
  withPage(async (page) => {
    await picture(page, "sign-in");
    await signIn(page, "wrong");
    await page.getByRole("alert").getByText("does not accept this token").waitFor();
    await signIn(page);
    await live(page);
    assert.ok(!page.url().includes(hub.token));
    assert.deepEqual(await page.evaluate(() => Object.keys(localStorage)), ["farwater-theme"]);
    await page.reload();
    await live(page);
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByLabel("Token").waitFor();
    assert.equal(await page.evaluate(() => sessionStorage.length), 0);
  }));

test("changes and deletions appear without a reload", () =>
  withPage(async (page) => {
    await signIn(page);
    await live(page);
    await row(page, "web").waitFor();
    await service("arrives");
    await row(page, "arrives").waitFor();
    await hub.remove("servicedeployments", "arrives");
    await row(page, "arrives").waitFor({ state: "detached" });
  }));

test("while the hub is away the page shows its age, and it catches up when the hub is back", () =>
  withPage(async (page) => {
    await signIn(page);
    await live(page);
    await hub.stop();
    await page.getByRole("status").getByText(/disconnected · \d+s old/).waitFor();
    await picture(page, "disconnected");
    await hub.run();
    await service("missed");
    await live(page);
    await row(page, "missed").waitFor();
    await hub.remove("servicedeployments", "missed");
  }));

test("hostile texts are shown and do nothing", () =>
  withPage(async (page) => {
    await service("hostile", HOSTILE);
    await signIn(page);
    await row(page, "hostile").click();
    await page.getByText("<img src=x onerror=").first().waitFor();
    assert.equal(await page.evaluate(() => window.hit), undefined);
    const text = await page.locator("body").innerText();
    assert.ok(!text.includes("\u202e") && !text.includes("\u001b"));
    await hub.remove("servicedeployments", "hostile");
  }));

test("everything can be done by keyboard", () =>
  withPage(async (page) => {
    await service("zebra");
    await signIn(page);
    await row(page, "zebra").waitFor();
    await page.keyboard.press("/");
    await page.keyboard.type("zebra");
    await row(page, "web").waitFor({ state: "detached" });
    await page.keyboard.press("Enter");
    await page.keyboard.press("Enter");
    await page.getByRole("button", { name: /^zebra /, expanded: true }).waitFor();
    await page.getByText("farwater why zebra -n farwater-admin").waitFor();
    assert.ok(page.url().includes("open=farwater-admin%2Fzebra"));
    await page.keyboard.press("Escape");
    await row(page, "web").waitFor();
    await hub.remove("servicedeployments", "zebra");
  }));

for (const colorScheme of ["light", "dark"]) {
  test(`the page passes accessibility checks in ${colorScheme} colours`, () =>
    withPage(
      async (page) => {
        await check(page);
        await signIn(page);
        await row(page, "web").click();
        await page.getByText("The agent has reported no object yet").waitFor();
        await check(page);
        await picture(page, `page-${colorScheme}`);
        await page.setViewportSize({ width: 390, height: 800 });
        const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        assert.ok(overflow <= 0, `${overflow} px wider than a phone`);
        await picture(page, `phone-${colorScheme}`);
      },
      { colorScheme },
    ));
}

test("a set has its own URL, is opened and left by keyboard, and shows the hub's counts", () =>
  withPage(async (page) => {
    const template = { spec: { targetNamespace: "shop", sourceRef: { name: "infra" }, path: "shop" } };
    await hub.create("servicesets", "ServiceSet", "shop", { clusterSelector: {}, template });
    await signIn(page);
    await live(page);
    const link = page.getByRole("link", { name: "shop", exact: true });
    await link.waitFor();
    await page.keyboard.press("j");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { level: 1, name: "shop farwater-admin" }).waitFor();
    assert.ok(page.url().endsWith("?set=farwater-admin%2Fshop"), page.url());
    // Its only cluster never reported, so it belongs to no canary and waits.
    await page.getByRole("listitem").filter({ has: page.getByRole("heading", { name: "rest" }) }).getByText("1 waiting").waitFor();
    await page.getByRole("table").getByRole("rowheader", { name: "nothing yet" }).waitFor();
    await page.getByRole("columnheader", { name: "east" }).waitFor();
    await page.getByText("farwater rollout status shop -n farwater-admin --watch").waitFor();
    await check(page);
    await page.reload();
    await page.getByRole("heading", { level: 1, name: "shop farwater-admin" }).waitFor();
    await page.keyboard.press("Escape");
    await link.waitFor();
    await until("the row of the set has the focus again", () => link.evaluate((one) => one === document.activeElement));
    await page.goBack();
    // A click on a cluster opens the service that the set created there.
    await page.getByRole("link", { name: "farwater-admin/east" }).click();
    await page.getByRole("button", { name: /^shop-east /, expanded: true }).waitFor();
    await page.goto(`${hub.url}/ui/?set=farwater-admin/none`);
    await page.getByText("There is no ServiceSet farwater-admin/none").waitFor();
  }));

/** Number of marks. A waiting member is drawn in two rows. */
const drawn = (members) => members.length + members.filter((one) => one.wantedRevision).length;

const FLEETS = {
  3: [{ canary: 1, rest: 2 }, { halted: true }],
  300: [{ canary: 1, eu: 120, us: 100, rest: 79 }, {}],
  10000: [{ canary: 3, eu: 4000, us: 3000, rest: 2997 }, {}],
};
for (const [size, [steps, options]] of Object.entries(FLEETS)) {
  for (const colorScheme of ["light", "dark"]) {
    test(`a rollout over ${size} clusters is shown in ${colorScheme} colours, on a phone too, with few requests`, () =>
      withPage(
        async (page) => {
          const simulated = simulate(steps, options);
          const asked = await serve(page, "shop", simulated);
          await signIn(page);
          await live(page);
          await page.getByRole("link", { name: "shop", exact: true }).waitFor();
          await picture(page, `sets-${size}-${colorScheme}`);
          await page.getByRole("link", { name: "shop", exact: true }).click();
          const title = options.halted ? "Rollout 7 is halted" : "Rollout 7 is at step eu";
          await page.getByRole("heading", { name: title }).waitFor();
          await page.getByRole("heading", { name: "Versions and clusters" }).waitFor();
          if (options.halted) await page.getByText(/It was stopped by fleet\/canary-0001, which failed: Deployment web\/web/).waitFor();
          else await page.getByText(/The next step waits for fleet\/eu-\d+, which is healthy and soaks, for \d+/).waitFor();
          if (size === "10000") {
            // The page lists members only after a click, and then of one step, page by page.
            assert.deepEqual(asked.members, []);
            await page.getByRole("columnheader", { name: /^eu / }).getByRole("button", { name: "show clusters" }).click();
            await page.getByRole("button", { name: "clusters of eu after these" }).click();
            await page.getByText("201–400").waitFor();
            const listed = simulated.members.filter((one) => one.step === "eu").slice(200, 400);
            await until("they are drawn", async () => (await page.locator(".marks li").count()) === drawn(listed));
            assert.ok(asked.members.every((one) => one.startsWith("eu ")), asked.members.join());
          } else {
            const selector = size === "3" ? ".spot" : ".marks li";
            await until("all are drawn", async () => (await page.locator(selector).count()) === drawn(simulated.members));
            assert.ok(asked.members.every((one) => one === "all 0"), asked.members.join());
          }
          await check(page);
          await picture(page, `set-${size}-${colorScheme}`);
          for (const width of [320, 768]) {
            await page.setViewportSize({ width, height: 800 });
            const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
            assert.ok(overflow <= 0, `${overflow} px wider than ${width}`);
            await picture(page, `set-${size}-${colorScheme}-${width}`);
          }
        },
        { colorScheme },
      ));
  }
}

async function check(page) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => window.axe.run());
  assert.deepEqual(violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(" ")}`), []);
}

test("a tenant sees only its own namespace, and the page says so", async () => {
  await hub.ask("POST", "/api/v1/namespaces", { apiVersion: "v1", kind: "Namespace", metadata: { name: "team-a" } });
  const account = { apiVersion: "v1", kind: "ServiceAccount", metadata: { name: "viewer" } };
  await hub.ask("POST", "/api/v1/namespaces/team-a/serviceaccounts", account);
  const rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/team-a";
  const rules = [{ apiGroups: ["farwater.dev"], resources: ["*"], verbs: ["get", "list", "watch"] }];
  await hub.ask("POST", `${rbac}/roles`, { apiVersion: "rbac.authorization.k8s.io/v1", kind: "Role", metadata: { name: "view" }, rules });
  await hub.ask("POST", `${rbac}/rolebindings`, {
    apiVersion: "rbac.authorization.k8s.io/v1",
    kind: "RoleBinding",
    metadata: { name: "view" },
    subjects: [{ kind: "ServiceAccount", name: "viewer", namespace: "team-a" }],
    roleRef: { apiGroup: "rbac.authorization.k8s.io", kind: "Role", name: "view" },
  });
  const request = { apiVersion: "authentication.k8s.io/v1", kind: "TokenRequest", spec: { expirationSeconds: 3600 } };
  const answer = await hub.ask("POST", "/api/v1/namespaces/team-a/serviceaccounts/viewer/token", request);
  await withPage(async (page) => {
    await signIn(page, answer.status.token);
    await live(page);
    await page.getByText("Nothing is deployed yet").waitFor();
    await page.getByRole("button", { name: "team-a ×" }).waitFor();
    assert.equal(await row(page, "web").count(), 0);
  });
  await until("the namespace is gone", async () => {
    await hub.ask("DELETE", "/api/v1/namespaces/team-a").catch(() => {});
    return (await hub.send("GET", "/api/v1/namespaces/team-a")).code === 404;
  });
});
