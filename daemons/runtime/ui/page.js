// The page: reads from its own daemons, changes nothing. All text goes in as text, never as HTML.
"use strict";

(() => {
  const w = words;
  const main = document.getElementById("main");
  const RANGES = [
    { name: "5 min", ms: 300e3, step: 200, serverStep: 500 },
    { name: "1 h", ms: 3600e3, step: 2000, serverStep: 2000 },
    { name: "24 h", ms: 86400e3, step: 60e3, serverStep: 60e3 },
  ];
  const EVENTS_MAX = 1000;
  const STALE_MS = 4000;
  const AGENTS_EACH_MS = 2000;

  // ---- elements -------------------------------------------------------------------------------------------------

  // An element with these properties and children; whatever is no element becomes text.
  function el(name, props = {}, ...children) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(props)) {
      if (value == null || value === false) continue;
      if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else node.setAttribute(key, value);
    }
    node.append(...children.filter((it) => it != null));
    return node;
  }
  const set = (node, text) => { if (node.textContent !== text) node.textContent = text; };
  const setClass = (node, name) => { if (node.className !== name) node.className = name; };
  const tag = ([text, level]) => el("span", { class: `tag ${level}` }, text);
  const clock = (ms, withDay) => {
    const date = new Date(ms);
    const day = withDay || date.toDateString() !== new Date().toDateString();
    const options = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
    return date.toLocaleString("en-GB", day ? { day: "2-digit", month: "short", ...options } : options);
  };
  const when = (ms) => el("time", { datetime: new Date(ms).toISOString(), title: new Date(ms).toISOString() }, clock(ms));

  // A table that keeps its rows from one update to the next, so that a focus in it stays. A column is
  // { name, cell, number }: what a cell has is text, a link or a tag.
  function table(caption, columns, options = {}) {
    const body = el("tbody", { role: "rowgroup" });
    const head = el("tr", { role: "row" },
      ...columns.map((it) => el("th", { scope: "col", role: "columnheader", class: it.number && "number" }, it.name)));
    const node = el("table", { class: options.class || "cards", role: "table", "aria-label": caption },
      el("thead", { role: "rowgroup" }, head), body);
    const empty = el("p", { class: "note" }, options.empty || "None.");
    const wrap = el("div", { class: "scroll" }, node, empty);
    const rows = new Map();

    const fill = (cell, value) => {
      const shown = typeof value === "object" && value ? JSON.stringify(value) : String(value);
      if (cell.shown === shown) return;
      cell.shown = shown;
      if (value && value.href) {
        if (cell.firstChild && cell.firstChild.href) set(cell.firstChild, value.text);
        else cell.replaceChildren(el("a", { href: value.href }, value.text));
      } else if (value && value.time != null) cell.replaceChildren(when(value.time));
      else if (Array.isArray(value)) cell.replaceChildren(tag(value));
      else set(cell, shown);
    };

    const update = (items, key) => {
      const gone = new Set(rows.keys());
      let previous = null;
      for (const item of items) {
        const id = key(item);
        gone.delete(id);
        let row = rows.get(id);
        if (!row) {
          row = el("tr", { role: "row" }, ...columns.map((it, n) => n === 0 && !options.plain
            ? el("th", { scope: "row", role: "rowheader" })
            : el("td", { role: "cell", "data-name": it.name, class: it.number && "number" })));
          rows.set(id, row);
        }
        columns.forEach((it, n) => fill(row.children[n], it.cell(item)));
        const next = previous ? previous.nextSibling : body.firstChild;
        if (next !== row) body.insertBefore(row, next);
        previous = row;
      }
      for (const id of gone) { rows.get(id).remove(); rows.delete(id); }
      empty.hidden = rows.size > 0;
      node.hidden = rows.size === 0;
    };
    update([], String);
    return { node: wrap, update };
  }

  // ---- data -----------------------------------------------------------------------------------------------------

  async function get(base, path) {
    const answer = await fetch(`${base}${path}`, { cache: "no-store" });
    if (!answer.ok) throw new Error(`${answer.status} ${(await answer.json().catch(() => ({}))).error || ""}`);
    return answer.json();
  }

  // Steps of a history without gaps, whatever comes twice or late.
  class Steps {
    constructor(step, span) { this.step = step; this.room = Math.ceil(span / step); this.clear(); }
    clear() { this.from = 0; this.columns = { min: [], mean: [], max: [], limit: [] }; }
    get length() { return this.columns.max.length; }
    get end() { return this.from + this.length * this.step; }
    merge(answer) {
      if (answer.step_ms !== this.step || !answer.power_max_w.length) return;
      const first = answer.from_unix_ms;
      // Another time than what is here: a gap longer than the picture, or a clock that was set.
      if (!this.length || first > this.end + this.room * this.step || first < this.from) { this.clear(); this.from = first; }
      const source = { min: answer.power_min_w, mean: answer.power_mean_w, max: answer.power_max_w, limit: answer.limit_w };
      for (const [name, column] of Object.entries(this.columns)) {
        while (this.from + column.length * this.step < first) column.push(null);
        const at = (first - this.from) / this.step;
        source[name].forEach((value, n) => { column[at + n] = value; });
        column.splice(at + source[name].length);
      }
      const over = this.length - this.room;
      if (over > 0) {
        for (const column of Object.values(this.columns)) column.splice(0, over);
        this.from += over * this.step;
      }
    }
    // The chart's columns: seconds, highest, limit.
    data() {
      const { max, limit } = this.columns;
      return [max.map((_, n) => (this.from + n * this.step) / 1000), max, limit];
    }
  }

  // One chassis, as its manager tells of it.
  class Chassis {
    constructor(site) { Object.assign(this, site); this.events = new Map(); this.status = null; this.heard = 0; this.watchers = new Set(); }
    get title() { return this.status ? this.status.chassis_id : this.name || "chassis"; }
    tell(what, value) { this.watchers.forEach((it) => it(what, value)); }
    take(status) { this.status = status; this.heard = Date.now(); this.tell("status", status); }

    open() {
      if (this.source) return;
      get(this.base, "/v1/status").then((it) => this.source && this.take(it)).catch(() => {});
      const source = this.source = new EventSource(`${this.base}/v1/stream`);
      source.addEventListener("tick", (message) => {
        const tick = JSON.parse(message.data);
        this.take({ ...tick.status, at_unix_ms: tick.at_unix_ms });
        this.tell("history", tick.history);
      });
      const names = ["chassis_state", "alert_sent", "slot_changed", "order", "reload", "alarm", "vm_killed", "agent_state"];
      for (const name of names) source.addEventListener(name, (message) => this.event(message));
      // One that was refused is closed for good: then another one.
      source.onerror = () => {
        if (source.readyState !== EventSource.CLOSED || this.source !== source) return;
        this.close();
        this.again = setTimeout(() => this.open(), 2000);
      };
    }

    event(message) {
      if (this.events.has(message.lastEventId)) return;
      const event = { ...JSON.parse(message.data), id: message.lastEventId };
      this.events.set(event.id, event);
      if (this.events.size > EVENTS_MAX) this.events.delete(this.events.keys().next().value);
      this.tell("event", event);
      // Only what is new is read out, and not every message to every server.
      if (event.event !== "alert_sent" && Date.now() - event.at_unix_ms < 10e3) {
        set(document.getElementById("news"), w.event(event).join(": "));
      }
    }

    close() { clearTimeout(this.again); if (this.source) this.source.close(); this.source = null; }
  }

  let site = { chassis: [], agents: [] };

  // Every agent's status, as far as they answer.
  async function agents() {
    const asked = site.agents.map((it) => get(it.base, "/v1/status").catch((error) => ({ error: error.message, url: it.name })));
    return Promise.all(asked);
  }

  // ---- the chart ------------------------------------------------------------------------------------------------

  const charts = new Set();

  function chart(chassis, server) {
    const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const holder = el("div", { class: "chart", "aria-hidden": "true" });
    const limitName = server ? "cap" : "limit";
    const range = RANGES[Number(sessionStorage.getItem("range")) || 0];
    const state = { range, steps: null, plot: null, asking: false, asked: 0 };
    const legend = el("ul", { class: "legend" },
      el("li", {}, el("i", { class: "draw" }), "draw, solid line"),
      el("li", {}, el("i", { class: "limit" }), `${limitName}, dashed line`),
      el("li", {}, el("i", { class: "over" }), `above the ${limitName}, filled`),
      el("li", {}, el("i", { class: "band" }), "lowest to highest in a step"),
      server ? null : el("li", {}, el("i", { class: "shade" }), "capping event, shaded"));
    const figures = table("The chart's figures", [
      { name: "from", cell: (it) => ({ time: it.at }) },
      { name: "highest draw", number: true, cell: (it) => w.watts(it.max) },
      { name: "lowest draw", number: true, cell: (it) => w.watts(it.min) },
      { name: `lowest ${limitName}`, number: true, cell: (it) => w.watts(it.limit) },
    ], { class: "plain", empty: "No figures yet." });
    const details = el("details", { ontoggle: () => fillTable() }, el("summary", {}, "The same as a table"), figures.node);

    const buttons = RANGES.map((it, n) => el("button", {
      type: "button", "aria-pressed": String(it === range),
      onclick: () => {
        sessionStorage.setItem("range", n);
        state.range = it;
        buttons.forEach((button, m) => button.setAttribute("aria-pressed", String(m === n)));
        begin();
      },
    }, it.name));
    const node = el("section", { "aria-label": "Power over time" },
      el("div", { class: "tools" }, el("h2", {}, "Power"), el("div", { class: "choice", role: "group", "aria-label": "How long" }, ...buttons)),
      holder, legend, details);

    // Ten rows for the whole time: what a reader can take in.
    function fillTable() {
      if (!details.open || !state.steps) return;
      const { columns, from, step, length } = state.steps;
      const part = Math.max(1, Math.ceil(length / 10)), rows = [];
      const pick = (column, start, fold) => {
        const values = column.slice(start, start + part).filter((it) => it != null);
        return values.length ? fold(...values) : null;
      };
      for (let at = 0; at < length; at += part) {
        rows.push({ at: from + at * step, max: pick(columns.max, at, Math.max),
          min: pick(columns.min, at, Math.min), limit: pick(columns.limit, at, Math.min) });
      }
      figures.update(rows, (it) => it.at);
    }

    // Bands from lowest to highest, what is above the limit, and capping events.
    function paint(u) {
      const { ctx } = u, { left, top, width, height } = u.bbox, { columns, from, step } = state.steps;
      const x = (ms) => u.valToPos(ms / 1000, "x", true), y = (value) => u.valToPos(value, "y", true);
      ctx.save();
      ctx.beginPath();
      ctx.rect(left, top, width, height);
      ctx.clip();
      if (!server) {
        ctx.fillStyle = css("--shade");
        let began = null;
        const changes = [...chassis.events.values()].filter((it) => it.event === "chassis_state");
        const shade = (end) => { ctx.fillRect(x(began), top, Math.max(2, x(end) - x(began)), height); began = null; };
        for (const it of changes) {
          const capping = it.to === "alerting" || it.to === "hardware_caps";
          if (capping && began == null) began = it.at_unix_ms;
          if (!capping && began != null) shade(it.at_unix_ms);
        }
        if (began != null) shade(state.steps.end);
      }

      // Between two lines, one there and one back, for each stretch without a gap.
      const between = (upper, lower) => {
        ctx.beginPath();
        const isKnown = (n) => upper[n] != null && lower[n] != null;
        for (let n = 0; n < upper.length; n += 1) {
          const start = n;
          while (n < upper.length && isKnown(n)) n += 1;
          for (let at = start; at < n; at += 1) ctx[at === start ? "moveTo" : "lineTo"](x(from + at * step), y(upper[at]));
          for (let at = n - 1; at >= start; at -= 1) ctx.lineTo(x(from + at * step), y(lower[at]));
          if (n > start) ctx.closePath();
        }
      };
      const { min: yMin, max: yMax } = u.scales.y;
      between(columns.max, columns.min);
      ctx.fillStyle = css.band;
      ctx.fill();
      between(columns.max.map((it) => (it == null ? null : yMax)), columns.limit);
      ctx.clip();
      between(columns.max, columns.max.map((it) => (it == null ? null : yMin)));
      ctx.fillStyle = css.bad;
      ctx.fill();
      ctx.restore();
    }

    function bounds(u, low, high) {
      if (low == null) return [0, 100];
      const room = Math.max(10, (high - low) * 0.15);
      return [Math.max(0, low - room), high + room];
    }

    function draw() {
      if (!state.steps || !holder.isConnected) return;
      const end = state.steps.end / 1000;
      // A young manager's picture begins where its figures do.
      const scale = { min: Math.max(end - state.range.ms / 1000, Math.min(state.steps.from / 1000, end - 60)), max: end };
      if (!state.plot) {
        css.band = css("--band");
        css.bad = css("--bad");
        const axis = { stroke: css("--soft"), grid: { stroke: css("--grid"), width: 1 }, ticks: { show: false }, font: "13px system-ui, sans-serif" };
        const clockOf = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...(state.range.ms >= 3600e3 ? {} : { second: "2-digit" }) });
        state.plot = new uPlot({
          width: holder.clientWidth, height: holder.clientHeight, legend: { show: false }, padding: [8, 8, 0, 0],
          cursor: { show: false },
          scales: { x: { time: true, range: () => [state.span.min, state.span.max] }, y: { range: bounds } },
          axes: [{ ...axis, space: 90, size: 32, values: (_, all) => all.map(clockOf) },
            { ...axis, size: 64, values: (_, all) => all.map((it) => w.watts(it)) }],
          series: [{}, { stroke: css("--draw"), width: 1.75, points: { show: false } },
            { stroke: css("--limit"), width: 1.75, dash: [9, 5], points: { show: false } }],
          hooks: { drawAxes: [paint] },
        }, (state.span = scale, state.steps.data()), holder);
      } else {
        state.span = scale;
        state.plot.setData(state.steps.data());
      }
      fillTable();
    }

    const step = () => (server ? state.range.serverStep : state.range.step);
    async function ask(since) {
      if (state.asking) return;
      const steps = state.steps;
      state.asking = true;
      state.asked = Date.now();
      const of = server ? `&server=${encodeURIComponent(server)}` : "";
      try {
        const answer = await get(chassis.base, `/v1/history?since=${Math.max(0, Math.floor(since))}&step=${steps.step}${of}`);
        if (steps === state.steps) { steps.merge(answer); draw(); }
      } catch { /* the line at the top says that nothing comes */ }
      state.asking = false;
    }

    function begin() {
      state.steps = new Steps(step(), state.range.ms);
      state.asking = false;
      if (state.plot) { state.plot.destroy(); state.plot = null; }
      ask(Date.now() - state.range.ms);
    }
    function again() { if (state.plot) { state.plot.destroy(); state.plot = null; } draw(); }

    function take(what, value) {
      if (what !== "history" || !state.steps) return;
      // What was missed while nothing came is asked for; the ends of two answers may overlap.
      const isFollowing = state.steps.length && value.from_unix_ms <= state.steps.end;
      if (!server && state.range.step === 200 && isFollowing && !state.asking) {
        state.steps.merge(value);
        draw();
      } else if (Date.now() - state.asked >= Math.max(1000, step())) {
        ask(state.steps.length ? state.steps.end - 2 * step() : Date.now() - state.range.ms);
      }
    }

    const sized = new ResizeObserver(() => {
      if (state.plot && holder.clientWidth) state.plot.setSize({ width: holder.clientWidth, height: holder.clientHeight });
    });
    sized.observe(holder);
    charts.add(again);
    queueMicrotask(begin);
    return { node, take, end: () => { sized.disconnect(); charts.delete(again); if (state.plot) state.plot.destroy(); } };
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((again) => again()));

  // ---- parts of pages -------------------------------------------------------------------------------------------

  function alarmList() {
    const list = el("ul", { class: "alarms" });
    const count = el("h2", {}, "Alarms");
    const node = el("section", { "aria-label": "Alarms" }, count, list);
    let shown = "";
    return { node, update(alarms) {
      node.hidden = !alarms.length;
      const rank = { critical: 0, warning: 1, info: 2 };
      const sorted = [...alarms].sort((a, b) => rank[a.severity] - rank[b.severity]);
      const now = JSON.stringify(sorted);
      if (now === shown) return;
      shown = now;
      set(count, w.plural(sorted.length, "alarm"));
      list.replaceChildren(...sorted.map((it) => el("li", {}, tag(w.of(w.SEVERITY, it.severity)),
        el("span", {}, it.message), it.since_unix_ms ? el("span", {}, "since ", when(it.since_unix_ms)) : null)));
    } };
  }

  function facts(pairs) {
    return el("dl", {}, ...pairs.filter(([, value]) => value != null).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
  }

  // State and draw: the first thing that is seen.
  function first() {
    const state = el("p", { class: "state", role: "status" }), doing = el("div");
    const figure = el("p", { class: "figure" }), fill = el("i"), mark = el("b");
    const bar = el("div", { class: "bar", "aria-hidden": "true" }, fill, mark), room = el("p", { class: "facts" });
    const node = el("section", { class: "first", "aria-label": "Now" }, el("div", {}, state, doing), el("div", {}, figure, bar, room));
    let shown = "";
    return { node, update({ title, level, lines, power, limit, limitName, text, isStale }) {
      setClass(node, isStale ? "first stale" : `first ${level}`);
      set(state, title);
      if (shown !== lines.join("\n")) {
        shown = lines.join("\n");
        doing.replaceChildren(...lines.map((line) => el("p", { class: "doing" }, line)));
      }
      figure.replaceChildren(power == null ? "No reading" : w.watts(power), el("small", {}, limit == null ? "" : ` of ${w.watts(limit)} ${limitName}`));
      const full = Math.max(power || 0, (limit || 0) * 1.15) || 1;
      fill.style.width = `${(100 * (power || 0)) / full}%`;
      mark.hidden = limit == null;
      mark.style.left = `${(100 * (limit || 0)) / full}%`;
      setClass(bar, power != null && limit != null && power > limit ? "bar over" : "bar");
      set(room, text);
    } };
  }

  const link = (page, chassis, ...more) => `#/${[page, site.chassis.indexOf(chassis), ...more.map(encodeURIComponent)].join("/")}`;

  // ---- pages ----------------------------------------------------------------------------------------------------

  const age = ({ report_age_ms: ms }) => (ms == null ? "none" : ms < 2000 ? "now" : `${w.since(ms)} ago`);

  function chassisPage(chassis) {
    const now = first(), alarms = alarmList(), picture = chart(chassis);
    const servers = table("Servers", [
      { name: "server", cell: (it) => ({ href: link("server", chassis, it.server), text: it.server }) },
      { name: "now", cell: w.server },
      { name: "draw", number: true, cell: (it) => w.watts(it.report && it.report.power_w) },
      { name: "cap", number: true, cell: (it) => (it.granted_w == null ? "none" : w.watts(it.granted_w)) },
      { name: "can still give", number: true, cell: (it) => w.watts(it.report && it.report.sheddable_w) },
      { name: "hardware cap", number: true, cell: (it) => (it.hardware_cap_w == null ? "none" : w.watts(it.hardware_cap_w)) },
      { name: "last report", number: true, cell: age },
    ], { empty: "No servers." });
    const more = el("section", { "aria-label": "Figures" });
    const show = () => {
      const { status } = chassis;
      if (!status) return;
      const it = w.situation(status), isStale = Date.now() - chassis.heard > STALE_MS;
      now.update({ title: isStale ? `Last known: ${it.state}` : it.state, level: it.level, power: it.power, limit: status.limit_w,
        lines: isStale ? [`Nothing has come from the manager since ${clock(chassis.heard)}.`, ...it.doing] : it.doing,
        limitName: status.limit_w < status.budget_w ? "that the supplies carry" : "budget", text: w.headroom(status), isStale });
      alarms.update(status.alarms);
      servers.update(status.servers, (server) => server.server);
      const text = [["Budget", w.watts(status.budget_w)], ["Reported by servers", w.watts(status.reported_w)],
        ["Fans and losses", w.watts(status.shared_w)], ["Times capped since start", w.number(status.alerts)],
        ["Time under hardware caps", status.hardware_caps_ms ? w.since(status.hardware_caps_ms) : "none"]];
      if (more.shown !== String(text)) { more.shown = String(text); more.replaceChildren(el("h2", {}, "Figures"), facts(text)); }
    };
    return { title: () => `Chassis ${chassis.title}`, nodes: [now.node, alarms.node, picture.node,
      el("section", { "aria-label": "Servers" }, el("h2", {}, "Servers"), servers.node), more], show, take: picture.take, end: picture.end };
  }

  function serverPage(chassis, id) {
    const now = first(), picture = chart(chassis, id), more = el("section", { "aria-label": "Agent" });
    const vms = vmTable(false);
    let agent = null;
    const show = () => {
      const server = chassis.status && chassis.status.servers.find((it) => it.server === id);
      if (!server) {
        if (chassis.status) now.update({ title: "Not in this chassis", level: "warn", lines: [`No server here is called ${id}.`], power: null, limit: null, text: "" });
        return;
      }
      const { report } = server, [state, level] = w.server(server);
      const cap = server.granted_w, power = report && report.power_w;
      const lines = [];
      if (server.slot !== "managed" && server.last_error) lines.push(`Last try: ${server.last_error}`);
      if (server.hardware_cap_w != null) lines.push(`A hardware cap of ${w.watts(server.hardware_cap_w)} slows every core.`);
      if (report && report.min_khz != null) lines.push(`${w.plural(report.low_cores, "batch core")}, the slowest at ${w.mhz(report.min_khz)}.`);
      if (report) lines.push(`Batch work can still give ${w.watts(report.sheddable_w)}; ${w.watts(report.restorable_w)} would come back at full speed.`);
      now.update({ title: state.charAt(0).toUpperCase() + state.slice(1), level: level || "", lines, power, limit: cap, limitName: "cap",
        text: cap == null ? "No cap: the server may draw what it needs." : `Set aside for it: ${w.watts(server.reserved_w)}` });
      const text = [["Last report", age(server)],
        ["Set aside for it", w.watts(server.reserved_w)], ["Hardware cap", server.hardware_cap_w == null ? "none" : w.watts(server.hardware_cap_w)],
        ["Server's own limit", report ? (report.server_limit ? "on" : "off") : null],
        ["Policy", agent && (agent.policy_effective || agent.policy)], ["Cap when nobody answers", agent && w.watts(agent.fallback_w)],
        ["Batch frequency", agent && agent.frequency_ratio != null ? `${w.number(100 * agent.frequency_ratio)} % of the highest` : null],
        ["Other power managers", agent && agent.cores
          ? (agent.cores.raised + agent.cores.limited ? `raised ${agent.cores.raised}, limited ${agent.cores.limited} cores` : "none seen") : null]];
      if (more.shown !== String(text)) { more.shown = String(text); more.replaceChildren(el("h2", {}, "Agent"), facts(text)); }
    };
    return { title: () => `Server ${id}`, nodes: [now.node, picture.node, more, vms.section], show, take: picture.take, end: picture.end,
      poll: async () => {
        agent = (await agents()).find((it) => it.report && it.report.server === id) || null;
        vms.update(agent ? [agent] : []);
        show();
      } };
  }

  function vmTable(isWhole) {
    const all = table("VMs", [
      { name: "VM", cell: (it) => it.vm.vm },
      { name: "server", cell: (it) => it.server },
      { name: "works for", cell: (it) => w.vmClass(it.vm) + (it.vm.advised_class && it.vm.advised_class !== it.vm.class ? " (advised otherwise)" : "") },
      { name: "now", cell: (it) => w.vmNow(it.vm) },
      { name: "watts (estimate)", number: true, cell: (it) => w.watts(it.vm.estimated_w) },
      { name: "slowed", number: true, cell: (it) => w.seconds(it.vm.throttled_core_ms) },
      { name: "work lost", number: true, cell: (it) => w.seconds(it.vm.lost_core_ms) },
      { name: "under hardware limit", number: true, cell: (it) => w.seconds(it.vm.limited_core_ms) },
    ], { empty: site.agents.length ? "No VMs."
      : "A chassis manager does not know VMs. Start `ballast ui` with the addresses of the manager and of its agents to see them here." });
    const filter = el("select", { onchange: () => show() }, ...["all VMs", "user-facing alone", "slowed now"].map((it) => el("option", {}, it)));
    const note = el("p", { class: "note" }, "Slowed, lost and limited are core-seconds since the agent's start: one core for one second, or two for half.");
    let answers = [];
    function show() {
      const vms = answers.flatMap((agent) => (agent.vms || []).map((vm) => ({ server: agent.report.server, vm })));
      const tests = [() => true, (it) => it.vm.class === "user-facing", (it) => w.vmNow(it.vm)[1] !== "good"];
      const slowed = (it) => Number(w.vmNow(it.vm)[1] !== "good");
      const shown = vms.filter(tests[filter.selectedIndex])
        .sort((a, b) => slowed(b) - slowed(a) || (b.vm.lost_core_ms || 0) - (a.vm.lost_core_ms || 0) || a.vm.vm.localeCompare(b.vm.vm));
      all.update(shown, (it) => `${it.server}/${it.vm.vm}`);
      note.hidden = !shown.length;
    }
    const tools = el("div", { class: "tools" }, el("h2", {}, "VMs"), isWhole ? el("label", {}, "Show ", filter) : null);
    const section = el("section", { "aria-label": "VMs" }, tools, all.node, note);
    show();
    return { section, update: (it) => { answers = it; show(); } };
  }

  function vmsPage(chassis) {
    const vms = vmTable(true);
    const quiet = el("p", { class: "note" });
    return { title: () => `VMs of ${chassis.title}`, nodes: [vms.section, quiet], show() {},
      poll: async () => {
        const all = await agents();
        vms.update(all.filter((it) => it.report && (!chassis.status || it.chassis_id === chassis.status.chassis_id)));
        const silent = all.filter((it) => it.error);
        set(quiet, silent.length ? `${w.plural(silent.length, "agent")} did not answer: ${w.list(silent.map((it) => it.url))}.` : "");
      } };
  }

  function eventsPage(chassis) {
    const kinds = [["everything", () => true], ["states and alarms", (it) => ["chassis_state", "slot_changed", "alarm", "vm_killed"].includes(it.event)],
      ["orders and reloads", (it) => ["order", "reload"].includes(it.event)], ["messages to servers", (it) => it.event === "alert_sent"]];
    const filter = el("select", { onchange: () => show() }, ...kinds.map(([name]) => el("option", {}, name)));
    filter.selectedIndex = 1;
    const search = el("input", { type: "search", oninput: () => show() });
    const list = table("Events, newest first", [
      { name: "time", cell: (it) => ({ time: it.at_unix_ms }) }, { name: "who", cell: (it) => w.event(it)[0] }, { name: "what", cell: (it) => w.event(it)[1] },
    ], { class: "events", plain: true, empty: "Nothing of that has happened since the manager's start." });
    const alarms = alarmList();
    function show() {
      if (chassis.status) alarms.update(chassis.status.alarms);
      const text = search.value.toLowerCase(), [, test] = kinds[filter.selectedIndex];
      const shown = [...chassis.events.values()].filter((it) => test(it) && (!text || w.event(it).join(" ").toLowerCase().includes(text)));
      list.update(shown.reverse().slice(0, 300), (it) => it.id);
    }
    return { title: () => `Events of ${chassis.title}`, nodes: [alarms.node, el("section", { "aria-label": "Events" },
      el("div", { class: "tools" }, el("h2", {}, "Events, newest first"), el("label", {}, "Show ", filter), el("label", {}, "Search ", search)), list.node)], show };
  }

  function healthPage(chassis) {
    const alarms = alarmList(), more = el("section", { "aria-label": "Manager" }), ready = el("p", { class: "doing" });
    const sensors = table("Power sensors", [
      { name: "sensor", cell: (it) => it.sensor },
      { name: "state", cell: (it) => (it.problem ? [it.problem, "warn"] : ["reads", "good"]) },
      { name: "newest value", number: true, cell: (it) => (it.age_ms == null ? "none" : `${w.number(it.age_ms / 1000, 1)} s old`) },
      { name: "changes every", number: true, cell: (it) => (it.refresh_ms == null ? "–" : `${w.number(it.refresh_ms)} ms`) },
      { name: "bad readings", number: true, cell: (it) => w.number(it.faults) },
    ], { empty: "No sensors." });
    const daemons = table("Agents", [
      { name: "agent", cell: (it) => (it.report ? it.report.server : it.url) },
      { name: "state", cell: (it) => (it.error ? [it.error, "bad"] : it.alarms.length ? [w.plural(it.alarms.length, "alarm"), "warn"] : ["well", "good"]) },
      { name: "policy", cell: (it) => it.policy_effective || it.policy || "–" },
      { name: "certificate ends", cell: (it) => (it.tls ? { time: 1000 * it.tls.not_after_s } : "none") },
    ]);
    const agentsPart = el("section", { "aria-label": "Agents" }, el("h2", {}, "Agents"), daemons.node);
    agentsPart.hidden = !site.agents.length;
    const show = () => {
      const { status } = chassis;
      if (!status) return;
      alarms.update(status.alarms);
      sensors.update(status.sensors, (it) => it.sensor);
      const { tls } = status, text = [["Version of this page", site.version], ["Chassis", status.chassis_id], ["Manager started", w.plural(status.epoch, "time")],
        ["Mode", status.dry_run ? "watch only" : "acts"], ["Certificate", tls ? `${tls.role}, ends ${clock(1000 * tls.not_after_s, true)}` : "none: plain HTTP on this machine"],
        ["Problem with it", tls ? tls.problem : null], ["Inputs refused", w.number(status.refused_inputs)],
        ["Clock of the manager", clock(status.at_unix_ms, true)],
        ["Ahead of this browser", Math.abs(status.at_unix_ms - chassis.heard) < 2000 ? "no" : `${w.number((status.at_unix_ms - chassis.heard) / 1000)} s`]];
      if (more.shown !== String(text)) { more.shown = String(text); more.replaceChildren(el("h2", {}, "Manager"), ready, facts(text)); }
    };
    return { title: () => `Health of ${chassis.title}`, nodes: [alarms.node, more,
      el("section", { "aria-label": "Power sensors" }, el("h2", {}, "Power sensors"), sensors.node), agentsPart], show,
    poll: async () => {
      const answer = await fetch(`${chassis.base}/readyz`, { cache: "no-store" });
      const why = answer.ok ? null : await answer.json().catch(() => ({ error: `answer ${answer.status}` }));
      set(ready, why ? `Does not do its work: ${why.error}.` : "Does its work.");
      if (site.agents.length) daemons.update(await agents(), (it) => (it.report ? it.report.server : it.url));
    } };
  }

  function fleetPage() {
    const all = table("Chassis", [
      { name: "chassis", cell: (it) => ({ href: link("chassis", it), text: it.title }) },
      { name: "state", cell: (it) => (!it.status ? ["not answering", "bad"] : [w.situation(it.status).state, w.situation(it.status).level]) },
      { name: "draw", number: true, cell: (it) => w.watts(it.status && w.draw(it.status)) },
      { name: "limit", number: true, cell: (it) => w.watts(it.status && it.status.limit_w) },
      { name: "to spare", number: true, cell: (it) => w.watts(room(it)) },
      { name: "alarms", number: true, cell: (it) => (it.status ? w.number(it.status.alarms.length) : "–") },
    ]);
    const room = (it) => (it.status && w.draw(it.status) != null ? it.status.limit_w - w.draw(it.status) : null);
    const show = () => all.update([...site.chassis].sort((a, b) => (room(a) ?? -Infinity) - (room(b) ?? -Infinity)), (it) => it.base);
    return { title: () => "All chassis, least to spare first", nodes: [el("section", { "aria-label": "Chassis" }, all.node)], show };
  }

  // ---- which page -----------------------------------------------------------------------------------------------

  const PAGES = { chassis: [chassisPage, "Chassis"], vms: [vmsPage, "VMs"], events: [eventsPage, "Events"], health: [healthPage, "Health"], server: [serverPage] };
  let page = null, current = [];

  // The manager's own word for its chassis comes with its first answer.
  function retitle() {
    set(page.heading, page.title());
    const title = `${page.title()} – Ballast`;
    if (document.title !== title) document.title = title;
  }

  function watch(chassis) {
    const mine = page;
    const listener = (what, value) => { if (page !== mine) return; if (mine.take) mine.take(what, value); if (what !== "history") mine.show(); };
    chassis.watchers.add(listener);
    return () => chassis.watchers.delete(listener);
  }

  function go() {
    const [name, index, ...more] = location.hash.replace(/^#\//, "").split("/").map((it) => { try { return decodeURIComponent(it); } catch { return it; } });
    const isFleet = site.chassis.length > 1 && !PAGES[name];
    const chassis = site.chassis[Number(index)] || site.chassis[0];
    const [make] = PAGES[name] || PAGES.chassis;
    if (page) { clearInterval(page.timer); page.leave.forEach((it) => it()); if (page.end) page.end(); }
    current = isFleet ? site.chassis : [chassis];
    page = isFleet ? fleetPage() : make(chassis, ...more);
    page.leave = current.map(watch);

    const tabs = Object.entries(PAGES).filter(([, it]) => it[1]);
    const fleet = site.chassis.length > 1 ? [el("a", { href: "#/", "aria-current": isFleet && "page" }, "All chassis")] : [];
    document.getElementById("nav").replaceChildren(...fleet, ...(isFleet ? [] : tabs.map(([key, [, text]]) =>
      el("a", { href: link(key, chassis), "aria-current": (key === name || (key === "chassis" && !PAGES[name])) && "page" }, text))));
    page.heading = el("h1");
    main.replaceChildren(page.heading, ...page.nodes);
    retitle();
    open();
    page.show();
    if (page.poll) {
      const poll = () => { if (!document.hidden) page.poll().catch(() => {}); };
      poll();
      page.timer = setInterval(poll, AGENTS_EACH_MS);
    }
  }

  // A page that nobody sees asks for nothing.
  function open() {
    for (const it of site.chassis) if (!document.hidden && current.includes(it)) it.open(); else it.close();
  }

  function tellLink() {
    const heard = Math.min(...current.map((it) => it.heard)), node = document.getElementById("link");
    const isLost = Date.now() - heard > STALE_MS;
    setClass(node, isLost ? "link lost" : "link");
    set(node, !heard ? "No answer yet" : isLost ? `No news for ${w.since(Date.now() - heard)}; trying again` : `Live, ${clock(heard)}`);
    if (isLost) page.show();
    retitle();
  }

  async function begin() {
    try {
      const answer = await get("", "/ui/site.json");
      site = { ...answer, chassis: answer.chassis.map((it) => new Chassis(it)) };
    } catch (error) {
      set(document.getElementById("link"), `No answer (${error.message}); trying again`);
      return setTimeout(begin, 2000);
    }
    addEventListener("hashchange", () => { go(); main.focus(); scrollTo(0, 0); });
    document.addEventListener("visibilitychange", open);
    document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
    go();
    tellLink();
    setInterval(tellLink, 500);
  }
  begin();
})();
