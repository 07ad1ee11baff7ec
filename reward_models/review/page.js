// The page of `vla label --review`: shows an episode, takes keys, sends corrections.
"use strict";

const COLOURS = { progress: "#3b6fd4", done: "#d97706", confidence: "#2e9e5b" };
const TRENDS = { "-1": ["regress", "#d8443e"], "0": ["stagnate", "#8d96a3"], "1": ["progress", "#2e9e5b"] };
const LEFT = 34, RIGHT = 8, TOP = 8, BOTTOM = 176, BAND = 11;
const NEAR = 60; // episodes of the queue that are listed around the current one

const film = document.getElementById("film");
const chart = document.getElementById("chart");
const key = (name) => document.getElementById(name);
let queue = [], corrections = [], at = 0, episode = null, frame = 0, watching = 0;

// --- talking to the server --------------------------------------------------------------------

async function ask(path, body) {
  const options = body === undefined ? {} : {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  };
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    throw new Error("the server does not answer: start `vla label --review` again");
  }
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.error);
  return told;
}

function guard(action) {
  return async (...given) => {
    try {
      await action(...given);
      key("trouble").hidden = true;
    } catch (error) {
      key("trouble").textContent = error.message;
      key("trouble").hidden = false;
    }
  };
}

// --- an episode -------------------------------------------------------------------------------

async function open(place) {
  at = Math.max(0, Math.min(queue.length - 1, place));
  const number = queue[at].index;
  delete document.body.dataset.ready;
  const found = await ask(`episode/${number}.json`);
  if (queue[at].index !== number) return; // another one was asked for meanwhile
  [episode, frame] = [found, 0];
  location.replace(`#${number}`);
  film.src = `clip/${number}.mp4`;
  key("task").textContent = `${number}: ${episode.task}`;
  key("why").textContent = episode.reasons.join("; ") || "nothing stands out";
  key("place").textContent = `${at + 1} of ${queue.length}`;
  draw();
  watch();
  await new Promise((resolve, reject) => {
    film.onloadeddata = resolve;
    film.onerror = () => reject(new Error(`the video of episode ${number} does not play`));
  });
  if (queue[at].index !== number) return;
  document.body.dataset.ready = number;
  if (at + 1 < queue.length) fetch(`clip/${queue[at + 1].index}.mp4`, { method: "HEAD" });
}

// Follow the picture that is on the screen, not the clock, so that cursor and video agree.
function watch() {
  const mine = ++watching;
  const follow = (_, seen) => {
    if (mine !== watching) return;
    if (!film.seeking) show(Math.round(seen.mediaTime * episode.fps));
    film.requestVideoFrameCallback(follow);
  };
  film.requestVideoFrameCallback(follow);
}

function seek(to) {
  film.pause();
  show(to);
  film.currentTime = (frame + 0.5) / episode.fps;
}

function show(to) {
  frame = Math.max(0, Math.min(episode.frames - 1, to));
  document.body.dataset.frame = frame;
  const cursor = chart.querySelector(".cursor");
  for (const end of ["x1", "x2"]) cursor.setAttribute(end, x(frame));
  const value = (name, digits = 2) => {
    const found = episode[name][frame];
    return found === null ? "abstains" : found.toFixed(digits);
  };
  const told = [
    ["frame", `${frame} of ${episode.frames}`], ["time", `${(frame / episode.fps).toFixed(1)} s`],
    ["progress", value("progress")], ["delta", value("delta")], ["done", value("done")],
    ["confidence", value("confidence")], ["trend", TRENDS[episode.trend[frame]][0]],
  ];
  key("readout").replaceChildren(...told.map(([name, text]) => {
    const item = make("li", {}, text), label = make("span", {}, name);
    label.style.color = COLOURS[name] || "";
    item.prepend(label);
    return item;
  }));
}

// --- drawing ----------------------------------------------------------------------------------

function make(name, attributes, text = "") {
  const node = document.createElement(name);
  for (const [what, value] of Object.entries(attributes)) node.setAttribute(what, value);
  node.textContent = text;
  return node;
}

function stroke(name, attributes, text = "") {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [what, value] of Object.entries(attributes)) node.setAttribute(what, value);
  node.textContent = text;
  chart.append(node);
  return node;
}

function x(t) {
  return LEFT + (chart.clientWidth - LEFT - RIGHT) * t / Math.max(1, episode.frames - 1);
}

function y(share) {
  return BOTTOM - (BOTTOM - TOP) * Math.min(1, Math.max(0, share));
}

