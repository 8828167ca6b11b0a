// The page of `scaledsgd serve`. Whatever comes from the server is put on it as text, never as HTML.
"use strict";

// --- Small tools ---------------------------------------------------------------------------------

const $ = (id) => document.getElementById(id);

/** An element: h("p", {class: "sub", onclick: f}, "text", child, ...). */
function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child != null));
  return node;
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const exact = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const scientific = new Intl.NumberFormat("en", { notation: "scientific", maximumSignificantDigits: 3 });

function number(value) {
  if (value == null) return "–";
  if (Number.isInteger(value)) return whole.format(value);
  const size = Math.abs(value);
  return size && (size < 1e-3 || size >= 1e7) ? scientific.format(value) : short.format(value);
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function bar(share) {
  const fill = h("i");
  fill.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return h("div", { class: "track", "aria-hidden": "true" }, fill);
}

const skeleton = () => h("div", { class: "skeleton", "aria-label": "Loading" }, h("i"), h("i"), h("i"), h("i"));
const empty = (text) => h("p", { class: "state" }, text);

function failed(why, again) {
  const button = again && h("button", { type: "button", onclick: again }, "Try again");
  return h("div", { class: "state error", role: "alert" }, h("span", {}, why.message || String(why)), button);
}

/** Show what a promise brings: a skeleton meanwhile, and an error with a way to try again. */
async function fill(place, ask, draw, quiet = false) {
  const mine = Symbol("latest");
  place.latest = mine;
  place.setAttribute("aria-busy", "true");
  const waiting = quiet ? 0 : setTimeout(() => place.latest === mine && place.replaceChildren(skeleton()), 120);
  try {
    const told = await ask();
    if (place.latest === mine) place.replaceChildren(...[draw(told)].flat());
  } catch (why) {
    if (place.latest === mine) place.replaceChildren(failed(why, () => fill(place, ask, draw)));
  } finally {
    clearTimeout(waiting);
    if (place.latest === mine) place.removeAttribute("aria-busy");
  }
}

// --- The server ----------------------------------------------------------------------------------

const KEY = "scaledsgd-token";
let asking = null;

function takeToken() {
  const found = location.hash.match(/^#token=(.+)$/);
  if (!found) return false;
  sessionStorage.setItem(KEY, decodeURIComponent(found[1]));
  history.replaceState(null, "", location.pathname);
  return true;
}

/** Ask for a token, once for all who need it. */
function prompted(why) {
  asking ??= new Promise((go) => {
    $("ask-wrong").textContent = why;
    $("token").value = "";
    $("ask").showModal();
    $("ask").oncancel = (event) => event.preventDefault();
    $("ask-form").onsubmit = () => {
      sessionStorage.setItem(KEY, $("token").value.trim());
      asking = null;
      go();
    };
  });
  return asking;
}

async function api(path, body, signal) {
  for (;;) {
    const token = sessionStorage.getItem(KEY);
    const headers = token ? { authorization: `Bearer ${token}` } : {};
    const how = body === undefined ? { headers, signal } : {
      method: "POST", headers: { ...headers, "content-type": "application/json" }, body: JSON.stringify(body), signal,
    };
    let answer;
    try {
      answer = await fetch(path, how);
    } catch (why) {
      throw signal?.aborted ? why : new Error("The server does not answer.");
    }
    if (answer.status === 401) {
      await prompted(token ? "That token is wrong, or has expired." : "");
      continue;
    }
    if (path === "v1/live" && answer.ok) return answer;
    const told = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Error(told.detail || `The server answers ${answer.status}.`);
    return told;
  }
}

const enc = encodeURIComponent;
const named = (one) => one.title || String(one.item ?? one.id);

// --- Charts --------------------------------------------------------------------------------------

const charts = new Set();

/** A uPlot chart that follows the width of its place and the colours of the page. */
function chart(place, options, data) {
  const mine = { place, options, data, plot: null };
  mine.draw = () => {
    const width = place.clientWidth;
    if (!width) return;
    mine.plot?.destroy();
    const faint = colour("soft"), rule = colour("rule");
    const axis = (more) => ({ stroke: faint, grid: { stroke: rule, width: 1 }, ticks: { stroke: rule, width: 1 }, font: "12px system-ui", ...more });
    const told = options();
    mine.plot = new uPlot({
      width, height: told.height || 190, legend: { show: false }, cursor: { y: false, points: { size: 6 } },
      ...told, axes: [axis({ size: 34, ...told.x }), axis({ size: 58, ...told.y })],
    }, mine.data, place);
  };
  mine.set = (data) => { mine.data = data; mine.plot ? mine.plot.setData(data) : mine.draw(); };
  mine.size = () => mine.plot && place.clientWidth && mine.plot.setSize({ width: place.clientWidth, height: mine.plot.height });
  charts.add(mine);
  requestAnimationFrame(mine.draw);
  return mine;
}

addEventListener("resize", () => charts.forEach((one) => one.size()));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  charts.forEach((one) => one.draw());
  planes.forEach((one) => one.draw());
});

