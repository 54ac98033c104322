"use strict";
// Plays one plan, or two plans on one clock. The page specifies the messages and their times, and
// this script replays them. A stop is a moment at which a round ends. Round 0 precedes the first message.

// ---- Text ----
const upTo = (count) => Array.from({ length: count }, (_, index) => index);
const digitsFor = (value) => (value >= 100 ? 0 : value >= 10 ? 1 : 2);

// Formats the time of a clock that runs to `total`, always with the same unit and number of digits.
function formatClock(seconds, total) {
  const [size, unit] = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]].find(([least]) => total >= least || total === 0) ?? [1e-9, "ns"];
  return `${(seconds / size).toFixed(digitsFor(total / size))} ${unit}`;
}

// Formats a time in a suitable unit: "72 µs".
const formatTime = (seconds) => formatClock(seconds, seconds).replace(/\.0+ /, " ");

function formatBytes(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; bytes >= 1024 && unit + 1 < units.length; unit += 1) bytes /= 1024;
  return `${bytes.toFixed(Number.isInteger(bytes) ? 0 : digitsFor(bytes))} ${units[unit]}`;
}

// Returns "150 KiB" or "75 KiB to 150 KiB", or an empty string for empty messages.
function sizes(bytes) {
  const [least, most] = [Math.min(...bytes), Math.max(...bytes)].map(formatBytes);
  return bytes.every((one) => one === 0) ? "" : least === most ? most : `${least} to ${most}`;
}

const plural = (count, what) => `${count.toLocaleString("en-US")} ${what}${count === 1 ? "" : "s"}`;
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const unbroken = (text) => text.replace(/(\d) (?=([nµm]?s|([KMGT]i)?B)\b)/g, "$1\u00a0"); // keeps "72 µs" on one line
const subscript = (number) => String(number).replace(/\d/g, (digit) => "₀₁₂₃₄₅₆₇₈₉"[digit]);

// Lists ascending numbers and combines runs: "0, 2–5".
function listed(numbers) {
  const endOf = (first) => (numbers.includes(first + 1) ? endOf(first + 1) : first);
  const firsts = numbers.filter((number) => !numbers.includes(number - 1));
  return firsts.map((first) => (first === endOf(first) ? first : `${first}–${endOf(first)}`)).join(", ");
}

// Returns "1 → 2 → 4 → 7". The middle of a long list is omitted.
const shortened = (values) => (values.length > 9 ? [...values.slice(0, 4), "…", ...values.slice(-2)] : values);
const growth = (values) => shortened(values).join(values.length > 5 ? "\u00a0→ " : "\u00a0→\u00a0");

// ---- Replay: the contributions that each rank holds. A set of ranks is a BigInt with one bit per rank ----
const bit = (rank) => 1n << BigInt(rank);
const membersOf = (set) => upTo(64).filter((rank) => set & bit(rank));
const counted = new Map();
const ones = (set) => counted.get(set) ?? counted.set(set, set.toString(2).replaceAll("0", "").length).get(set);

// Returns the messages of each round. Local work is a message from a rank to itself. `pairs` lists
// each chunk that is read together with the chunk that is written.
function decode(score) {
  const message = ([from, to, kind, ...numbers]) => {
    const [bytes, begin, end, flags] = score.kinds[kind];
    const width = flags & 2 ? 3 : 2;
    const pairs = [];
    for (let at = 0; at < numbers.length; at += width) {
      const [read, write, count] = [numbers[at], numbers[at + width - 2], numbers[at + width - 1]];
      for (let next = 0; next < count; next += 1) pairs.push([read + next, write + next]);
    }
    const reduces = (flags & 1) !== 0;
    return { from, to, bytes, begin: begin / 100, end: end / 100, reduces, isLocal: from === to, pairs };
  };
  return score.rounds.map((round) => round.map(message));
}

function meaning({ collective, ranks, root }, { chunks, scratch }) {
  const isOneOf = (...names) => names.includes(collective);
  const owner = (chunk) => Math.floor((chunk * ranks) / chunks);
  const isFromRoot = isOneOf("broadcast", "scatter");
  const isReduction = isOneOf("all-reduce", "reduce", "reduce-scatter");
  const isSum = isReduction || isOneOf("barrier");
  // The group of a chunk: sums are collected per chunk, in the buffer and in scratch. Blocks are
  // collected per slice.
  const group = (chunk) => (chunk % chunks) % (isSum || isOneOf("broadcast") ? chunks : chunks / ranks);
  return {
    owner, isFromRoot, isReduction, isSum, group,
    spreads: isFromRoot || isOneOf("all-reduce"),
    together: (chunk) => upTo(chunks + scratch).filter((other) => group(other) === group(chunk)),
    contributes: (rank, chunk) => (isFromRoot ? rank === root : !isOneOf("all-gather", "gather") || rank === owner(chunk)),
    wanted: (chunk) => (isFromRoot ? bit(root) : isSum ? bit(ranks) - 1n : bit(owner(chunk))),
  };
}

// Replays a plan. Returns it with the facts of each round, and the states before and after each round.
function replay(page, score) {
  const width = score.chunks + score.scratch;
  const means = meaning(page, score);
  const cells = upTo(page.ranks).flatMap((rank) => upTo(width).map((chunk) => [rank, chunk]));
  const has = ([rank, chunk]) => chunk < score.chunks && means.contributes(rank, chunk);
  const film = { page, score, width, means, rounds: decode(score) };
  film.states = [{
    holds: cells.map((cell) => (has(cell) ? bit(cell[0]) : 0n)),
    passed: new Uint8Array(cells.length), // 1 if a partial sum was passed on
    block: new Uint16Array(cells.map(([, chunk]) => chunk)), // the chunk that initially held the content
  }];
  film.rounds.forEach((round, index) => film.states.push(after(film.states[index], round, film)));
  film.facts = film.rounds.map((round, index) => factsOf(film, round, film.states[index], film.states[index + 1]));
  return film;
}

