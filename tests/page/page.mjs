// The web page in a real browser. Most cases look at real daemons around a rig; what a rig cannot bring about at once
// (100 servers, hostile names, a lost reading, a stream that is cut) is answered in the daemons' place by the browser's
// own routing, with a status recorded from the rig.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { createServer, request } from "node:http";
import { join, resolve } from "node:path";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";

const ROOT = resolve(import.meta.dirname, "../..");
const BALLAST = process.env.BALLAST || join(process.env.CARGO_TARGET_DIR || join(ROOT, "target"), "debug/ballast");
const PICTURES = join(process.env.CARGO_TARGET_DIR || join(ROOT, "target"), "page");
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const PORT = 17100 + (process.pid % 500) * 20;
const SERVERS = 4;
const MANAGER = `http://127.0.0.1:${PORT}`;
const FLEET = `http://127.0.0.1:${PORT + 19}`;
const PAGES = ["chassis/0", "server/0/s01", "vms/0", "events/0", "health/0"];
const PATIENCE = 30_000;
const BROWSER = { executablePath: "/usr/bin/chromium", args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"] };

const home = mkdtempSync("/tmp/ballast-page-");
const processes = new Map();
let browser, recorded;

// ---- daemons --------------------------------------------------------------------------------------------------------

function start(name, ...args) {
  const child = spawn(BALLAST, args, { stdio: ["ignore", "pipe", "pipe"] });
  child.log = "";
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (text) => { child.log = (child.log + text).slice(-20_000); });
  processes.set(name, child);
  return child;
}

async function end(name) {
  const child = processes.get(name);
  processes.delete(name);
  if (!child || child.exitCode != null) return;
  child.kill("SIGTERM");
  await new Promise((ended) => child.once("exit", ended));
}

async function wait(what, done, patience = PATIENCE) {
  const until = Date.now() + patience;
  for (;;) {
    let last;
    try { last = await done(); } catch (error) { last = undefined; wait.why = error; }
    if (last) return last;
    if (Date.now() > until) throw new Error(`never: ${what}\n${[...processes].map(([name, it]) => `-- ${name}\n${it.log}`).join("\n")}`);
    await new Promise((next) => setTimeout(next, 50));
  }
}

const json = async (url) => (await fetch(url)).json();
const startManager = () => start("chassis", "chassis", "--config", join(home, "config/chassis.toml"));
const isReady = (port) => fetch(`http://127.0.0.1:${port}/readyz`).then((it) => it.ok);

before(async () => {
  mkdirSync(PICTURES, { recursive: true });
  start("rig", "rig", "--dir", join(home, "tree"), "--configs", home, "--port", PORT, "--servers", SERVERS,
    "--seed", "1", "--quiet-s", "12", "--load-s", "50");
  await wait("the rig", () => processes.get("rig").log.includes("start the daemons"));
  for (let n = 1; n <= SERVERS; n += 1) start(`s0${n}`, "agent", "--config", join(home, `config/agent-s0${n}.toml`));
  startManager();
  for (let n = 0; n <= SERVERS; n += 1) await wait(`daemon ${n}`, () => isReady(PORT + n));
  const agents = Array.from({ length: SERVERS }, (_, n) => `http://127.0.0.1:${PORT + n + 1}`);
  start("ui", "ui", "--listen", FLEET.slice(7), MANAGER, ...agents);
  await wait("ballast ui", () => fetch(FLEET).then((it) => it.ok));
  browser = await chromium.launch(BROWSER);
});

after(async () => {
  if (browser) await browser.close();
  for (const name of ["ui", "chassis", ...[...processes.keys()].filter((it) => /^s\d/.test(it)), "rig"]) await end(name);
  rmSync(home, { recursive: true, force: true });
});

// ---- pages ----------------------------------------------------------------------------------------------------------

// A page whose every foreign request, policy violation and error is noted; `check` fails with them.
async function open(url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, reducedMotion: "reduce", ...options });
  const page = await context.newPage();
  const wrong = [];
  page.on("request", (it) => { if (new URL(it.url()).origin !== new URL(url).origin) wrong.push(`foreign request: ${it.url()}`); });
  page.on("pageerror", (error) => wrong.push(`error: ${error}`));
  page.on("console", (it) => { if (it.type() === "error" && !/ERR_|Failed to load resource/.test(it.text())) wrong.push(`console: ${it.text()}`); });
  await page.addInitScript(() => {
    window.violations = [];
    const look = () => {
      if (document.querySelector(".chart canvas") && document.querySelector(".state").textContent) window.pictured = performance.now();
      else requestAnimationFrame(look);
    };
    look();
    document.addEventListener("securitypolicyviolation", (it) => window.violations.push(`${it.violatedDirective} ${it.blockedURI}`));
  });
  if (options.mock) await mock(page, options.mock);
  await page.goto(url);
  page.check = async () => {
    assert.deepEqual(wrong, []);
    assert.deepEqual(await page.evaluate(() => window.violations), []);
    await context.close();
  };
  return page;
}