/** To one digit: where an axis begins there is also its first number. */
const rounded = (v, how) => { const unit = 10 ** Math.floor(Math.log10(v)); return how(v / unit) * unit; };
const logged = (values) => values.every((v) => v == null || v > 0);
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 }); // what fits beside an axis
const ticks = (_, values) => values.map((v) => (v == null ? "" : Math.abs(v) >= 1e4 ? compact.format(v) : number(v)));

// --- A plane of points ---------------------------------------------------------------------------

const planes = new Set();

/** Points that can be zoomed, dragged and pointed at. Each is {x, y, name, size, kind}; `kind` is
 * "", "near", "here" or "fixed". */
function plane(place, label, onpick = () => {}) {
  const canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": label });
  const tip = h("div", { class: "tip", hidden: true });
  const tools = h("div", { class: "tools" },
    h("button", { type: "button", "aria-label": "Zoom in", onclick: () => zoom(1.5) }, "+"),
    h("button", { type: "button", "aria-label": "Zoom out", onclick: () => zoom(1 / 1.5) }, "−"),
    h("button", { type: "button", "aria-label": "Show all", onclick: () => { fit(); draw(); } }, "⤢"));
  place.replaceChildren(canvas, tools, tip);
  let points = [], view = { x: 0, y: 0, scale: 1 }, fitted = false, names = 14, aspect = false, diagonal = false;

  const toX = (p) => canvas.clientWidth / 2 + (p.x - view.x) * view.scale;
  const toY = (p) => canvas.clientHeight / 2 - (p.y - view.y) * view.scale * (aspect ? 1 : view.stretch);

  function fit() {
    if (!points.length) return;
    const xs = points.map((p) => p.x), ys = points.map((p) => p.y);
    const range = (v) => [Math.min(...v), Math.max(...v)];
    const [x0, x1] = range(xs), [y0, y1] = range(ys);
    const w = Math.max(canvas.clientWidth - 90, 50), t = Math.max(canvas.clientHeight - 70, 50);
    const sx = w / (x1 - x0 || 1), sy = t / (y1 - y0 || 1);
    view = { x: (x0 + x1) / 2, y: (y0 + y1) / 2, scale: aspect ? Math.min(sx, sy) : sx, stretch: sy / sx };
    fitted = true;
  }

  function zoom(by, px = canvas.clientWidth / 2, py = canvas.clientHeight / 2) {
    const k = aspect ? 1 : view.stretch;
    const x = view.x + (px - canvas.clientWidth / 2) / view.scale;
    const y = view.y - (py - canvas.clientHeight / 2) / (view.scale * k);
    view.scale *= by;
    view.x = x - (px - canvas.clientWidth / 2) / view.scale;
    view.y = y + (py - canvas.clientHeight / 2) / (view.scale * k);
    draw();
  }

  function draw() {
    const ratio = devicePixelRatio || 1, W = canvas.clientWidth, H = canvas.clientHeight;
    if (!W) return;
    if (!fitted) fit();
    canvas.width = W * ratio;
    canvas.height = H * ratio;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const ink = { "": colour("faint"), near: colour("accent"), here: colour("warm"), fixed: colour("warm") };
    const seen = points.filter((p) => toX(p) > -20 && toX(p) < W + 20 && toY(p) > -20 && toY(p) < H + 20);
    const order = ["", "near", "here", "fixed"];
    if (diagonal) {
      pen.strokeStyle = colour("accent");
      pen.lineWidth = 1.5;
      pen.beginPath();
      for (const px of [0, W]) {
        const x = view.x + (px - W / 2) / view.scale;
        pen.lineTo(px, toY({ y: x }));
      }
      pen.stroke();
    }
    seen.sort((a, b) => order.indexOf(a.kind) - order.indexOf(b.kind));
    for (const p of seen) {
      pen.fillStyle = ink[p.kind];
      pen.globalAlpha = p.kind ? 1 : 0.55;
      pen.beginPath();
      if (p.kind === "fixed") pen.rect(toX(p) - 4.5, toY(p) - 4.5, 9, 9);
      else pen.arc(toX(p), toY(p), p.kind ? Math.max(4.5, p.size) : p.size, 0, 7);
      pen.fill();
    }
    pen.globalAlpha = 1;
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const taken = [[W - 52, 0, W, 130]]; // the tools, and names
    const dots = seen.filter((p) => p.kind).map((p) => [toX(p) - 5, toY(p) - 5, toX(p) + 5, toY(p) + 5]);
    const clear = (box, others) => others.every((b) => box[0] >= b[2] || box[2] <= b[0] || box[1] >= b[3] || box[3] <= b[1]);
    const wanted = [...seen].reverse().sort((a, b) => order.indexOf(b.kind) - order.indexOf(a.kind) || b.size - a.size);
    let left = names;
    for (const p of wanted) {
      if (!p.kind && left <= 0) continue;
      const text = p.name.length > 28 ? `${p.name.slice(0, 27)}…` : p.name;
      const width = pen.measureText(text).width, y = toY(p);
      const around = (x) => [x - 3, y - 8, x + width + 3, y + 8];
      const places = [toX(p) + 9, toX(p) - 9 - width].filter((x) => x > 2 && x + width < W - 2 && clear(around(x), taken));
      const x = places.find((x) => clear(around(x), dots)) ?? (p.kind === "here" ? places[0] : undefined);
      if (x === undefined) continue; // only the one that is asked for may hide others
      taken.push(around(x));
      if (!p.kind) left -= 1;
      pen.lineWidth = 3;
      pen.strokeStyle = colour("paper");
      pen.strokeText(text, x, y);
      pen.fillStyle = p.kind ? colour("ink") : colour("soft");
      pen.fillText(text, x, y);
    }
  }

  function nearest(event) {
    const box = canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    let best = null, least = 14 ** 2;
    for (const p of points) {
      const d = (toX(p) - px) ** 2 + (toY(p) - py) ** 2;
      if (d < least) [best, least] = [p, d];
    }
    return best;
  }

  let from = null, moved = false;
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * 0.002), event.offsetX, event.offsetY);
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    from = [event.clientX, event.clientY];
    moved = false;
    canvas.setPointerCapture(event.pointerId);
    canvas.classList.add("dragging");
  });
  canvas.addEventListener("pointermove", (event) => {
    if (from) {
      const [dx, dy] = [event.clientX - from[0], event.clientY - from[1]];
      moved ||= Math.abs(dx) + Math.abs(dy) > 4;
      view.x -= dx / view.scale;
      view.y += dy / (view.scale * (aspect ? 1 : view.stretch));
      from = [event.clientX, event.clientY];
      draw();
      return;
    }
    const p = nearest(event);
    tip.hidden = !p;
    if (!p) return;
    tip.textContent = p.tip || p.name;
    const half = tip.offsetWidth / 2 + 4; // all of it inside, at either edge
    const x = Math.max(half, Math.min(canvas.clientWidth - half, toX(p)));
    tip.style.left = `${x}px`;
    tip.style.top = `${Math.max(tip.offsetHeight + 16, toY(p))}px`;
  });
  canvas.addEventListener("pointerup", (event) => {
    from = null;
    canvas.classList.remove("dragging");
    const p = !moved && nearest(event);
    if (p) onpick(p);
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("keydown", (event) => {
    const step = 40 / view.scale;
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    if (event.key === "+" || event.key === "=") zoom(1.3);
    else if (event.key === "-") zoom(1 / 1.3);
    else if (event.key === "0") { fit(); draw(); }
    else if (moves[event.key]) {
      view.x += step * moves[event.key][0];
      view.y += step * moves[event.key][1] / (aspect ? 1 : view.stretch);
      draw();
    } else return;
    event.preventDefault();
  });
  new ResizeObserver(() => { fitted = false; draw(); }).observe(place);
  const mine = {
    draw,
    show(some, how = {}) {
      const first = !points.length;
      points = some;
      names = how.names ?? names;
      aspect = how.aspect ?? aspect;
      diagonal = how.diagonal ?? diagonal;
      if (first || how.fit) fitted = false;
      draw();
    },
    get points() { return points; },
  };
  planes.add(mine);
  return mine;
}

// --- Search --------------------------------------------------------------------------------------

/** A field that looks for items or users while somebody types: arrows, Enter and Escape work. */
function finder(label, what, onpick) {
  const list = h("ul", { class: "found", role: "listbox", id: `found-${what}-${label.length}`, hidden: true });
  const input = h("input", {
    type: "search", placeholder: label, "aria-label": label, role: "combobox", autocomplete: "off", spellcheck: "false",
    "aria-expanded": "false", "aria-controls": list.id, "aria-autocomplete": "list",
  });
  let found = [], at = -1, timer = 0, last = 0, of = null; // `of`: the text that was looked for

  function close() {
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
  }
  function select(n) {
    at = n;
    [...list.children].forEach((li, k) => li.setAttribute("aria-selected", k === n));
    if (n < 0) input.removeAttribute("aria-activedescendant");
    else input.setAttribute("aria-activedescendant", `${list.id}-${n}`);
    list.children[n]?.scrollIntoView({ block: "nearest" });
  }
  function pick(n) {
    if (!found[n]) return;
    clearTimeout(timer);
    last += 1; // what is still under way comes too late
    of = null;
    close();
    input.value = "";
    onpick(found[n]);
  }
  async function look() {
    const mine = ++last, text = input.value;
    clearTimeout(timer);
    try {
      const told = await api(`v1/search?what=${what}&limit=12&q=${enc(text)}`);
      if (mine !== last) return;
      [found, of] = [told.found, text];
      list.replaceChildren(...found.map((one, n) => h("li", {
        role: "option", "aria-selected": "false", id: `${list.id}-${n}`,
        onmousedown: (event) => { event.preventDefault(); pick(n); },
      }, h("span", {}, one.title || String(one.id)), one.title ? h("small", {}, String(one.id)) : null)));
      if (!found.length) list.replaceChildren(h("li", { class: "none" }, "Nothing has that in its name."));
      select(found.length ? 0 : -1);
    } catch (why) {
      if (mine !== last) return;
      found = [];
      list.replaceChildren(h("li", { class: "none" }, why.message));
    }
    list.hidden = document.activeElement !== input;
    input.setAttribute("aria-expanded", String(!list.hidden));
  }
  /** Take the first of what is typed, not of what was found before; whoever types on keeps the text. */
  async function enter(text) {
    const told = await api(`v1/search?what=${what}&limit=12&q=${enc(text)}`).catch(() => ({ found: [] }));
    if (input.value !== text) {
      if (told.found.length) onpick(told.found[0]);
      return;
    }
    found = told.found;
    pick(0);
  }
  input.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(look, 90); });
  input.addEventListener("focus", look);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (list.hidden) look();
      else if (found.length) select((at + (event.key === "ArrowDown" ? 1 : -1) + found.length) % found.length);
    } else if (event.key === "Enter") {
      if (of === input.value) pick(at);
      else enter(input.value);
    }
    else if (event.key === "Escape") close();
    else return;
    event.preventDefault();
  });
  return h("div", { class: "find" }, input, list);
}