// Applies a round's messages in order. All of them read the state before the round.
function after(before, round, { width, means }) {
  const state = Object.fromEntries(Object.entries(before).map(([name, list]) => [name, list.slice()]));
  for (const { from, isLocal, pairs } of means.isReduction ? round : []) {
    if (!isLocal) for (const [read] of pairs) state.passed[from * width + read] = 1;
  }
  for (const { from, to, reduces, pairs } of round) {
    for (const [read, write] of pairs) {
      const [source, target] = [from * width + read, to * width + write];
      state.holds[target] = before.holds[source] | (reduces ? state.holds[target] : 0n);
      state.block[target] = before.block[source];
      state.passed[target] = 0;
    }
  }
  return state;
}

// Returns a state within a round. A cell that a message has reached has its state after the round,
// and any other cell has its state before the round.
function within(before, now, { width }, arrived) {
  const fresh = new Set(arrived.flatMap(({ to, pairs }) => pairs.map(([, write]) => to * width + write)));
  return Object.fromEntries(Object.entries(before).map(([name, list]) =>
    [name, list.map((old, cell) => (fresh.has(cell) ? now[name][cell] : old))]));
}

// Returns the fraction of a chunk's final content that is present, from 0 to 1. A partial sum that
// was passed on counts as 0, because another rank continues with it.
function partOf({ width, means }, state, rank, chunk) {
  const [cell, wanted] = [rank * width + chunk, means.wanted(chunk)];
  if (state.passed[cell] && state.holds[cell] !== wanted) return 0;
  return ones(state.holds[cell] & wanted) / ones(wanted);
}

// ---- Facts of a round ----
// Returns the facts of a round. `gathered` is the number of ranks whose contributions one rank holds, and
// `spread` is the number of ranks with a finished chunk. Both are pairs (before, after) for the rank or
// chunk with the largest value. `first` contains the same facts for the group of chunk 0.
function factsOf(film, round, before, now) {
  const { means, page, width } = film;
  const messages = round.filter((message) => !message.isLocal);
  const count = (end, rank) => messages.filter((message) => message[end] === rank).length;
  const most = (end) => Math.max(0, ...upTo(page.ranks).map((rank) => count(end, rank)));
  const [all, first, seen] = [{}, {}, new Set()];
  for (const { from, to, reduces, pairs } of messages) {
    for (const [read, write] of pairs) {
      const isFinished = !reduces && (!means.isSum || ones(before.holds[from * width + read]) === page.ranks);
      const name = means.spreads && isFinished ? "spread" : "gathered";
      const key = name === "spread" ? means.group(write) : `${from} ${to} ${means.group(write)}`;
      if (seen.has(key) || (means.isSum && isFinished && !means.spreads)) continue;
      seen.add(key);
      const isSpread = name === "spread";
      const old = isSpread ? holders(film, before, write) : Math.max(...[from, to].map((rank) => union(film, before, rank, write)));
      const fresh = isSpread ? holders(film, now, write) : union(film, now, to, write);
      for (const largest of means.group(write) === 0 ? [all, first] : [all]) {
        if (fresh > old && fresh > (largest[name]?.[1] ?? 0)) largest[name] = [old, fresh];
      }
    }
  }
  const senders = new Set(messages.map((message) => message.from)).size;
  return { all, first, senders, bytes: messages.map((message) => message.bytes), sends: most("from"), receives: most("to") };
}

// Returns the number of ranks whose contributions to the group of `chunk` a rank holds.
function union({ width, means }, state, rank, chunk) {
  return ones(means.together(chunk).reduce((set, at) => set | state.holds[rank * width + at], 0n));
}

// Returns the number of ranks with a finished `chunk` or, in a scatter, with any of the root's data.
function holders(film, state, chunk) {
  const { page, means, width } = film;
  const hasAny = (rank) => means.together(chunk).some((at) => state.holds[rank * width + at]);
  const has = page.collective === "scatter" ? hasAny : (rank) => partOf(film, state, rank, chunk) === 1;
  return upTo(page.ranks).filter(has).length;
}

// Returns the number of rounds with messages, among all rounds or among the first `end` rounds.
const countRounds = (facts, end) => facts.slice(0, end).filter(({ senders }) => senders > 0).length;

// Returns the values up to the first one that reaches `goal`: [1, 2, 4, 7]. Empty if no value reaches it.
function runOf(facts, name, goal) {
  const pairs = facts.map((fact) => fact.first[name]).filter((pair) => pair);
  const end = pairs.findIndex((pair) => pair[1] >= goal);
  return end < 0 ? [] : [pairs[0][0], ...pairs.slice(0, end + 1).map((pair) => pair[1])];
}

// ---- Sentences about the facts ----
// Returns "A rank receives at most 1 message in a round, so ... can at most double. ..."
function bound(run, perRound, verb, what, goal, algorithm) {
  const factor = perRound + 1;
  const least = upTo(64).find((rounds) => factor ** rounds >= goal);
  const grows = { 2: "double", 3: "triple" }[factor] ?? `become ${factor} times as large`;
  const reach = (rounds) => `${plural(rounds, "round")} can reach ${factor ** rounds}`;
  const takes = run.length - 1 === least ? "needs no more" : `takes ${run.length - 1}`;
  const log = `⌈log${subscript(factor)}\u00a0${goal}⌉\u00a0=\u00a0${least}`;
  return `A rank ${verb} at most ${plural(perRound, "message")} in a round, so the number of ${what} can at most ${grows}. `
    + `${least > 1 ? `${reach(least - 1)}, ` : ""}${reach(least)}; reaching ${goal} takes at least ${log}. `
    + `${capital(algorithm)} ${takes}: ${growth(run)}.`;
}