// Answers in the manager's place: what it says of itself, its events, and what an agent says.
async function mock(page, { status, stream, agent }) {
  await page.route("**/v1/status", (route) => route.fulfill({ json: agent && /\/d\/[1-9]/.test(route.request().url()) ? agent : status }));
  await page.route("**/v1/stream", async (route) => {
    const history = { at_unix_ms: Date.now(), now_ms: 1, step_ms: 200, from_unix_ms: 0, power_min_w: [], power_mean_w: [], power_max_w: [], limit_w: [] };
    const tick = `event: tick\ndata: ${JSON.stringify({ at_unix_ms: Date.now(), status, history })}\n\n`;
    await route.fulfill({ contentType: "text/event-stream", body: `retry: 300\n\n${stream ?? ""}${tick}` });
  });
}

async function axe(page, where) {
  // The page's own policy lets nobody inject a script: this world is the browser's.
  await page.evaluate(AXE);
  const found = await page.evaluate(() => window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }));
  const violations = found.violations.map((it) => `${it.id}: ${it.nodes.map((node) => `${node.target} ${node.failureSummary}`).join("; ")}`);
  assert.deepEqual(violations, [], where);
}

async function show(page, name) {
  await page.evaluate((hash) => { location.hash = `#/${hash}`; }, name);
  await page.waitForTimeout(300);
}

const text = (page, selector) => page.locator(selector).first().innerText();
const figures = (words) => [...words.replaceAll(",", "").matchAll(/\d+/g)].map(([it]) => Number(it));
const fits = (page) => page.evaluate(() => document.scrollingElement.scrollWidth <= document.documentElement.clientWidth);

// ---- cases ----------------------------------------------------------------------------------------------------------

test("the first picture comes at once, and its numbers are those of /v1/status", async () => {
  const page = await open(MANAGER);
  await page.waitForSelector(".first.good, .first.warn, .first.bad");
  // Speed is told, not judged: other work may share this machine.
  await page.reload();
  await page.waitForFunction(() => window.pictured);
  console.log(`first picture after ${(await page.evaluate(() => window.pictured)).toFixed(0)} ms`);

  // The draw moves: what is compared must be of one moment.
  await wait("equal numbers", async () => {
    const [shown, status] = await Promise.all([text(page, ".figure"), json(`${MANAGER}/v1/status`)]);
    const draw = Math.round(Math.max(status.power_w, status.reported_w));
    const [power, limit] = figures(shown);
    return Math.abs(power - draw) <= 1 && limit === Math.round(status.limit_w);
  });
  assert.equal(await page.locator("section[aria-label=Servers] tbody tr").count(), SERVERS);
  assert.ok(await page.locator(".chart canvas").count());
  recorded = await json(`${MANAGER}/v1/status`);
  await page.check();
});

test("an excess is capped, and the page says what is done and to whom; pictures of that", async () => {
  const page = await open(FLEET);
  const capping = async () => /^(Over budget: c|C)apping/.test(await text(page, ".state"));
  await wait("capping", capping, 60_000);
  await wait("to whom", async () => /Batch cores (at lowest frequency|speeding up again) on s0/.test(await text(page, ".first")));
  await wait("a server that is slowed", () => page.locator(".tag.warn").count());
  await page.waitForTimeout(9000);
  await wait("capping still", capping);
  await page.screenshot({ path: join(PICTURES, "readme.png") });

  // One page, so that the daemons keep their share of a small machine.
  for (const colorScheme of ["light", "dark"]) {
    for (const [name, width] of [["wide", 1280], ["narrow", 390]]) {
      await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
      await page.setViewportSize({ width, height: 900 });
      for (const hash of width > 1000 ? PAGES : PAGES.slice(0, 1)) {
        await show(page, hash);
        await page.waitForTimeout(400);
        await page.screenshot({ path: join(PICTURES, `${hash.split("/")[0]}-${colorScheme}-${name}.png`), fullPage: true });
      }
      await show(page, PAGES[0]);
    }
  }
  await page.emulateMedia({ colorScheme: "light", reducedMotion: "reduce" });
  await page.setViewportSize({ width: 1280, height: 900 });

  await show(page, "events/0");
  assert.match(await text(page, ".events"), /normal → capping/);
  await show(page, "vms/0");
  await wait("VMs", async () => (await page.locator("section[aria-label=VMs] tbody tr").count()) > SERVERS);
  await page.selectOption("select", { label: "user-facing alone" });
  assert.ok(!/batch/.test(await text(page, "section[aria-label=VMs] tbody")));
  await page.check();
});

