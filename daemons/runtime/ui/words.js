// What the daemons say, in the words of operators. Nothing here touches the page.
"use strict";

const words = (() => {
  const CHASSIS = {
    boot: ["Starting", "warn"], normal: ["Normal", "good"], alerting: ["Capping", "warn"],
    hardware_caps: ["Hardware caps are on", "bad"], blind: ["No power reading", "bad"],
    fenced: ["Replaced by another manager", "bad"],
  };
  const AGENT = {
    boot: ["starting", "warn"], uncapped: ["full speed", "good"], throttled: ["at lowest frequency", "warn"],
    recovering: ["speeding up again", "warn"], shedding: ["hardware limit on", "bad"], blind: ["no power reading", "bad"],
  };
  const SLOT = {
    managed: ["answers", "good"], silent: ["agent not answering", "bad"], off: ["switched off", ""],
    maintenance: ["set aside", ""], unmanaged: ["no agent", ""],
  };
  const SEVERITY = { critical: ["Critical", "bad"], warning: ["Warning", "warn"], info: ["Note", ""] };
  const of = (list, key) => list[key] || [String(key ?? "unknown").replaceAll("_", " "), "warn"];

  const number = (value, digits = 0) =>
    value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const watts = (value, digits = 0) => (value == null ? "–" : `${number(value, digits)} W`);
  const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;
  const since = (ms) => {
    const s = Math.max(0, Math.round(ms / 1000));
    if (s < 120) return `${s} s`;
    if (s < 7200) return `${Math.floor(s / 60)} min`;
    return s < 172800 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} days`;
  };
  const list = (names) =>
    names.length < 5 ? names.join(", ").replace(/, ([^,]*)$/, " and $1")
      : `${names.slice(0, 3).join(", ")} and ${names.length - 3} more`;

  // The higher of what the supplies read and what the servers report; null where nothing is read.
  const draw = (status) => (status.power_w == null ? null : Math.max(status.power_w, status.reported_w || 0));

  // What a server does, in words and by severity.
  const server = (it) => {
    if (it.slot !== "managed") return of(SLOT, it.slot);
    if (it.hardware_cap_w != null) return ["hardware cap on", "bad"];
    if (!it.report) return ["no report yet", "warn"];
    return it.report.server_limit ? AGENT.shedding : of(AGENT, it.report.state);
  };

  // The state in a word, what is being done, and to whom.
  const situation = (status) => {
    const [state, level] = of(CHASSIS, status.state);
    const power = draw(status), over = power != null && power > status.limit_w;
    const servers = status.servers.filter((it) => it.slot === "managed" || it.slot === "silent");
    const names = (test) => servers.filter(test).map((it) => it.server);
    const caps = names((it) => it.hardware_cap_w != null);
    const low = names((it) => it.report && it.report.state === "throttled");
    const back = names((it) => it.report && it.report.state === "recovering");
    const capped = names((it) => it.granted_w != null);
    const silent = names((it) => it.slot === "silent");
    const shed = servers.reduce((sum, it) => sum + (it.report ? it.report.sheddable_w : 0), 0);
    const doing = [];

    if (status.dry_run) doing.push("Watch only: this manager slows nobody and caps nothing.");
    if (status.state === "blind") {
      doing.push("The power supplies give no usable reading. Servers keep the caps that they have, and get no more, until a reading is back.");
    } else if (status.state === "fenced") {
      doing.push("Another manager rules this chassis. This one orders nothing.");
    } else if (status.state === "boot") {
      doing.push("Waiting for a complete reading of all power supplies.");
    } else if (over && !status.dry_run) {
      doing.push("The draw is over the limit; batch work is being slowed.");
    }
    if (capped.length && !status.dry_run) {
      doing.push(`${capped.length === servers.length ? "Every server has" : `${list(capped)} ${capped.length === 1 ? "has" : "have"}`} a cap; together they keep the chassis under ${watts(status.limit_w)}.`);
    }

    if (caps.length) doing.push(`Hardware caps slow every core of ${list(caps)}, user-facing VMs as well.`);
    if (low.length) doing.push(`Batch cores at lowest frequency on ${list(low)}.`);
    if (back.length) doing.push(`Batch cores speeding up again on ${list(back)}.`);
    if (!capped.length && !caps.length && !low.length && !back.length && status.state === "normal") doing.push("Nobody is slowed.");
    if (silent.length) doing.push(`${list(silent)}: agent not answering.`);
    if (status.state !== "fenced" && !status.dry_run) doing.push(`Batch work can still give ${watts(shed)}.`);

    const isCapped = status.state === "hardware_caps";
    return { state: over && !isCapped ? `Over budget: ${state.toLowerCase()}` : state, level: over ? "bad" : level, doing, power };
  };

  const headroom = (status) => {
    const power = draw(status);
    if (power == null) return "The draw is not known.";
    const room = status.limit_w - power, share = `${number((100 * power) / status.limit_w)} % of the limit`;
    return `${share}, ${room >= 0 ? `${watts(room)} to spare` : `${watts(-room)} too much`}`;
  };

  const seconds = (ms) => (ms ? `${number(ms / 1000, 1)} s` : "–");
  const mhz = (khz) => `${number(khz / 1000)} MHz`;
  const vmNow = (vm) => {
    if (vm.killed) return ["killed", "bad"];
    if (vm.quota_millicores != null) return [`held to ${number(vm.quota_millicores / 1000, 1)} cores`, "warn"];
    return vm.min_khz != null ? [`held to ${mhz(vm.min_khz)}`, "warn"] : ["full speed", "good"];
  };
  const vmClass = (vm) => (vm.class === "user-facing" ? "user-facing" : "batch");

  // Who, and what in words, for each event.
  const lower = (pair) => pair[0].charAt(0).toLowerCase() + pair[0].slice(1);
  const EVENTS = {
    chassis_state: (e) => ["Chassis", `${lower(of(CHASSIS, e.from))} → ${lower(of(CHASSIS, e.to))}: ${e.cause}`],
    agent_state: (e) => ["Agent", `${of(AGENT, e.from)[0]} → ${of(AGENT, e.to)[0]}: ${e.cause}`],
    alert_sent: (e) => [e.server, e.level === "watch" ? "Told that the cap is over" : e.level === "emergency" ? "Told to go to lowest frequency at once" : "Told to keep under its cap"],
    slot_changed: (e) => [e.server, `${of(SLOT, e.from)[0]} → ${of(SLOT, e.to)[0]}: ${e.cause}`],
    order: (e) => [e.who, `${e.what}${e.after ? ` ${e.after}` : ""}: ${e.outcome}`],
    reload: (e) => ["Config", e.refused ? `Refused: ${e.refused}` : `Now in force: ${e.changed.join(", ") || "no change"}`],
    alarm: (e) => ["Alarm", e.message],
    vm_killed: (e) => [e.vm, `Killed: the draw was ${watts(e.power_w)}, the cap ${watts(e.cap_w)}`],
    floor_reached: (e) => ["Agent", `${plural(e.cores, "core")} at lowest frequency`],
  };
  const KNOWN = ["event", "at_ns", "at_unix_ms"];
  const event = (e) =>
    EVENTS[e.event] ? EVENTS[e.event](e)
      : [String(e.event).replaceAll("_", " "), Object.entries(e).filter(([k]) => !KNOWN.includes(k))
        .map(([k, v]) => `${k} ${typeof v === "string" ? v : JSON.stringify(v)}`).join(", ")];

  return { SEVERITY, of, number, watts, plural, since, list, draw, server, situation, headroom, seconds, mhz, vmNow, vmClass,
    event };
})();