// Growing values, as a noun and as a sentence: first within a chunk or rank, then across ranks.
const GROWING = {
  sum: ["contributions to one chunk", "A rank has # contributions to a chunk"],
  heard: ["ranks that one rank has heard from", "A rank has heard from # ranks"],
  blocks: ["ranks whose blocks one rank has", "A rank has blocks of # ranks"],
  copies: ["ranks that have a finished chunk", "A finished chunk is on # ranks"],
  data: ["ranks that have any data", "The root's data is on # ranks"],
};
const growing = ({ page: { collective }, means: { isReduction } }) => ({
  gathered: GROWING[isReduction ? "sum" : collective === "barrier" ? "heard" : "blocks"],
  spread: GROWING[collective === "scatter" ? "data" : "copies"],
});

function whySentences(film) {
  const { page, score: { algorithm, pieces } } = film;
  if (page.ranks === 1) return ["One rank has nothing to send."];
  const facts = film.facts.filter(({ senders }) => senders > 0);
  const [gathered, spread] = ["gathered", "spread"].map((name) => runOf(facts, name, page.ranks));
  const limit = (run, verb, what) => bound(run, Math.max(...facts.map((fact) => fact[verb])), verb, what, page.ranks, algorithm);
  const parts = [gathered, spread].filter((run) => run.length > 0).map((run) => run.length - 1);
  const [once, all] = [parts.reduce((one, other) => one + other, 0), parts.join(" + ")];
  const slices = `${pieces} × ${parts.length > 1 ? `(${all})` : all}`;
  return [
    gathered.length > 0 && limit(gathered, "receives", growing(film).gathered[0]),
    gathered.length === 0 && spread.length > 0 && limit(spread, "sends", growing(film).spread[0]),
    parts.length > 1 && `Then a finished chunk spreads to all ranks, in ${plural(parts[1], "round")}: ${growth(spread)}.`,
    pieces === 1 && parts.length > 1 && once === facts.length && `Together: ${all} = ${once} rounds.`,
    pieces > 1 && (once * pieces === facts.length
      ? `The buffer is split into ${pieces} slices, whose rounds alternate: ${slices} = ${facts.length} rounds.`
      : `The buffer is split into ${pieces} pieces, which follow each other: ${facts.length} rounds in all.`),
  ].filter((sentence) => sentence);
}

// Returns a summary of the page: the bytes, rounds and times of its one or two plans.
function headline(films) {
  const { ranks, hosts } = films[0].page;
  if (ranks === 1) return "One rank has nothing to send.";
  const [fast, slow] = films.map(({ facts, rounds, score: { ends_s, ...score } }) => {
    const sent = new Array(ranks).fill(0);
    rounds.flat().forEach(({ from, bytes }) => (sent[from] += bytes));
    const [least, most] = [Math.min(...sent), Math.max(...sent)].map(formatBytes);
    return { ...score, isEven: least === most, rounds: countRounds(facts), end: ends_s[ends_s.length - 1] };
  }).sort((one, other) => one.end - other.end);
  const [name, takes] = [capital(fast.algorithm), plural(fast.rounds, "round")];
  const most = fast.isEven && (slow?.isEven ?? true) ? fast.sends : `at most ${fast.sends}`;
  if (!slow) {
    const sends = fast.sends === "0 B" ? "" : `, and ${fast.isEven ? "each" : "a"} rank sends ${most}`;
    const share = formatTime(fast.parts_s[0]);
    return `${name} takes ${takes}${sends}. It is predicted to end after ${fast.price}, ${share} of that waiting for messages.`;
  }
  const isEqual = fast.sends === slow.sends;
  const pairs = fast.parts_s.map((part, at) => [part, slow.parts_s[at]].map(formatTime));
  const [waits, data, folds] = pairs.map((pair) => pair.join(" instead of "));
  const bytes = isEqual ? `Both send ${most} per rank. ` : `${name} sends ${most} per rank instead of ${slow.sends}. `;
  const [fewer, less] = [Math.sign(slow.rounds - fast.rounds), Math.sign(slow.parts_s[0] - fast.parts_s[0])];
  // If messages within a host and between hosts take different times, rounds alone do not explain the waits.
  const link = fewer !== less ? ", but" : [1, ranks].includes(new Set(hosts).size) ? ", so" : ", and";
  const clause = pairs[0][0] === pairs[0][1] ? ""
    : `${link} ${fewer === 0 ? fast.algorithm : "it"} waits ${less > 0 ? "less" : "longer"} for messages: ${waits}`;
  const rounds = fewer === 0 ? `Both take ${takes}` : `${isEqual ? name : "It"} takes ${takes} instead of ${slow.rounds}`;
  const saved = fast.parts_s.map((part, at) => slow.parts_s[at] - part);
  const why = ["", `, because sending the data takes ${data}`, `, because combining the data takes ${folds}`];
  const after = `${fast.price} instead of ${slow.price}${why[saved.indexOf(Math.max(...saved))]}`;
  const end = fast.price === slow.price ? `Both are predicted to end after ${fast.price}.`
    : `${fewer === 0 ? name : "It"} is predicted to end first, after ${after}.`;
  return `${fast.sends === "0 B" && isEqual ? "" : bytes}${rounds}${clause}. ${end}`;
}