// --- Items: search, like this one, picks, a user, why, the map ------------------------------------

function exploring(model) {
  const state = { mode: "item", item: null, picks: [], user: null };
  const answer = h("section", { class: "answer", "aria-live": "polite" });
  const chips = h("div", { class: "chips" });
  const searching = h("div");
  const place = h("div", { class: "plane tall" });
  const mapNote = h("p", { class: "sub" }, "The best-known items along the two principal directions. Scroll to zoom, drag to move, click to look for others like it.");
  let flat = null;
  const modes = [["item", "Like this one"], ["picks", "For some picks"]];
  if (model.users) modes.push(["user", "For a user"]);
  const choosing = modes.map(([mode, text]) => h("button", { type: "button", "data-mode": mode, onclick: () => turn(mode) }, text));

  function turn(mode) {
    state.mode = mode;
    choosing.forEach((one) => one.setAttribute("aria-pressed", String(one.dataset.mode === mode)));
    const label = { item: "Search an item …", picks: "Add an item that somebody likes …", user: "Search a user …" }[mode];
    searching.replaceChildren(finder(label, mode === "user" ? "users" : "items", chosen));
    show();
  }
  function chosen(one) {
    if (state.mode === "item") state.item = one;
    else if (state.mode === "user") state.user = one;
    else if (!state.picks.some((p) => p.id === one.id)) state.picks.push(one);
    show();
  }
  function like(one) {
    state.item = { id: one.item ?? one.id, title: one.title };
    turn("item");
    answer.scrollIntoView({ block: "nearest", behavior: "smooth" });
  }
  function show() {
    const { mode, item, picks, user } = state;
    chips.replaceChildren(...(mode !== "picks" ? [] : picks.map((one) => h("span", { class: "chip" }, named(one), h("button", {
      type: "button", "aria-label": `Remove ${named(one)}`,
      onclick: () => { state.picks = state.picks.filter((p) => p !== one); show(); },
    }, "×")))));
    const nothing = {
      item: !item && "Search for an item, or click one on the map, to see what is like it.",
      picks: !picks.length && "Pick a few items: the answer is for somebody who likes them and is not known yet.",
      user: !user && "Search for a user to see what suits her, and why.",
    }[mode];
    if (nothing) {
      answer.latest = null;
      answer.replaceChildren(empty(nothing));
      return mark([], []);
    }
    const [title, ask, why] = {
      item: () => [`Like ${named(item)}`, () => api(`v1/similar/${enc(item.id)}?k=12`), null],
      picks: () => ["For whoever likes these", () => api("v1/recommend", { items: picks.map((p) => p.id), k: 12 }),
        (one) => api("v1/explain", { items: picks.map((p) => p.id), item: one.item, k: 4 })],
      user: () => [`For ${user.id}`, () => api(`v1/recommend/${enc(user.id)}?k=12`),
        (one) => api(`v1/explain/${enc(user.id)}/${enc(one.item)}?k=4`)],
    }[mode]();
    fill(answer, ask, ({ items }) => {
      mark(mode === "item" ? [item.id] : mode === "picks" ? picks.map((p) => p.id) : [], items.map((one) => one.item));
      const best = Math.max(...items.map((one) => one.score), 1e-9);
      return [h("h2", {}, title), items.length ? h("ol", { class: "rows" }, items.map((one, n) => row(one, n, best, why))) : empty("Nothing is left to recommend.")];
    });
  }
  function row(one, n, best, why) {
    const acts = h("div", { class: "acts" });
    const line = h("div", { class: "line" }, h("span", { class: "n" }, String(n + 1)),
      h("button", { class: "name", type: "button", title: named(one), onclick: () => like(one) }, named(one)), bar(one.score / best),
      h("span", { class: "score" }, Math.abs(one.score) < 100 ? one.score.toFixed(3) : number(one.score)), acts);
    const whole = h("li", { class: "row" }, line);
    if (why && model.abilities.includes("explain")) {
      const reasons = h("div", { class: "why", hidden: true });
      acts.append(h("button", {
        class: "act", type: "button", "aria-expanded": "false",
        onclick: (event) => {
          const open = event.target.getAttribute("aria-expanded") !== "true";
          event.target.setAttribute("aria-expanded", String(open));
          reasons.hidden = !open;
          if (open) fill(reasons, () => why(one), ({ items }) => items.map((reason) => h("div", {},
            h("span", {}, named(reason)), bar(reason.share), h("span", { class: "share" }, `${Math.round(100 * reason.share)}%`))));
        },
      }, "Why"));
      whole.append(reasons);
    }
    if (state.mode === "user" && model.learning && model.events.length === 2) {
      acts.append(h("button", {
        class: "act", type: "button", "aria-label": `${state.user.id} chooses ${named(one)}`,
        onclick: async (event) => {
          event.target.disabled = true;
          try {
            await api("v1/events", { user: state.user.id, item: one.item });
            event.target.textContent = "✓";
            setTimeout(show, 1500);
          } catch (problem) {
            whole.append(failed(problem));
          }
        },
      }, "Choose"));
    }
    return whole;
  }
  function mark(here, near) {
    if (!flat) return;
    const kind = (id) => (here.includes(id) ? "here" : near.includes(id) ? "near" : "");
    flat.show(flat.points.map((p) => ({ ...p, kind: kind(p.id) })), { names: here.length || near.length ? 0 : 16 });
  }
  const view = h("div", { class: "two" },
    h("section", { class: "card" }, h("div", { class: "modes", role: "group", "aria-label": "What to ask" }, choosing), searching, chips, answer),
    h("section", { class: "card" }, h("h2", {}, "Map of items"), mapNote, place));
  turn("item");
  fill(place, () => api("v1/map?limit=2000"), ({ items, count }) => {
    const most = Math.max(...items.map((one) => one.count), 1);
    if (count > items.length) mapNote.prepend(`${whole.format(items.length)} of ${whole.format(count)} items. `);
    setTimeout(() => {
      flat = plane(place, "Map of items", (p) => like({ item: p.id, title: p.title }));
      flat.show(items.map((one) => ({
        x: one.x, y: one.y, id: one.item, title: one.title, name: named(one), kind: "",
        size: 2.2 + 4 * Math.sqrt(one.count / most), tip: one.count ? `${named(one)} · ${number(one.count)} users` : named(one),
      })), { names: 16 });
      show();
    });
    return [];
  });
  return view;
}

