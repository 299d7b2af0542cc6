// Prints everything that the page draws, stores, requests and logs at some addresses of a hub. Rust tests use it to
// prove that secrets are absent. Standard input has the addresses as JSON, and standard output the findings.

import { json } from "node:stream/consumers";

import { chromium } from "playwright-core";

const { url, token, views } = await json(process.stdin);
const executablePath = process.env.FARWATER_CHROMIUM ?? "/usr/bin/chromium";
// Tests run as root in containers, where Chromium's own sandbox can't start.
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
try {
  const page = await browser.newPage({ ignoreHTTPSErrors: true });
  let said = [];
  page.on("console", (message) => said.push(message.text()));
  page.on("pageerror", (error) => said.push(error.stack));
  page.on("request", (request) => said.push(request.url()));
  const found = [];
  const look = async (address) => {
    const has = await page.evaluate(() => ({
      html: document.documentElement.outerHTML,
      text: document.documentElement.innerText,
      local: { ...localStorage },
      session: { ...sessionStorage },
    }));
    found.push({ address, ...has, said });
    said = [];
  };
  await page.goto(`${url}/ui/`);
  await page.getByLabel("Token").waitFor();
  await look("signing in");
  await page.getByLabel("Token").fill(token);
  await page.getByRole("button", { name: "Sign in" }).click();
  for (const { address, shows } of views) {
    await page.getByRole("status").getByText("live", { exact: true }).waitFor();
    await page.goto(`${url}/ui/${address}`);
    await page.getByRole("status").getByText("live", { exact: true }).waitFor();
    await page.getByText(shows).first().waitFor();
    await page.waitForFunction(() => !/Loading objects|Counting clusters/.test(document.body.innerText));
    await look(address);
  }
  console.log(JSON.stringify(found));
} finally {
  await browser.close();
}