// Returns a heading and a description of one round. Round 0 is the start. Within a round, only the
// messages in `arrived` count, and `state` is the state after them.
function roundSentence(film, round, arrived, state) {
  const { page: { collective, ranks, root }, means, facts } = film;
  const own = { "barrier": "only itself", "all-to-all": "one block for every rank" }[collective] ?? "its own block";
  const start = `Each rank has ${means.isReduction ? "its own contribution to every chunk" : own}.`;
  if (round === 0) return ["Start", means.isFromRoot ? `Only rank ${root}, the root, has data.` : start];
  const { senders, bytes } = facts[round - 1];
  const { all, bytes: there } = arrived ? factsOf(film, arrived, film.states[round - 1], state) : facts[round - 1];
  if (senders === 0) return ["Local work", "Ranks copy or combine chunks in their own memory."];
  const isEven = bytes.length % senders === 0;
  const [one, several] = arrived ? ["sends", "send"] : ["has sent", "have sent"];
  const some = senders === 1 ? `One rank ${one}` : `${senders} ranks ${several}`;
  const who = isEven && senders === ranks ? `Each rank ${one}` : some;
  const [size, each] = [sizes(bytes) && ` of ${sizes(bytes)}`, isEven && senders > 1 && senders < ranks ? " each" : ""];
  const sends = `${who} ${plural(isEven ? bytes.length / senders : bytes.length, "message")}${size}${each}.`;
  const grew = Object.entries(all).map(([name, [before, now]]) =>
    `${growing(film)[name][1].replace("#", `${now} of ${ranks}`)}, up from ${before}.`);
  const soFar = arrived ? [`Arrived so far: ${there.length}\u00a0of\u00a0${bytes.length}.`] : [];
  const head = `${arrived ? "During" : "End of"} round ${countRounds(facts, round)} of ${countRounds(facts)}`;
  return [head, [sends, ...soFar, ...grew].join(" ")];
}

function cellSentence({ page, score, means, width }, state, rank, chunk) {
  const cell = rank * width + chunk;
  const ranks = membersOf(state.holds[cell]);
  const head = `Rank ${rank}, ${chunk < score.chunks ? `chunk ${chunk}` : `scratch chunk ${chunk - score.chunks}`}: `;
  if (ranks.length === 0) return `${head}nothing yet.`;
  if (page.collective === "all-to-all") return `${head}rank ${ranks[0]}'s block for rank ${means.owner(state.block[cell])}.`;
  if (!means.isSum) return `${head}data of rank ${ranks[0]}.`;
  if (ranks.length === page.ranks) return `${head}finished, with the contributions of all ${page.ranks} ranks.`;
  const held = `${ranks.length} of ${page.ranks} contributions, of ${ranks.length === 1 ? "rank" : "ranks"} ${listed(ranks)}.`;
  return head + (state.passed[cell] ? `passed on. It held ${held}` : held);
}

// ---- Geometry ----
const RANKS_APART = 16; // with more ranks, arrows are bundled
const ROWS_MAX = 16; // with more chunks, a row represents several

// Divides `count` items, numbered from `base`, into at most `most` rows [first, end).
function rowsOf(count, most, base) {
  const size = Math.max(1, Math.ceil(count / most));
  return upTo(Math.ceil(count / size)).map((row) => [base + row * size, base + Math.min(count, (row + 1) * size)]);
}

// Returns the positions in the drawing of a plan, in pixels.
function layout(width, { ranks, hosts }, { chunks, scratch }) {
  const bundle = Math.ceil(ranks / RANKS_APART);
  const lanes = Math.ceil(ranks / bundle);
  const laneHeight = lanes <= 8 ? 18 : 14;
  const gutter = width < 560 ? 50 : 68;
  const pitch = Math.min(104, (width - gutter) / ranks);
  const buffer = rowsOf(chunks, ROWS_MAX, 0).length;
  const rows = [...rowsOf(chunks, ROWS_MAX, 0), ...rowsOf(scratch, ROWS_MAX / 2, chunks)];
  const rowHeight = rows.length === 1 ? 32 : rows.length <= 8 ? 22 : 16;
  const hostTop = 28 + lanes * laneHeight;
  const isShared = new Set(hosts).size < ranks;
  const cellsTop = hostTop + (isShared ? 44 : 22);
  const top = (row) => cellsTop + row * rowHeight + (row < buffer ? 0 : 26);
  return {
    width, bundle, lanes, laneHeight, gutter, pitch, buffer, rows, rowHeight, hostTop, isShared, cellsTop, top,
    cellWidth: pitch - Math.max(1, Math.min(8, pitch * 0.14)),
    height: top(rows.length - 1) + rowHeight + 2,
    lane: (group) => 20 + laneHeight * (group + 0.5),
    x: (rank) => gutter + pitch * (rank + 0.5),
    middle: (group) => gutter + (pitch * (group * bundle + Math.min(ranks, (group + 1) * bundle))) / 2,
  };
}

// Returns the arrows of a round: one per message, or one for all messages between two groups of ranks.
function arrowsOf(round, bundle) {
  const arrows = new Map();
  for (const { from, to, bytes, begin, end, reduces, isLocal } of round) {
    const ends = { from: Math.floor(from / bundle), to: Math.floor(to / bundle), reduces, isLocal };
    const key = Object.values(ends).join();
    const arrow = arrows.get(key) ?? { ...ends, begin, end, bytes: [] };
    arrow.bytes.push(bytes);
    arrows.set(key, { ...arrow, begin: Math.min(arrow.begin, begin), end: Math.max(arrow.end, end) });
  }
  return [...arrows.values()];
}