// --- Matrices and distances ------------------------------------------------------------------------

function spectrum(model) {
  const values = model.spectrum.filter((v) => v != null);
  const most = Math.max(...values, 1e-300);
  const low = Math.min(...values.filter((v) => v > 0), most) / 2;
  const level = (v) => (v > 0 ? Math.max(0.02, most / low > 300 ? Math.log(v / low) / Math.log(most / low) : v / most) : 0.01);
  const bars = h("div", { class: "bars", role: "img", "aria-label": `Singular values: ${values.map(number).join(", ")}` }, values.map((v) => {
    const one = h("i", { title: number(v), class: v < 1e-9 * most ? "off" : false });
    one.style.height = `${100 * level(v)}%`;
    return one;
  }));
  const scale = most / low > 300 ? ", by orders of magnitude" : "";
  return h("section", { class: "card" }, h("h2", {}, "Spectrum"),
    h("p", { class: "sub" }, `Singular values of what was learned${scale}: from ${number(most)} to ${number(values.at(-1))}.`), bars);
}

function asking_entry(model) {
  const said = h("output", { "aria-live": "polite" });
  const row = h("input", { name: "row", required: true, autocomplete: "off" });
  const column = h("input", { name: "column", required: true, autocomplete: "off" });
  const what = model.kind === "DistanceCompleter" ? ["Point", "Another point", "Distance"] : ["Row", "Column", "Entry"];
  const form = h("form", {
    class: "form",
    onsubmit: (event) => {
      event.preventDefault();
      const body = { row: [row.value.trim()], column: [column.value.trim()] };
      fill(said, () => api("v1/predict", body), ({ predictions }) => {
        const value = model.kind === "DistanceCompleter" ? Math.sqrt(Math.max(0, predictions[0])) : predictions[0];
        return [`${what[2]} ${number(value)}`];
      });
    },
  }, h("label", {}, what[0], row), h("label", {}, what[1], column), h("button", { class: "primary", type: "submit" }, "Predict"));
  return h("section", { class: "card" }, h("h2", {}, "Ask for one"), h("p", { class: "sub" }, "By the ids that the model was trained on."), form, said);
}