test("no page breaks a rule of accessibility, in light and in dark", async () => {
  for (const colorScheme of ["light", "dark"]) {
    const page = await open(FLEET, { colorScheme });
    for (const hash of PAGES) {
      await show(page, hash);
      await page.waitForTimeout(700);
      if (hash === "chassis/0") await page.locator("summary").click();
      await axe(page, `${hash} ${colorScheme}`);
    }
    await page.check();
  }
});

test("320 pixels, as at a zoom of 400 %, scroll in one direction alone", async () => {
  const page = await open(FLEET, { viewport: { width: 320, height: 640 } });
  for (const hash of PAGES) {
    await show(page, hash);
    await page.waitForTimeout(500);
    assert.ok(await fits(page), hash);
  }
  await axe(page, "320 pixels");
  await page.check();
});

test("a keyboard reaches everything", async () => {
  const page = await open(MANAGER);
  await page.waitForSelector("section[aria-label=Servers] tbody a");
  await page.keyboard.press("Tab");
  assert.match(await page.evaluate(() => document.activeElement.textContent), /Skip to the content/);
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "main");

  const tabTo = async (test) => {
    for (let n = 0; n < 40; n += 1) {
      await page.keyboard.press("Tab");
      if (await page.evaluate(test)) return;
    }
    assert.fail(`no way to ${test}`);
  };
  await tabTo(() => document.activeElement.textContent === "1 h");
  await page.keyboard.press("Enter");
  assert.equal(await page.locator("button[aria-pressed=true]").innerText(), "1 h");
  await tabTo(() => document.activeElement.tagName === "SUMMARY");
  await page.keyboard.press("Enter");
  await wait("the chart's table", () => page.locator("details tbody tr").count());
  await tabTo(() => document.activeElement.textContent === "s02");

  // The row is updated every second, and the focus stays.
  await page.waitForTimeout(1500);
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "s02");
  await page.keyboard.press("Enter");
  await page.waitForSelector("h1:has-text('Server s02')");
  assert.equal(await page.evaluate(() => document.activeElement.id), "main");
  await page.check();
});

test("over the budget, and blind, are seen in words", async () => {
  const over = { ...recorded, state: "alerting", power_w: recorded.limit_w + 321.4, reported_w: null };
  let page = await open(MANAGER, { mock: { status: over } });
  await page.waitForSelector(".first.bad");
  assert.match(await text(page, ".first"), /Over budget: capping/);
  assert.match(await text(page, ".first"), /321 W too much/);
  assert.ok(await page.locator(".bar.over").count());
  await axe(page, "over the budget");
  await page.check();

  const alarm = { id: "blind", severity: "critical", since_unix_ms: Date.now(), message: "no usable reading", link: "" };
  page = await open(MANAGER, { mock: { status: { ...recorded, state: "blind", power_w: null, alarms: [alarm] } } });
  await page.waitForSelector(".first.bad");
  const words = await text(page, ".first");
  assert.match(words, /No power reading/);
  assert.match(words, /Servers keep the caps that they have/);
  assert.ok(!/\b0 W of/.test(words), "what is missing is never zero");
  assert.match(await text(page, ".alarms"), /Critical[\s\S]*no usable reading/);
  await axe(page, "blind");
  await page.check();
});

test("a stream that is cut comes back where it was, without doubles", async () => {
  const event = (n) => `id: 17.${n}\nevent: alarm\ndata: ${JSON.stringify({ at_unix_ms: 1764000000000 + n, at_ns: n, event: "alarm", message: `number ${n}.` })}\n\n`;
  const asked = [];
  // A manager whose connections end; the page itself is that of the real one.
  const cut = createServer(async (request, answer) => {
    if (request.url === "/v1/stream") {
      asked.push(request.headers["last-event-id"]);
      answer.writeHead(200, { "content-type": "text/event-stream" });
      answer.end(`retry: 200\n\n${asked.length === 1 ? event(1) + event(2) : event(2) + event(3)}`);
      return;
    }
    const real = await fetch(`${MANAGER}${request.url}`);
    answer.writeHead(real.status, { "content-type": real.headers.get("content-type") });
    answer.end(Buffer.from(await real.arrayBuffer()));
  });
  await new Promise((done) => cut.listen(0, "127.0.0.1", done));
  const page = await open(`http://127.0.0.1:${cut.address().port}/#/events/0`);
  await wait("a third connection", () => asked.length >= 3);
  assert.deepEqual(asked.slice(0, 3), [undefined, "17.2", "17.3"]);
  const rows = await page.locator("section[aria-label=Events] tbody tr").allInnerTexts();
  assert.deepEqual(rows.map((row) => row.match(/number \d/)[0]), ["number 3", "number 2", "number 1"]);
  await page.check();
  cut.close();
});