function sizeLabel(arrows) {
  const bytes = arrows.flatMap((arrow) => arrow.bytes);
  return bytes.length > 1 && sizes(bytes) ? `${bytes.length} × ${sizes(bytes)}` : sizes(bytes);
}

// Returns the shade of a cell. The shade of a partial sum depends on the logarithm of its number of contributions.
function shade(part, ranks, isSum) {
  if (part <= 0 || part >= 0.9999) return part <= 0 ? "h0" : "done";
  if (!isSum) return "some";
  return `h${1 + Math.max(0, Math.min(3, Math.round((3 * Math.log(part * ranks)) / Math.log(ranks))))}`;
}

// ---- Drawing ----
function put(element, attributes, parent, text) {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  parent?.append(element);
  return element;
}

const svg = (name, ...rest) => put(document.createElementNS("http://www.w3.org/2000/svg", name), ...rest);
const html = (name, ...rest) => put(document.createElement(name), ...rest);
const byId = (id) => document.getElementById(id);

class PlanView {
  constructor(page, score, main) {
    const film = replay(page, score);
    const [play, why] = byId("plan").content.cloneNode(true).children;
    main.append(play, why);
    const part = (selector) => play.querySelector(selector) ?? why.querySelector(selector);
    const { gathered: [collected], spread: [have] } = growing(film);
    const key = (film.means.isFromRoot ? "" : `Blue: ${collected}. `) + (film.means.spreads ? `Green: ${have}. ` : "");
    const gray = score.pieces > 1 ? "Gray: rounds of other chunks." : "";
    const title = `Why ${score.algorithm} takes ${plural(countRounds(film.facts), "round")}`;
    const texts = { h2: score.algorithm, ".price": `predicted ${score.price}`, ".meaning": score.meaning, ".facts": score.facts };
    Object.entries({ ...texts, h3: title, figcaption: key + gray }).forEach(([selector, text]) => (part(selector).textContent = text));
    whySentences(film).forEach((sentence) => html("p", {}, why, sentence));
    play.setAttribute("aria-label", score.algorithm);
    const [stage, price, now, detail, figure] = [".stage", ".price", ".now", ".detail", "figure svg"].map(part);
    Object.assign(this, { film, stage, price, now, detail, figure, ends: score.ends_s, picked: undefined });
    this.listen();
  }