function errors(model, refresh) {
  const place = h("div");
  const scatter = h("div", { class: "plane square" });
  const note = h("p", { class: "sub" });
  const list = h("section", { class: "card" }, h("h2", {}, model.kind === "DistanceCompleter" ? "Residuals of known distances" : "Worst rows"),
    h("p", { class: "sub" }, model.kind === "DistanceCompleter" ? "Those whose squares are furthest off." : "By the root mean square error of their known entries."), place);
  const draw = h("section", { class: "card" }, h("h2", {}, "Known against predicted"), note, scatter);
  let drawn = null;
  const distance = model.kind === "DistanceCompleter";
  const root = (v) => (distance ? Math.sqrt(Math.max(0, v)) : v);
  const update = (quiet) => fill(place, () => api("v1/residuals"), (told) => {
    if (!told.count) {
      draw.hidden = true;
      return empty("No known entries to compare with: start the server with --known FILE.");
    }
    note.textContent = `${whole.format(told.count)} known ${distance ? "distances, root mean square error of their squares" : "entries, root mean square error"} ${number(told.rms)}. On the line both agree.`;
    draw.hidden = false;
    setTimeout(() => {
      drawn ??= plane(scatter, "Known values against predictions");
      drawn.show(told.shown.map(([known, said]) => ({
        x: root(known), y: root(said), name: "", kind: "", size: 2.4, tip: `known ${number(root(known))}, predicted ${number(root(said))}`,
      })), { names: 0, aspect: true, diagonal: true });
    });
    if (distance) {
      return h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "Between"), h("th", { class: "num" }, "Known"), h("th", { class: "num" }, "Found"), h("th", { class: "num" }, "Off by"))),
        h("tbody", {}, told.worst.slice(0, 25).map((one) => h("tr", {}, h("td", {}, `${one.row} – ${one.column}`), h("td", { class: "num" }, exact.format(root(one.value))),
          h("td", { class: "num" }, exact.format(root(one.predicted))), h("td", { class: "num" }, number(Math.abs(root(one.predicted) - root(one.value)))))))));
    }
    const worst = told.worst_rows[0]?.rms || 1;
    return h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "Row"), h("th", {}, "Error"), h("th", { class: "num" }, "RMS"), h("th", { class: "num" }, "Known"))),
      h("tbody", {}, told.worst_rows.slice(0, 25).map((one) => h("tr", {}, h("td", {}, String(one.row)), h("td", {}, bar(one.rms / worst)), h("td", { class: "num" }, number(one.rms)), h("td", { class: "num" }, number(one.count)))))));
  }, quiet === true);
  update();
  refresh.push(update);
  return [draw, list];
}

