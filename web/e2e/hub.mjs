// Runs a real hub, and calls the API that the page uses.

import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { request } from "node:https";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

const FARWATER = "/apis/farwater.dev/v1alpha1";

function freePort() {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.on("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

export class Hub {
  static async start() {
    const hub = new Hub();
    hub.dir = mkdtempSync(join(tmpdir(), "farwater-page-"));
    hub.port = await freePort();
    hub.url = `https://127.0.0.1:${hub.port}`;
    await hub.run();
    const kubeconfig = readFileSync(join(hub.dir, "admin.kubeconfig"), "utf8");
    hub.token = /token: *"?([^\s"]+)"?/.exec(kubeconfig)[1];
    return hub;
  }

  async run() {
    const program = process.env.FARWATER_BIN;
    if (!program) throw new Error("set FARWATER_BIN to the path of the farwater program");
    this.process = spawn(program, ["hub", "--data-dir", this.dir, "--listen", `127.0.0.1:${this.port}`], { stdio: "ignore", env: {} });
    this.exited = new Promise((resolve) => this.process.on("exit", resolve));
    await until("the hub is ready", async () => (await this.send("GET", "/readyz")).code === 200);
  }

  async stop() {
    this.process.kill("SIGTERM");
    await this.exited;
  }

  async end() {
    await this.stop();
    rmSync(this.dir, { recursive: true, force: true });
  }

  send(method, path, body, type = "application/json") {
    const headers = { "Content-Type": type };
    if (this.token) headers.Authorization = `Bearer ${this.token}`;
    return new Promise((resolve, reject) => {
      const outgoing = request(`${this.url}${path}`, { method, headers, rejectUnauthorized: false }, (incoming) => {
        let text = "";
        incoming.setEncoding("utf8").on("data", (part) => (text += part)).on("end", () => resolve({ code: incoming.statusCode, text }));
      });
      outgoing.on("error", reject);
      outgoing.end(body && JSON.stringify(body));
    });
  }

  async ask(method, path, body, type) {
    const { code, text } = await this.send(method, path, body, type);
    if (code >= 300) throw new Error(`${method} ${path}: ${code} ${text}`);
    return JSON.parse(text);
  }

  create(plural, kind, name, spec, namespace = "farwater-admin") {
    const body = { apiVersion: "farwater.dev/v1alpha1", kind, metadata: { name, namespace }, spec };
    return this.ask("POST", `${FARWATER}/namespaces/${namespace}/${plural}`, body);
  }

  setStatus(plural, name, status, namespace = "farwater-admin") {
    return this.ask("PATCH", `${FARWATER}/namespaces/${namespace}/${plural}/${name}/status`, { status }, "application/merge-patch+json");
  }

  remove(plural, name, namespace = "farwater-admin") {
    return this.ask("DELETE", `${FARWATER}/namespaces/${namespace}/${plural}/${name}`);
  }
}

/** Waits until the condition holds. Throws after `ms`. */
export async function until(what, check, ms = 20_000) {
  const end = Date.now() + ms;
  let last = "";
  while (Date.now() < end) {
    try {
      if (await check()) return;
    } catch (error) {
      last = `: ${error.message}`;
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`not within ${ms} ms: ${what}${last}`);
}