test("100 servers are drawn quickly", async () => {
  const servers = Array.from({ length: 100 }, (_, n) => ({ ...recorded.servers[n % SERVERS], server: `srv-${String(n).padStart(3, "0")}` }));
  const page = await open(MANAGER, { mock: { status: { ...recorded, servers } } });
  await wait("100 rows", async () => (await page.locator("section[aria-label=Servers] tbody tr").count()) === 100);
  assert.ok(await fits(page));
  // What an update costs: most of it is drawn anew only where it has changed.
  const busy = await page.evaluate(async () => {
    let longest = 0;
    const watch = new PerformanceObserver((all) => all.getEntries().forEach((it) => { longest = Math.max(longest, it.duration); }));
    watch.observe({ type: "longtask" });
    await new Promise((done) => setTimeout(done, 2000));
    return longest;
  });
  assert.ok(busy < 500, `${busy} ms`);
  await page.check();
});

test("hostile names are text", async () => {
  const name = "<img src=x onerror=window.owned=1>";
  const [server] = recorded.servers;
  const status = { ...recorded, servers: [{ ...server, server: name, slot: "silent", last_error: name }],
    alarms: [{ id: "server_silent", severity: "warning", since_unix_ms: 1, message: name, link: "" }],
    sensors: [{ sensor: name, refresh_ms: 1, age_ms: 1, faults: 1, problem: name }] };
  const stream = `id: 1.1\nevent: order\ndata: ${JSON.stringify({ at_unix_ms: Date.now(), at_ns: 1, event: "order", who: name, what: name, outcome: name })}\n\n`;
  const agent = { ...(await json(`http://127.0.0.1:${PORT + 1}/v1/status`)), policy_effective: name };
  agent.vms = [{ ...agent.vms[0], vm: name }];
  const page = await open(FLEET, { mock: { status, stream, agent } });
  for (const hash of ["chassis/0", `server/0/${encodeURIComponent(name)}`, "vms/0", "events/0", "health/0"]) {
    await show(page, hash);
    if (hash === "events/0") await page.selectOption("select", { label: "everything" });
    await wait(`${hash} shows it`, async () => (await page.innerText("main")).includes(name));
    assert.equal(await page.locator("main img").count(), 0);
  }
  assert.equal(await page.evaluate(() => window.owned), undefined);
  await page.check();
});

test("a page of somebody else gets nothing", async () => {
  const status = (headers) => new Promise((done, failed) => {
    request(`${MANAGER}/`, { headers }, (answer) => { answer.resume(); done(answer.statusCode); }).on("error", failed).end();
  });
  assert.equal(await status({}), 200);
  assert.equal(await status({ host: "evil.example" }), 403);
  assert.equal(await status({ origin: "http://evil.example" }), 403);

  // A name server that says that this machine is evil.example.
  const rebound = await chromium.launch({ ...BROWSER, args: [...BROWSER.args, "--host-resolver-rules=MAP evil.example 127.0.0.1"] });
  const page = await rebound.newPage();
  for (const origin of [MANAGER, FLEET]) {
    const answer = await page.goto(origin.replace("127.0.0.1", "evil.example"));
    assert.equal(answer.status(), 403);
    const read = await page.evaluate((url) => fetch(url).then((it) => it.status), `${origin.replace("127.0.0.1", "evil.example")}${origin === MANAGER ? "" : "/d/0"}/v1/status`);
    assert.equal(read, 403);
  }
  await rebound.close();
});

test("a manager that is gone is said to be gone; its past outlives it", async () => {
  const past = async () => (await json(`${MANAGER}/v1/history?step=10000`)).power_max_w.filter((it) => it != null).length;
  assert.ok((await past()) >= 2);
  const page = await open(MANAGER);
  await page.waitForSelector(".first.good, .first.warn, .first.bad");
  await end("chassis");
  await wait("it is said", async () => /No news for/.test(await text(page, "#link")));
  assert.match(await text(page, ".first"), /Last known: /);
  assert.match(await text(page, ".first"), /Nothing has come from the manager since/);
  await axe(page, "a manager that is gone");

  startManager();
  await wait("news again", async () => /Live/.test(await text(page, "#link")));
  assert.ok((await past()) >= 2, "the rows of 10 s come from the file");
  await page.check();
});