function matrix(model, refresh) {
  return h("div", { class: "grid" }, spectrum(model), asking_entry(model), ...errors(model, refresh));
}

function distances(model, refresh) {
  const place = h("div", { class: "plane tall" });
  const note = h("p", { class: "sub" }, "As the known distances place them. Squares are anchors.");
  let drawn = null;
  const update = async () => {
    try {
      const { points, count } = await api("v1/points?limit=5000");
      if (!points.length || points[0].at.length < 1) return place.replaceChildren(empty("No points."));
      drawn ??= plane(place, "Points");
      const few = points.length <= 150;
      drawn.show(points.map((one) => ({
        x: one.at[0], y: one.at[1] ?? 0, name: String(one.id), size: few ? 4 : 2.4, kind: one.anchor ? "fixed" : few ? "near" : "",
      })), { aspect: true, names: 40 });
      note.textContent = `${whole.format(count)} points as the known distances place them${points.some((p) => p.anchor) ? "; squares are anchors" : ""}.`;
    } catch (why) {
      if (!drawn) place.replaceChildren(failed(why, update));
    }
  };
  update();
  refresh.push(update);
  const [draw, list] = errors(model, refresh);
  return h("div", { class: "two" },
    h("div", { class: "stack" }, h("section", { class: "card" }, h("h2", {}, "Points"), note, place), asking_entry(model)),
    h("div", { class: "stack" }, list, draw));
}

// --- Live ------------------------------------------------------------------------------------------

const KEPT = 240; // messages: two minutes
const LATE = 2000; // milliseconds after which what is shown is old
const news = { all: [], at: 0, listeners: new Set(), error: "" };

async function follow() {
  for (let wait = 500; ; wait = Math.min(8000, wait * 2)) {
    try {
      const answer = await api("v1/live");
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        const parts = (rest + value).split("\n\n");
        rest = parts.pop();
        for (const part of parts) if (part.startsWith("data: ")) tell(JSON.parse(part.slice(6)));
        wait = 500;
      }
      news.error = "The server has closed the live view.";
    } catch (why) {
      news.error = why.message;
    }
    await new Promise((go) => setTimeout(go, wait));
  }
}