  listen() {
    const pick = (place) => this.describe((this.picked = place));
    const point = ({ target: { dataset: { rank, row } } }) => rank && pick([Number(rank), Number(row)]);
    ["pointermove", "click"].forEach((name) => this.stage.addEventListener(name, point));
    this.stage.addEventListener("pointerleave", ({ pointerType }) => pointerType === "mouse" && pick());
    this.stage.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (event.key === "Escape") pick();
      if (!step) return;
      event.preventDefault();
      event.stopPropagation();
      const most = [this.heads.length - 1, this.cells.length - 1];
      pick(this.picked ? this.picked.map((at, axis) => Math.max(0, Math.min(most[axis], at + step[axis]))) : [0, 0]);
    });
  }

  resize() {
    const { stage, film: { page, score } } = this;
    const place = layout(Math.max(240, stage.parentNode.clientWidth), page, score);
    const { gutter, cellsTop, cellWidth, rowHeight, x } = (this.place = place);
    stage.replaceChildren();
    stage.setAttribute("viewBox", `0 0 ${place.width} ${place.height}`);
    this.caption = svg("text", { class: "caption", x: 0, y: 11 }, stage);
    const guide = (at) => svg("line", { class: "guide", y1: 20, y2: place.hostTop - 8, x1: at, x2: at }, stage);
    upTo(page.ranks).map(x).forEach(guide);
    const every = [1, 2, 4, 8].find((step) => step * place.pitch >= 20) ?? 16;
    svg("text", { x: 0, y: cellsTop - 8 }, stage, "rank");
    this.heads = page.hosts.map((host, rank) => {
      const [left, y] = [x(rank) - cellWidth / 2, place.hostTop + 16];
      const right = left + (page.hosts[rank + 1] === host ? place.pitch : cellWidth);
      if (place.isShared) svg("line", { class: "host", x1: left, x2: right, y1: y, y2: y }, stage);
      if (place.isShared && page.hosts[rank - 1] !== host) svg("text", { x: left, y: y - 5 }, stage, `host ${host}`);
      return svg("text", { class: "label", x: x(rank), y: cellsTop - 8 }, stage, rank % every === 0 ? rank : "");
    });
    if (score.scratch > 0) svg("text", { x: 0, y: place.top(place.buffer) - 8 }, stage, "scratch");
    this.cells = place.rows.map(([first], row) => {
      const [top, middle] = [place.top(row), place.top(row) + rowHeight / 2];
      const name = `chunk ${row < place.buffer ? first : first - score.chunks}`;
      svg("text", { x: gutter - (gutter > 50 ? 8 : 4), y: middle + 4, "text-anchor": "end" }, stage, name);
      const box = { y: top + 1, width: cellWidth, height: rowHeight - 2, rx: Math.min(3, cellWidth / 4), "data-row": row };
      return this.heads.map((_, rank) => ({
        shape: svg("rect", { ...box, x: x(rank) - cellWidth / 2, "data-rank": rank }, stage),
        count: svg("text", { class: "count", x: x(rank), y: middle + 0.5 }, stage),
      }));
    });
    Object.assign(this, { moving: svg("g", {}, stage), labels: svg("g", {}, stage), shown: null, key: null });
    this.drawGrowth();
  }

  // Draws bars for each round: the contributions that a rank has collected (blue), and the ranks that have a chunk (green).
  drawGrowth() {
    const { figure, film: { facts, page, means } } = this;
    const [height, top, width] = [84, 18, Math.max(200, figure.parentNode.clientWidth)];
    const slot = Math.min(54, width / (facts.length + 1));
    const y = (value) => top + (height - top) * (1 - value / page.ranks);
    figure.replaceChildren();
    figure.setAttribute("viewBox", `0 0 ${width} ${height + 18}`);
    svg("line", { class: "baseline", x1: 0, x2: slot * (facts.length + 1), y1: height, y2: height }, figure);
    const every = Math.ceil(28 / slot);
    const start = { senders: 1, all: {}, first: { [means.isFromRoot ? "spread" : "gathered"]: [0, 1] } };
    this.bars = [start, ...facts].map((fact, round) => {
      const isFirst = Object.keys(fact.first).length > 0;
      const values = Object.entries(isFirst ? fact.first : fact.all);
      const wide = (slot * 0.72) / Math.max(1, values.length);
      const number = countRounds(facts, round);
      const name = fact.senders === 0 || number % every > 0 ? "" : number === 0 ? "start" : number;
      const parts = values.flatMap(([kind, [, value]], index) => {
        const left = slot * (round + 0.14) + wide * index;
        const box = { x: left, y: y(value), width: Math.max(1, wide - 1), height: height - y(value) };
        const bar = svg("rect", { class: `bar ${isFirst ? kind : "other"}`, ...box }, figure);
        return wide < 13 || !isFirst ? [bar] : [bar, svg("text", { class: "value", x: left + wide / 2, y: y(value) - 5 }, figure, value)];
      });
      return [...parts, svg("text", { class: "tick", x: slot * (round + 0.5), y: height + 14 }, figure, name)];
    });
  }

  // Shows the plan at `fraction` of the way from the end of `round` to the end of the next.
  show(round, fraction) {
    const { film } = this;
    const current = fraction > 0 ? round + 1 : round;
    if (this.shown !== current) this.enter(current);
    this.moving.replaceChildren();
    for (const arrow of this.arrows) {
      const way = (fraction - arrow.begin) / Math.max(0.01, arrow.end - arrow.begin);
      this.drawArrow(arrow, fraction > 0 ? Math.max(0, Math.min(1, way)) : 1);
    }
    const arrived = fraction > 0 ? film.rounds[round].filter((message) => message.end <= fraction) : [];
    const key = `${round} ${current} ${arrived.length}`;
    if (this.key === key) return;
    this.key = key;
    this.state = within(film.states[round], film.states[current], film, arrived);
    this.cells.forEach((row, at) => row.forEach((cell, rank) => this.paint(cell, rank, at)));
    const [head, text] = roundSentence(film, current, current > round && arrived, this.state);
    this.said = `${head}. ${text}`;
    this.now.replaceChildren(html("b", {}, null, `${head}. `), text);
    this.bars.forEach((parts, at) => parts.forEach((part) => {
      part.classList.toggle("future", at > round);
      part.classList.toggle("now", at === current);
    }));
    this.describe();
  }

  // Prepares to show a round: its arrows and the sizes of its messages.
  enter(round) {
    const arrows = arrowsOf(this.film.rounds[round - 1] ?? [], this.place.bundle);
    Object.assign(this, { shown: round, arrows });
    const messages = arrows.filter((arrow) => !arrow.isLocal);
    this.caption.textContent = ["Messages", ...[sizeLabel(messages)].filter((label) => label)].join(": ");
    this.labels.replaceChildren();
    upTo(this.place.lanes).forEach((lane) => this.labelLane(messages.filter((arrow) => arrow.from === lane)));
  }

  // Draws a message that has traveled the fraction `way` of its path, or a circle for messages within a group.
  drawArrow({ from, to, reduces }, way) {
    const { middle, lane, bundle } = this.place;
    const [y, start, end] = [lane(from), middle(from), middle(to)];
    const sign = Math.sign(end - start);
    const head = start + (end - start) * way;
    const group = svg("g", { class: `arrow${reduces ? "" : " stores"}${bundle > 1 ? " bundle" : ""}` }, this.moving);
    if (sign === 0) return void svg("circle", { class: "ring", cx: start, cy: y, r: 5, opacity: 0.2 + 0.8 * way }, group);
    if (way < 1) svg("line", { class: "way", x1: start, x2: end - 6 * sign, y1: y, y2: y }, group);
    svg("circle", { cx: start, cy: y, r: 3 }, group);
    if (Math.abs(head - start) < 10) return;
    svg("line", { x1: start, x2: head - 6 * sign, y1: y, y2: y }, group);
    svg("path", { d: `M${head} ${y}l${-7 * sign} -4v8z` }, group);
  }

  // Writes the sizes of the messages that one rank sends, next to its arrows if there is space, or on a long arrow.
  labelLane(arrows) {
    if (arrows.length === 0) return;
    const { middle, lane, width, gutter } = this.place;
    const ends = arrows.flatMap((arrow) => [middle(arrow.from), middle(arrow.to)]);
    const [left, right] = [Math.min(...ends) - 10, Math.max(...ends) + 10];
    const text = sizeLabel(arrows);
    const room = 6.6 * text.length;
    const beside = right + room <= width ? [right, "start"] : left - room >= gutter / 2 ? [left, "end"] : null;
    const at = beside ?? (arrows.length === 1 && right - left > room + 60 ? [(left + right) / 2, "middle"] : null);
    if (at) svg("text", { class: "size", x: at[0], y: lane(arrows[0].from) + 4, "text-anchor": at[1] }, this.labels, text);
  }

  // Colors a cell by its content, and labels it with the number of contributions or the block that it holds.
  paint({ shape, count }, rank, row) {
    const { film: { page, score, means, width }, film } = this;
    const [first, end] = this.place.rows[row];
    const isMoving = page.collective === "all-to-all";
    let [parts, isPassed, content] = [0, true, 0n];
    for (let chunk = first; chunk < end; chunk += 1) {
      const [state, cell] = [this.state, rank * width + chunk];
      const isElsewhere = isMoving && means.owner(state.block[cell]) !== rank;
      const held = ones(state.holds[cell]) / (means.isSum ? page.ranks : 1);
      const part = isElsewhere ? 0 : chunk < score.chunks ? partOf(film, state, rank, chunk) : held;
      parts += part;
      isPassed &&= state.passed[cell] === 1 && part === 0;
      content |= state.holds[cell];
    }
    const isOnItsWay = isMoving && parts === 0 && content !== 0n;
    const kind = isPassed ? "passed" : isOnItsWay ? "h2" : shade(parts / (end - first), page.ranks, means.isSum);
    shape.setAttribute("class", `cell ${kind}`);
    shape.dataset.holds = membersOf(content).join(" ");
    shape.dataset.part = (parts / (end - first)).toFixed(4);
    const target = means.owner(this.state.block[rank * width + first]);
    const block = isMoving ? `${membersOf(content)[0]}→${target}` : "";
    const isNamed = !isPassed && content !== 0n && end - first === 1 && this.place.cellWidth >= (block ? 34 : 14);
    count.textContent = isNamed ? (means.isSum ? ones(content) : block) : "";
  }

  // Describes the content of the chosen cell, and marks the cell and the ranks that contributed to it.
  describe() {
    const { film, picked: [rank, row] = [], place: { rows } } = this;
    const [first, end] = rows[row] ?? [];
    const holds = row === undefined ? 0n : this.state.holds[rank * film.width + first];
    this.stage.querySelector(".picked")?.classList.remove("picked");
    this.heads.forEach((head, one) => head.classList.toggle("marked", (holds & bit(one)) !== 0n));
    this.detail.textContent = `Point at a cell to see whose ${film.means.isSum ? "contributions" : "data"} it holds.`;
    if (row === undefined) return;
    this.cells[row][rank].shape.classList.add("picked");
    const more = end - first > 1 ? ` This cell stands for ${end - first} chunks.` : "";
    this.detail.textContent = cellSentence(film, this.state, rank, first) + more;
  }
}

