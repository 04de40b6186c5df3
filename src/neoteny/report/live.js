// The page of a sweep that runs: asks the server how far it is, and draws the figures so far.
(() => {
  "use strict";

  const { draw, startTheme, hidden } = neoteny;
  const byId = (id) => document.getElementById(id);
  const root = document.documentElement;
  let figures = { version: "", groups: [], charts: [], toggles: [] };

  // All text of the folder goes through here: it stays text.
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children.filter((child) => child !== ""));
    return element;
  }

  function swatch(light, dark, dash) {
    const space = "http://www.w3.org/2000/svg";
    const picture = document.createElementNS(space, "svg"), path = document.createElementNS(space, "path");
    for (const [name, value] of [["class", "swatch"], ["viewBox", "0 0 22 8"], ["aria-hidden", "true"]]) picture.setAttribute(name, value);
    picture.style.setProperty("--light", light);
    picture.style.setProperty("--dark", dark);
    path.setAttribute("class", dash);
    path.setAttribute("d", "M1 4h20");
    picture.append(path);
    return picture;
  }

  const whole = (number) => Math.round(number).toLocaleString("en");

  function time(seconds) {
    if (seconds === null) return "–";
    if (seconds < 60) return `${Math.round(seconds)} s`;
    const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
    if (days) return `${days} d ${hours % 24} h`;
    return hours ? `${hours} h ${minutes % 60} min` : `${minutes} min ${Math.round(seconds % 60)} s`;
  }

  function short(number) {
    for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
      if (number >= size) return `${(number / size).toPrecision(3)} ${letter}`;
    }
    return number.toPrecision(3);
  }

  function showLive(state, text) {
    byId("live").dataset.state = state;
    if (byId("live-text").textContent !== text) byId("live-text").textContent = text;
  }

  function row(stack) {
    const meter = make("span", { class: "meter", "aria-hidden": "true" }, make("span", { class: `is-${stack.state}` }));
    meter.firstChild.style.width = `${100 * stack.done}%`;
    const number = (name, text) => make("td", text ? { class: "number", "data-name": name } : { class: "number" }, text);
    const latest = [stack.latest, stack.diverged ? `${stack.diverged} diverged` : ""].filter(Boolean).join(", ");
    return make("tr", { "data-stack": stack.stack },
      make("th", { scope: "row" }, stack.name),
      make("td", {}, make("span", { class: `state is-${stack.state}` }, stack.state), stack.retried ? make("span", { class: "retry" }, "retried") : ""),
      make("td", {}, meter, `${Math.floor(100 * stack.done)}% `, make("small", {}, `task ${stack.task} of ${stack.tasks}`)),
      number("runs", whole(stack.runs)),
      number("", stack.rate ? `${short(stack.rate)} ${stack.unit}s/s` : ""),
      number("to go", stack.to_go === null ? "" : time(stack.to_go)),
      make("td", {}, latest));
  }

  function showState(state) {
    const running = state.counts.running > 0;
    showLive(state.ended ? "ended" : running ? "running" : "waiting",
      state.ended ? "finished" : running ? "running" : "nothing is running");
    byId("runs").textContent = `${whole(state.finished)} of ${whole(state.planned)}`;
    byId("to-go").textContent = state.ended ? "done" : time(state.to_go);
    byId("rate").textContent = state.rate ? `${short(state.rate)} updates/s` : "–";
    for (const name of ["running", "finished"]) byId(`count-${name}`).textContent = whole(state.counts[name]);
    byId("count-failed").textContent = whole(state.counts.failed + state.counts.damaged);
    byId("retried").textContent = whole(state.retried);
    byId("waiting").textContent = whole(state.waiting);
    byId("note").hidden = !state.note;
    byId("note").textContent = state.note;
    const inState = (...names) => state.stacks.filter((stack) => names.includes(stack.state));
    const runs = (stacks, share) => stacks.reduce((sum, stack) => sum + stack.runs * share(stack), 0);
    const total = Math.max(1, state.planned, state.finished);
    const shares = {
      finished: state.finished / total,
      running: runs(inState("running", "stopped"), (stack) => stack.done) / total,
      failed: runs(inState("failed", "damaged"), () => 1) / total,
    };
    for (const [name, share] of Object.entries(shares)) byId(`bar-${name}`).style.width = `${100 * Math.min(1, share)}%`;
    byId("whole").setAttribute("aria-valuenow", String(Math.floor(100 * shares.finished)));
    const failures = [...inState("failed").map((stack) => stack.error), ...state.damage];
    byId("failures").hidden = failures.length === 0;
    byId("failure-list").replaceChildren(...failures.map((text) => make("li", {}, text)));
    byId("rows").replaceChildren(...state.stacks.map(row));
    const all = Object.values(state.counts).reduce((sum, count) => sum + count, 0);
    const more = all - state.shown, note = [];
    if (more > 0) note.push(`${whole(more)} more finished stacks are not listed.`);
    if (all === 0) note.push("No stack has begun yet.");
    byId("more").hidden = note.length === 0;
    byId("more").textContent = note.join(" ");
  }

  const drawAll = () => Promise.all(figures.charts.map((chart, index) => draw(chart, byId(`chart-${index}`))));

  function showToggles() {
    for (const chip of document.querySelectorAll(".chip")) chip.setAttribute("aria-pressed", String(!hidden.has(chip.dataset.key)));
    return drawAll();
  }

  function buildFigures() {
    byId("toggles").hidden = figures.toggles.length < 2;
    byId("toggles").replaceChildren(...figures.toggles.map((toggle) => {
      const chip = make("button", { type: "button", class: "chip", "aria-pressed": "true", "data-key": toggle.key }, swatch(toggle.light, toggle.dark, toggle.dash), toggle.key);
      chip.addEventListener("click", () => { if (!hidden.delete(toggle.key)) hidden.add(toggle.key); showToggles(); });
      return chip;
    }));
    const many = { 1: "single", 2: "many pairs", 4: "many pairs" };
    byId("groups").replaceChildren(...figures.groups.map((group) => make("div", { class: "group" },
      group.name ? make("h3", {}, group.name) : "",
      make("div", { class: `panels ${many[group.figures.length] || "many"}` }, ...group.figures.map((figure) =>
        make("figure", { class: "card" },
          make("div", { class: "figure-head" }, make(group.name ? "h4" : "h3", {}, figure.title)),
          make("div", { class: "plot", id: `chart-${figure.number}`, role: "img", "aria-label": figure.alternative }),
          figure.legend.length ? make("ul", { class: "legend" }, ...figure.legend.map((line) => make("li", {}, swatch(line.light, line.dark, line.dash), line.name))) : "",
          figure.caption ? make("figcaption", {}, figure.caption) : ""))),
      group.caption ? make("p", { class: "caption" }, group.caption) : "")));
  }

  async function showFigures(found) {
    const shape = (one) => JSON.stringify([one.groups.map((group) => [group.name, group.figures.map((figure) => [figure.title, figure.legend])]), one.toggles]);
    const same = shape(found) === shape(figures);
    figures = found;
    byId("figures-note").hidden = !found.note;
    byId("figures-note").textContent = found.note;
    if (!same) buildFigures();
    await showToggles();
    root.dataset.figures = found.version;
  }

  async function ask(name) {
    const answer = await fetch(name, { cache: "no-store" });
    if (answer.status === 204) return null;
    if (!answer.ok) throw new Error(`${answer.status}`);
    return answer.json();
  }

  function repeat(seconds, step) {
    const again = async () => {
      try {
        await step();
      } catch {
        showLive("lost", "no connection");
      }
      setTimeout(again, 1000 * (document.hidden ? 5 * seconds : seconds));
    };
    return again();
  }

  startTheme(drawAll);
  repeat(Number(root.dataset.stateSeconds), async () => { showState(await ask("state.json")); root.dataset.ready = "yes"; });
  repeat(Number(root.dataset.figuresSeconds), async () => {
    const found = await ask(`figures.json?version=${encodeURIComponent(figures.version)}`);
    if (found) await showFigures(found);
  });
})();