function tell(one) {
  news.at = performance.now();
  news.error = "";
  news.all.push(one);
  if (news.all.length > KEPT) news.all.shift();
  news.listeners.forEach((listen) => listen(one));
}

function pulse(model) {
  const late = performance.now() - news.at > LATE, last = news.all.at(-1), it = $("pulse");
  it.hidden = false;
  it.className = `pulse ${late ? "late" : model.learning ? "on" : ""}`;
  const text = !last ? "connecting …" : late ? `no news for ${Math.round((performance.now() - news.at) / 1000)} s`
    : model.learning ? `${number(Math.round(last.events_per_second))} events/s` : "answering";
  if (it.lastChild.textContent !== text) it.lastChild.textContent = text;
}

function living(model) {
  const tiles = {};
  const tile = (key, text) => h("div", { class: "tile" }, (tiles[key] = h("b", {}, "–")), h("span", {}, text));
  const note = h("p", { class: "sub" });
  const trouble = h("div");
  const places = [h("div"), h("div"), h("div")];
  const axis = () => ({ x: { values: (_, values) => values.map((v) => `${v} s`) }, scales: { x: { time: false, range: (_, low) => [Math.min(-20, low ?? 0), 0] } } });
  const one = (label, name) => () => ({ ...axis(), y: { values: ticks }, series: [{}, { label, stroke: colour(name), width: 2, fill: `${colour(name)}1a`, spanGaps: true }] });
  const zero = (name) => () => ({ ...one("events/s", name)(), scales: { ...axis().scales, y: { range: (_, low, high) => [0, Math.max(1, 1.15 * (high || 0))] } } });
  const count = Math.min(12, model.spectrum.length) || 1;
  const many = () => ({
    ...axis(), height: 230, y: { values: ticks }, scales: { ...axis().scales, y: logged(news.all.flatMap((m) => m.spectrum.slice(0, count))) ? { distr: 3, range: (_, low, high) => [rounded(0.7 * low, Math.floor), rounded(1.4 * high, Math.ceil)] } : {} },
    series: [{}, ...Array.from({ length: count }, (_, n) => ({
      stroke: n % 2 ? colour("warm") : colour("accent"), width: 1.6, alpha: 1 - (0.65 * n) / count, points: { show: false },
    }))],
  });
  let drawn = null;
  function listen(last) {
    if (!view.isConnected) return;
    tiles.events.textContent = number(last.events);
    tiles.speed.textContent = number(Math.round(last.events_per_second));
    tiles.behind.textContent = number(last.behind);
    tiles.age.textContent = `${last.age < 10 ? last.age.toFixed(1) : number(Math.round(last.age))} s`;
    tiles.loss.textContent = number(last.loss);
    trouble.replaceChildren(...(last.trouble ? [failed(last.trouble)] : []));
    const x = news.all.map((m) => m.time - last.time);
    const data = [[x, news.all.map((m) => m.loss)], [x, news.all.map((m) => m.events_per_second)],
      [x, ...Array.from({ length: count }, (_, n) => news.all.map((m) => (m.spectrum[n] > 0 ? m.spectrum[n] : null)))]];
    if (!drawn && view.clientWidth) drawn = [one("loss", "accent"), zero("warm"), many].map((how, n) => chart(places[n], how, data[n]));
    else drawn?.forEach((plot, n) => plot.set(data[n]));
  }
  news.listeners.add(listen);
  note.textContent = model.learning ? "Twice a second, of the last two minutes." : "This server does not learn: start it with --learn, and what it is sent moves these lines.";
  const view = h("div", {}, trouble,
    h("div", { class: "tiles" }, tile("speed", "events a second"), tile("events", "events learned"), tile("behind", "waiting to be learned"),
      tile("age", "age of the snapshot"), tile("loss", "loss of the last events")), note,
    h("div", { class: "grid" }, h("section", { class: "card" }, h("h2", {}, "Loss"), h("p", { class: "sub" }, "Of events as they came, before they were learned."), places[0]),
      h("section", { class: "card" }, h("h2", {}, "Events a second"), h("p", { class: "sub" }, "Learned, in the last two seconds."), places[1]),
      h("section", { class: "card wide" }, h("h2", {}, "Spectrum over time"), h("p", { class: "sub" }, "The largest singular values: directions that are found, and that fade."), places[2])));
  view.shown = () => news.all.length && listen(news.all.at(-1));
  return view;
}

// --- The model itself --------------------------------------------------------------------------------