function draw() {
  if (!episode) return;
  chart.replaceChildren();
  for (const share of [0, 0.5, 1]) {
    const line = { x1: LEFT, x2: chart.clientWidth - RIGHT, y1: y(share), y2: y(share) };
    stroke("line", { ...line, class: "grid" });
    stroke("text", { x: LEFT - 6, y: y(share) + 4, "text-anchor": "end" }, share);
  }
  for (const name of ["confidence", "done", "progress"]) curve(episode[name], COLOURS[name]);
  const width = x(1) - x(0);
  episode.trend.forEach((value, t) => {
    const silent = episode.progress[t] === null;
    if (!silent) band(t, BOTTOM + 10, width, TRENDS[value][1], 0.55);
  });
  stroke("text", { x: LEFT - 6, y: BOTTOM + 20, "text-anchor": "end" }, "said");
  stroke("text", { x: LEFT - 6, y: BOTTOM + 38, "text-anchor": "end" }, "you");
  const own = standing().filter((one) => one.episode === episode.index);
  for (const one of own) {
    if (one.kind === "trend") band(one.frame, BOTTOM + 28, Math.max(width, 5), TRENDS[one.value][1], 1);
  }
  stroke("line", { class: "cursor", y1: TOP, y2: BOTTOM + 42, x1: 0, x2: 0 });
  show(frame);
  list(own);
}

function curve(values, colour) {
  let run = [];
  const end = () => {
    if (run.length) stroke("polyline", {
      points: run.join(" "), fill: "none", stroke: colour, "stroke-width": 1.75, "stroke-linecap": "round",
    });
    run = [];
  };
  values.forEach((value, t) => value === null ? end() : run.push(`${x(t)},${y(value)}`));
  end();
}

function band(t, top, width, colour, opacity) {
  stroke("rect", { x: x(t) - width / 2, y: top, width, height: BAND, fill: colour, "fill-opacity": opacity });
}

// --- corrections ------------------------------------------------------------------------------

function standing() {
  const last = new Map();
  for (const one of corrections) last.set([one.episode, one.frame, one.kind].join(), one);
  return [...last.values()];
}

function say(one) {
  if (one.kind === "success") return one.value ? "success" : "failure";
  return `frame ${one.frame}: ${TRENDS[one.value][0]}`;
}

function list(own) {
  own.sort((a, b) => (a.frame ?? -1) - (b.frame ?? -1));
  key("marks").replaceChildren(...own.map((one) => make("li", { title: one.time }, `${say(one)} (${one.author})`)));
  if (!own.length) key("marks").append(make("li", { class: "soft" }, "none yet"));
  const done = new Set(corrections.map((one) => one.episode));
  const first = Math.max(0, at - NEAR), last = Math.min(queue.length, at + NEAR + 1);
  key("queue").replaceChildren(...queue.slice(first, last).map((one, k) => {
    const item = make("li", { "data-place": first + k, class: first + k === at ? "here" : "" });
    item.append(make("span", { class: "number" }, one.index), make("span", { class: "what" }, one.task));
    item.append(make("span", {}, done.has(one.index) ? "✓" : ""));
    return item;
  }));
  key("queue").querySelector(".here")?.scrollIntoView({ block: "nearest" });
}

async function correct(kind, value) {
  const where = kind === "trend" ? frame : null;
  const told = await ask("override", { episode: episode.index, frame: where, kind, value });
  corrections = told.overrides;
  draw();
}

async function undo() {
  const told = await ask("undo", {});
  corrections = told.overrides;
  const place = told.undone ? queue.findIndex((one) => one.index === told.undone.episode) : -1;
  if (place >= 0 && place !== at) await open(place);
  if (told.undone?.kind === "trend") seek(told.undone.frame);
  draw();
}

const KEYS = {
  j: () => correct("trend", -1),
  k: () => correct("trend", 0),
  l: () => correct("trend", 1),
  s: () => correct("success", true),
  f: () => correct("success", false),
  u: undo,
  n: () => open(at + 1),
  p: () => open(at - 1),
  " ": () => film.paused ? film.play() : film.pause(),
  ArrowLeft: () => seek(frame - 1),
  ArrowRight: () => seek(frame + 1),
};

// One after the other: a correction belongs to the episode that was on the screen at the key.
let turn = Promise.resolve();
function press(name) {
  const action = KEYS[name];
  if (action) turn = turn.then(guard(action));
  return Boolean(action);
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const name = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (press(name)) event.preventDefault();
});
for (const button of document.querySelectorAll("button[data-key]")) {
  button.addEventListener("click", () => { button.blur(); press(button.dataset.key); });
}
key("queue").addEventListener("click", (event) => {
  const place = event.target.closest("li")?.dataset.place;
  if (place !== undefined) turn = turn.then(guard(() => open(Number(place))));
});
film.addEventListener("click", () => press(" "));
const drag = (event) => {
  const share = (event.offsetX - LEFT) / (chart.clientWidth - LEFT - RIGHT);
  if (event.buttons && episode) seek(Math.round(share * (episode.frames - 1)));
};
chart.addEventListener("pointerdown", drag);
chart.addEventListener("pointermove", drag);
window.addEventListener("resize", draw);

turn = guard(async () => {
  const told = await ask("queue.json");
  [queue, corrections] = [told.episodes, told.overrides];
  const wanted = queue.findIndex((one) => `#${one.index}` === location.hash);
  const done = new Set(corrections.map((one) => one.episode));
  const fresh = queue.findIndex((one) => !done.has(one.index));
  await open(wanted >= 0 ? wanted : Math.max(0, fresh));
})();