// ---- The clock and the controls ----
// Returns the stops of all plans in order, each with its time and each plan's number of completed rounds. Rounds of
// different plans that end together share a stop. Rounds of one plan never share a stop.
function stopsOf(plans) {
  const rounds = plans.map(() => 0);
  const stops = [{ time: 0, rounds: [...rounds] }];
  for (;;) {
    const next = plans.map(({ ends_s }, at) => ends_s[rounds[at]] ?? Infinity);
    const time = Math.min(...next);
    if (time === Infinity) return stops;
    next.forEach((end, at) => (rounds[at] += end - time <= 1e-9 * time ? 1 : 0));
    stops.push({ time, rounds: [...rounds] });
  }
}

// Returns the playing time, in seconds, from each stop to the next. It is proportional to the predicted time, with a minimum.
function paceOf(stops) {
  const [total, shown] = [stops[stops.length - 1].time, Math.max(4, Math.min(45, 1.6 * (stops.length - 1)))];
  const least = Math.min(0.6, shown / (3 * stops.length));
  return stops.slice(1).map(({ time }, at) => Math.max(least, total > 0 ? (shown * (time - stops[at].time)) / total : 0));
}

// Describes what the page omits and which plans' message times are scaled.
function noteOf({ ranks, plans }) {
  const [chunks, bundle] = [Math.max(...plans.map((plan) => Math.ceil(plan.chunks / ROWS_MAX))), Math.ceil(ranks / RANKS_APART)];
  const scaled = plans.filter(({ scale }) => Math.abs(scale - 1) > 0.005);
  const times = scaled.map(({ algorithm, scale }) => ` The message times of ${algorithm} are scaled by ${scale.toFixed(2)}, so that the last message ends at the predicted time.`);
  return (chunks > 1 ? ` Each row stands for up to ${chunks} chunks.` : "") + times.join("")
    + (bundle > 1 ? ` An arrow stands for all messages between two groups of ${bundle} ranks, and a circle for those within a group.` : "");
}

class Player {
  constructor(page) {
    const main = byId("plans");
    main.className = `${page.plans.length > 1 ? "two" : "one"} ${page.ranks > RANKS_APART ? "many" : "few"}`;
    [["heading", capital(page.heading)], ["costs", unbroken(page.costs)]].forEach(([id, text]) => (byId(id).textContent = text));
    byId("note").append(noteOf(page));
    this.views = page.plans.map((score) => new PlanView(page, score, main));
    byId("finding").textContent = unbroken(headline(this.views.map(({ film }) => film)));
    this.stops = stopsOf(page.plans);
    this.pace = paceOf(this.stops);
    this.total = this.stops[this.stops.length - 1].time;
    Object.assign(this, { at: 0, fraction: 0, isPlaying: false, goal: null, last: 0 });
    this.isStill = matchMedia("(prefers-reduced-motion: reduce)");
    byId("legend").className = this.views[0].film.means.isReduction ? "sums" : page.collective;
    this.marks = page.plans.map((plan) => this.drawTrack(plan, page.plans.length > 1 ? plan.algorithm : ""));
    this.listen();
    const resize = () => {
      if (this.width === main.clientWidth) return;
      this.width = main.clientWidth;
      document.documentElement.style.setProperty("--bar", `${byId("bar").offsetHeight}px`);
      this.views.forEach((view) => view.resize());
      this.show();
    };
    new ResizeObserver(resize).observe(main);
    resize();
  }