function about(model) {
  const place = h("div");
  const records = model.history.filter((one) => one.loss != null);
  const trained = h("section", { class: "card" }, h("h2", {}, "How it was trained"),
    h("p", { class: "sub" }, records.length ? `Mean loss by epoch${model.stopped ? `; ended by: ${model.stopped}` : ""}.` : ""),
    records.length > 1 ? place : empty("A stream keeps no history of its own."));
  const settings = h("section", { class: "card" }, h("h2", {}, "Settings"), h("p", { class: "sub" }, "As they were given; “auto” was found."),
    h("dl", { class: "facts" }, Object.entries(model.settings).filter(([k]) => !["callbacks", "engine", "verbose"].includes(k)).flatMap(([k, v]) => [h("dt", {}, k.replaceAll("_", " ")), h("dd", {}, v == null ? "none" : String(v))])));
  const found = h("section", { class: "card" }, h("h2", {}, "What was found"), h("p", { class: "sub" }, "Measures are of data that was held out."), h("dl", { class: "facts" }, Object.entries({
    model: model.name, kind: model.kind, loss: model.loss, rows: number(model.rows), columns: number(model.columns), rank: number(model.rank),
    ...Object.fromEntries(Object.entries(model.quality).map(([k, v]) => [k, number(v)])), snapshot: number(model.snapshot), version: model.version,
  }).flatMap(([k, v]) => [h("dt", {}, k), h("dd", {}, v)])));
  // Matrices and distances show their spectrum elsewhere.
  const cards = model.abilities.includes("residuals") ? [h("div", { class: "stack" }, trained, found), settings] : [trained, spectrum(model), settings, found];
  const view = h("div", { class: "grid" }, cards);
  let drawn = false;
  view.shown = () => {
    if (drawn || records.length < 2) return;
    drawn = true;
    const y = records.map((one) => one.loss);
    chart(place, () => ({ x: {}, y: { values: ticks }, scales: { x: { time: false }, y: logged(y) && Math.max(...y) / Math.min(...y) > 50 ? { distr: 3 } : {} },
      series: [{}, { label: "loss", stroke: colour("accent"), width: 2 }] }), [records.map((one) => one.epoch), y]);
  };
  return view;
}

// --- All of it ---------------------------------------------------------------------------------------

const KINDS = { Recommender: "A recommender.", ItemRanker: "An item ranker.", MatrixCompleter: "A matrix.", DistanceCompleter: "Points from distances." };
const SIDES = { Recommender: ["users", "items"], ItemRanker: ["items", "items"], MatrixCompleter: ["rows", "columns"], DistanceCompleter: ["points", "points"] };

function glance(model) {
  const [rows, columns] = SIDES[model.kind];
  const tiles = [[number(model.rows), rows], ...(rows === columns ? [] : [[number(model.columns), columns]]), [number(model.rank), "directions"],
    ...Object.entries(model.quality).filter(([k]) => !k.startsWith("popularity")).map(([k, v]) => [number(v), model.kind === "DistanceCompleter" ? `${k}, of squares` : k])];
  return h("div", { class: "tiles" }, tiles.map(([value, text]) => h("div", { class: "tile" }, h("b", {}, value), h("span", {}, text))));
}

async function start() {
  takeToken();
  addEventListener("hashchange", () => { if (takeToken()) location.reload(); }); // the link, pasted over an open page
  let model;
  try {
    model = await api("v1/model");
  } catch (why) {
    $("main").replaceChildren(h("div", { class: "loading" }, failed(why, () => location.reload())));
    return;
  }
  document.title = `${model.name} – scaledsgd`;
  const refresh = [];
  const make = model.abilities.includes("map") ? ["Explore", () => exploring(model)]
    : model.kind === "DistanceCompleter" ? ["Points", () => distances(model, refresh)] : ["Matrix", () => matrix(model, refresh)];
  const views = [make, ["Live", () => living(model)], ["Model", () => about(model)]];
  const body = h("div");
  const panels = views.map(([name, draw], n) => {
    const panel = h("div", { role: "tabpanel", id: `view-${n}`, "aria-labelledby": `tab-${n}`, hidden: n > 0 });
    panel.append(draw());
    if (n === 0) panel.prepend(glance(model));
    return panel;
  });
  const tabs = views.map(([name], n) => h("button", {
    role: "tab", type: "button", id: `tab-${n}`, "aria-controls": `view-${n}`, onclick: () => open(n),
    onkeydown: (event) => {
      const to = { ArrowRight: n + 1, ArrowLeft: n - 1, Home: 0, End: views.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      open((to + views.length) % views.length);
      tabs[(to + views.length) % views.length].focus();
    },
  }, name));
  function open(n) {
    tabs.forEach((tab, k) => { tab.setAttribute("aria-selected", String(k === n)); tab.tabIndex = k === n ? 0 : -1; });
    panels.forEach((panel, k) => { panel.hidden = k !== n; });
    panels[n].lastChild.shown?.();
    charts.forEach((one) => one.size());
  }
  $("tabs").replaceChildren(...tabs);
  body.append(h("div", { class: "head" }, h("h1", {}, model.name), h("p", {}, model.note || KINDS[model.kind])), ...panels);
  $("main").replaceChildren(body);
  open(0);
  follow();
  setInterval(() => pulse(model), 500);
  let last = model.snapshot;
  setInterval(() => {
    const now = news.all.at(-1)?.snapshot ?? last;
    if (now !== last && !document.hidden && !panels[0].hidden) refresh.forEach((again) => again(true));
    last = now;
  }, 1500);
}

start();