  drawTrack({ ends_s }, name) {
    const track = html("div", { class: "track" });
    byId("scrub").before(html("span", {}, null, name), track);
    return ends_s.map((end, at) => {
      const [from, to] = [ends_s[at - 1] ?? 0, end].map((time) => (this.total > 0 ? (100 * time) / this.total : 0));
      return html("i", { style: `left:${from}%;width:max(1px,calc(${to - from}% - 1px))` }, track);
    });
  }

  listen() {
    const { stops } = this;
    const keys = {
      " ": () => {
        if (!this.isPlaying && this.at === stops.length - 1) this.rest(0);
        this.run(!this.isPlaying || this.goal !== null, null);
      },
      "ArrowLeft": () => this.rest(this.fraction > 0 ? this.at : Math.max(0, this.at - 1)),
      "ArrowRight": () => this.forward(),
      "Home": () => this.rest(0), "End": () => this.rest(stops.length - 1),
    };
    document.querySelectorAll("[data-key]").forEach((button) => button.addEventListener("click", keys[button.dataset.key]));
    document.addEventListener("keydown", (event) => {
      const { tagName } = event.target;
      const isTaken = tagName === "SELECT" || (event.key === " " && tagName === "BUTTON");
      if (isTaken || event.ctrlKey || event.altKey || event.metaKey || !keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    });
    byId("scrub").addEventListener("input", ({ target }) => this.seek((this.total * target.value) / target.max));
    byId("theme").addEventListener("click", () => {
      const { dataset } = document.documentElement;
      const isDark = dataset.theme ? dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      dataset.theme = isDark ? "light" : "dark";
    });
  }

  // Plays to the next stop. If the player is already on the way to a stop, it first jumps to that stop.
  forward() {
    const next = Math.min(this.stops.length - 1, (this.goal ?? this.at) + 1);
    if (this.isStill.matches || this.goal !== null) this.rest(this.isStill.matches ? next : this.goal);
    this.run(next > this.at, next);
  }

  // Pauses at a stop, or at a fraction of the way to the next stop.
  rest(at, fraction = 0) {
    this.run(false, null);
    Object.assign(this, { at, fraction });
    this.show();
  }

  seek(time) {
    const at = this.stops.findLastIndex((stop) => stop.time <= time + 1e-12);
    const [begin, end] = [this.stops[at].time, this.stops[at + 1]?.time];
    this.rest(at, end > begin ? (time - begin) / (end - begin) : 0);
  }

  // Plays to the end, or to the stop `goal`.
  run(isPlaying, goal) {
    const [wasPlaying, isPause] = [this.isPlaying, isPlaying && goal === null];
    Object.assign(this, { isPlaying, goal });
    byId("play").setAttribute("aria-label", isPause ? "Pause" : "Play");
    byId("play").querySelector("path").setAttribute("d", isPause ? "M4 3h3v10H4zM9 3h3v10H9z" : "M4 2.5v11L13 8z");
    if (!isPlaying || wasPlaying) return;
    this.last = performance.now();
    requestAnimationFrame((now) => this.tick(now));
  }

  tick(now) {
    if (!this.isPlaying) return;
    const end = this.goal ?? this.stops.length - 1;
    let left = (Math.max(0, now - this.last) / 1000) * byId("speed").value;
    this.last = now;
    while (left > 0 && this.at < end) {
      const pace = Math.min(this.pace[this.at], this.goal === null ? Infinity : 0.9);
      const rest = (1 - this.fraction) * pace;
      this.fraction = left < rest ? this.fraction + left / pace : 0;
      this.at += left < rest ? 0 : 1;
      left -= rest;
    }
    if (this.at >= end) this.run(false, null);
    this.show();
    requestAnimationFrame((next) => this.tick(next));
  }

  show() {
    const { stops, at, total } = this;
    const fraction = this.isStill.matches ? 0 : this.fraction;
    const time = stops[at].time + fraction * ((stops[at + 1] ?? stops[at]).time - stops[at].time);
    this.views.forEach((view, plan) => {
      const round = stops[at].rounds[plan];
      const [from, to] = [view.ends[round - 1] ?? 0, view.ends[round]];
      // A round without duration is shown as the interval between two stops.
      const way = to > from ? (time - from) / (to - from) : stops[at + 1]?.rounds[plan] > round ? fraction : 0;
      view.show(round, way > 1e-6 ? Math.min(way, 1 - 1e-9) : 0);
      view.price.classList.toggle("over", round === this.marks[plan].length);
      this.marks[plan].forEach((mark, index) => mark.classList.toggle("past", index < round));
    });
    byId("scrub").value = total > 0 ? (10000 * time) / total : 0;
    byId("scrub").setAttribute("aria-valuetext", formatClock(time, total));
    byId("clock").replaceChildren(formatClock(time, total), html("span", {}, null, ` of ${formatClock(total, total)}`));
    byId("back").disabled = at === 0 && fraction === 0;
    byId("forward").disabled = at === stops.length - 1;
    const said = this.views.map((view) => `${view.film.score.algorithm}: ${view.said}`).join(" ");
    if (!this.isPlaying && byId("live").textContent !== said) byId("live").textContent = said;
  }
}

const player = new Player(JSON.parse(byId("plan-data").textContent));
