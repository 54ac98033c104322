"""Plays the pages of `ringtree plan --draw html` in a browser and compares their contents with the
library's results. `tests/player/run` creates the pages and the states, and starts this script.

check.py FOLDER [SCREENSHOTS]
"""

import json
import pathlib
import re
import sys

from playwright.sync_api import sync_playwright

BROWSER = "/usr/bin/chromium"
RANKS_APART = 16

# The cells of each plan: rank, row, kind, and the ranks that contributed.
SHOWN = """() => [...document.querySelectorAll(".plan")].map((plan) =>
  [...plan.querySelectorAll(".cell")].map((cell) => ({
    rank: Number(cell.dataset.rank), row: Number(cell.dataset.row), kind: cell.classList[1],
    holds: cell.dataset.holds.split(" ").filter((word) => word).map(Number),
  })))"""
# The number of completed rounds of each plan, at the current stop and at the previous one.
ROUNDS = "() => player.stops[player.at].rounds"
ROUNDS_BEFORE = "() => player.stops[player.at - 1]?.rounds"
# The parts of each chunk, and the ranks that contributed, according to the page's replay.
PARTS = """([plan, round]) => {
  const { film } = player.views[plan];
  const state = film.states[round];
  const parts = (rank) => upTo(film.score.chunks).map((chunk) => partOf(film, state, rank, chunk));
  return upTo(film.page.ranks).map(parts);
}"""
HOLDS = """([plan, round]) => {
  const { film } = player.views[plan];
  const { holds } = film.states[round];
  const of = (rank) => upTo(film.width).map((chunk) => membersOf(holds[rank * film.width + chunk]));
  return upTo(film.page.ranks).map(of);
}"""
# The text of each plan's panel, and for each bar, whether it is drawn as past.
SAID = """() => [...document.querySelectorAll(".plan")].map((plan, at) => ({
  text: plan.querySelector(".now").textContent.replaceAll("\\u00a0", " "),
  over: player.views[at].bars.map((parts) => !parts[0]?.classList.contains("future")),
}))"""
# The contrast between digits and their cells in light and dark mode, for each kind of cell.
# The canvas converts any color to bytes. `kinds` are tried on one cell. If `kinds` is empty, this
# measures the cells that the page shows.
DIGITS = """(kinds) => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const light = (color) => {
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const linear = (byte) => (byte <= 10 ? byte / 3294 : ((byte / 255 + 0.055) / 1.055) ** 2.4);
    const [red, green, blue] = [...canvas.getImageData(0, 0, 1, 1).data].map(linear);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const root = document.documentElement;
  const found = {};
  const measure = (theme, cell, count) => {
    const key = [theme, ...[cell, count].map((part) => getComputedStyle(part).fill)].join(";");
    if (found[key]) return;
    const [dark, bright] = [cell, count].map((part) => light(getComputedStyle(part).fill)).sort((a, b) => a - b);
    found[key] = { kind: cell.classList[1], theme, contrast: (bright + 0.05) / (dark + 0.05) };
  };
  for (const theme of ["light", "dark"]) {
    root.dataset.theme = theme;
    const counts = [...document.querySelectorAll(".count")];
    for (const count of kinds.length > 0 ? [] : counts.filter((one) => one.textContent)) measure(theme, count.previousSibling, count);
    const [cell, before] = [counts[0].previousSibling, counts[0].previousSibling.getAttribute("class")];
    for (const kind of kinds) {
      cell.setAttribute("class", `cell ${kind}`);
      measure(theme, cell, counts[0]);
    }
    cell.setAttribute("class", before);
  }
  delete root.dataset.theme;
  return Object.values(found);
}"""
KINDS_WITH_DIGITS = ["h0", "h1", "h2", "h3", "h4", "some", "done"]
# The headline of a page whose plans differ from the plans of this page by `changes`.
HEADLINE = """(changes) => headline(changes.map(([plan, change]) => {
  const { film } = player.views[plan];
  return { ...film, score: { ...film.score, ...change } };
}))"""
CHUNKS = "(plan) => player.views[plan].film.score.chunks"
# The chunks [first, end) of each row.
ROWS = "() => player.views.map((view) => view.place.rows)"


def expect(condition, what):
    """Fails with the message `what` unless `condition` holds."""
    if not condition:
        raise AssertionError(what)


def opened(browser, url, width, scheme, faults=None, requests=None):
    """Opens a page without motion, and records its errors and its requests."""
    view = {"width": width, "height": 800}
    context = browser.new_context(viewport=view, color_scheme=scheme, reduced_motion="reduce")
    page = context.new_page()
    if faults is not None:
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
    page.goto(url)
    return context, page


def compare(page, name, states):
    """Compares the states of all plans of a page at its current stop with `states`."""
    rows = page.evaluate(ROWS)
    rounds = page.evaluate(ROUNDS)
    before = page.evaluate(ROUNDS_BEFORE) or [None] * len(rounds)
    shown = page.evaluate(SHOWN)
    said = page.evaluate(SAID)
    for cell in page.evaluate(DIGITS, []):
        expect(cell["contrast"] >= 4.5, f"{name}: {cell}")
    for plan, round_ in enumerate(rounds):
        expected = states[plan][round_]
        where = f"{name}, plan {plan}, round {round_}"
        holds = page.evaluate(HOLDS, [plan, round_])
        # The verifier lists the scratch memory of each rank. The page gives all ranks the same amount.
        for rank, chunks in enumerate(expected["holds"]):
            found = holds[rank][: len(chunks)]
            expect(found == chunks, f"{where}: rank {rank} holds {found}, not {chunks}")
        for rank, parts in enumerate(page.evaluate(PARTS, [plan, round_])):
            for chunk, part in enumerate(parts):
                difference = abs(part - expected["parts"][rank][chunk])
                expect(difference < 1e-6, f"{where}: rank {rank}, chunk {chunk}: the part is {part}")
        cells = len(rows[plan]) * len(expected["holds"])
        expect(len(shown[plan]) == cells, f"{where}: {len(shown[plan])} cells are shown, not {cells}")
        # One plan may be in the middle of a round while another plan ends a round.
        is_within = round_ == before[plan] and round_ + 1 < len(states[plan])
        last = states[plan][round_ if is_within else max(0, round_ - 1)]["holds"]
        # The contributions to a chunk may be in several places on a rank, some of them in scratch memory.
        collected, fresh = {}, set()
        chunk_count = page.evaluate(CHUNKS, plan)
        for cell in shown[plan]:
            first, end = rows[plan][cell["row"]]
            key = cell["rank"], first % chunk_count
            collected.setdefault(key, set()).update(cell["holds"])
            if cell["holds"] != union_of(last[cell["rank"]][first:end]):
                fresh.add(key)
        # A row that stands for several chunks may already show their union.
        is_apart = all(end - first == 1 for first, end in rows[plan])
        fresh = [collected[key] for key in fresh] if is_apart else None
        agree(where, said[plan], fresh, round_, is_within)
        if is_within:
            continue
        for cell in shown[plan]:
            first, end = rows[plan][cell["row"]]
            chunks = expected["holds"][cell["rank"]][first:end]
            union = union_of(chunks)
            expect(cell["holds"] == union, f"{where}: the cell {cell} should hold {union}")
            if not any(chunks):
                expect(cell["kind"] == "h0", f"{where}: the cell {cell} should be empty")
            parts = expected["parts"][cell["rank"]][first:end]
            if len(parts) == 1 and any(chunks) and not name.startswith("all-to-all"):
                kinds = {0.0: "passed", 1.0: "done"}
                kind = kinds.get(parts[0], cell["kind"])
                expect(cell["kind"] == kind, f"{where}: the cell {cell} should be {kind}")


def union_of(chunks):
    """Returns the ranks that contributed to any of `chunks`, in order."""
    return sorted({rank for ranks in chunks for rank in ranks})


def agree(where, said, fresh, round_, is_within):
    """Checks that the text and the bars of a plan agree with its cells. `fresh` lists the contributions
    that ranks hold to the chunks that they received in this round, or is None if the cells do not
    show this."""
    text = said["text"]
    begin = ("Start.", "During round ", "End of round ", "Local work.")[1 if is_within else 2 if round_ else 0]
    expect(text.startswith(begin) or text.startswith("Local work."), f"{where}: {text}")
    over = [at <= round_ for at in range(len(said["over"]))]
    expect(said["over"] == over, f"{where}: the bars {said['over']}")
    arrived = re.search(r"Arrived so far: (\d+) of (\d+)", text)
    expect(bool(arrived) == text.startswith("During"), f"{where}: {text}")
    if arrived and arrived[1] == "0":
        expect(not fresh and "up from" not in text, f"{where}: {fresh}, {text}")
    grown = re.search(r"A rank has (\d+) of \d+ contributions", text)
    if grown and fresh is not None:
        most = max(len(ranks) for ranks in fresh)
        expect(int(grown[1]) == most, f"{where}: a rank holds {most}, but: {text}")


def play(page, name, states):
    """Steps through a page to its end, and goes back."""
    for cell in page.evaluate(DIGITS, KINDS_WITH_DIGITS):
        expect(cell["contrast"] >= 4.5, f"{name}: {cell}")
    stops = page.evaluate("() => player.stops.length")
    expect(page.locator("#back").is_disabled(), f"{name}: the page can go back at the start")
    for _ in range(stops - 1):
        compare(page, name, states)
        page.keyboard.press("ArrowRight")
    compare(page, name, states)
    ends = page.evaluate(ROUNDS)
    expect(ends == [len(plan) - 1 for plan in states], f"{name}: it ends at {ends}")
    clock = page.locator("#clock").inner_text().split(" of ")
    expect(len(set(clock)) == 1, f"{name}: the clock ends at {clock}")
    prices = page.locator(".price").all_inner_texts()
    expect(all(re.fullmatch(r"predicted \S+ \S+", price) for price in prices), f"{name}: prices {prices}")
    page.keyboard.press("ArrowLeft")
    compare(page, name, states)
    page.keyboard.press("Home")
    expect(page.evaluate(ROUNDS) == [0] * len(states), f"{name}: Home does not go to the start")


def keys(page, name):
    """Checks the keyboard, the buttons, the slider, and the text for screen readers."""
    read_out = page.locator("#live")
    before = read_out.inner_text()
    page.keyboard.press("End")
    expect(page.locator("#forward").is_disabled(), f"{name}: End does not go to the end")
    expect(read_out.inner_text() != before, f"{name}: the round is not read out")
    page.keyboard.press("Home")
    page.keyboard.press("Tab")
    expect(page.evaluate("() => document.activeElement.id") == "theme", f"{name}: Tab starts elsewhere")
    outline = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
    expect(outline == "solid", f"{name}: the focus is not visible")
    page.locator(".stage").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    detail = page.locator(".detail").first.inner_text()
    expect(detail.startswith("Rank 1, chunk 0: "), f"{name}: the keys choose {detail}")
    page.keyboard.press("Escape")
    for button in page.locator("button").all():
        label = button.get_attribute("aria-label") or button.inner_text()
        expect(label.strip(), f"{name}: a button has no name")
    page.locator("#scrub").fill("10000")
    expect(page.locator("#forward").is_disabled(), f"{name}: the slider does not go to the end")
    page.keyboard.press("Home")


def motion(browser, url, name):
    """Checks that the page plays automatically, stops at the end, and pauses."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.goto(url)
    page.keyboard.press("Space")
    expect(page.locator("#play").get_attribute("aria-label") == "Pause", f"{name}: it does not play")
    page.wait_for_function("() => player.at + player.fraction > 0.2")
    page.keyboard.press("Space")
    at = page.evaluate("() => player.at + player.fraction")
    page.wait_for_timeout(100)
    expect(page.evaluate("() => player.at + player.fraction") == at, f"{name}: it does not pause")
    page.locator("#speed").select_option("4")
    page.locator("#play").click()
    page.wait_for_function("() => player.at === player.stops.length - 1 && !player.isPlaying", timeout=60_000)
    context.close()


def still(browser, url, name):
    """Checks that nothing fades in when the page loads or when its width changes."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.add_init_script("window.faded = []; addEventListener('transitionrun', (event) => faded.push(event.target.tagName))")
    page.goto(url)
    page.wait_for_timeout(300)
    page.set_viewport_size({"width": 420, "height": 800})
    page.wait_for_timeout(300)
    faded = page.evaluate("() => faded.length")
    expect(faded == 0, f"{name}: {faded} transitions before the first step")
    context.close()


def on_a_phone(browser, url, name):
    """Checks the labels of a ring over 7 ranks and of circulant, and where their bars are."""
    context, page = opened(browser, url, 420, "light")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".stage .size").count() == 14, f"{name}: a message without its size")
    rows = page.evaluate("() => [...document.querySelectorAll('.stage text')].map((text) => text.textContent)")
    expect(rows.count("chunk 6") == 2, f"{name}: the rows are {rows}")
    starts = [row.split()[0] for row in page.locator("figure svg").evaluate_all(
        "(all) => all.map((one) => one.querySelector('.tick').textContent)")]
    expect(starts == ["start", "start"], f"{name}: the axes begin with {starts}")
    gaps = page.evaluate("""() => player.views.map(({ stage, figure }) =>
      figure.getBoundingClientRect().top - stage.getBoundingClientRect().bottom)""")
    expect(all(0 < gap < 150 for gap in gaps), f"{name}: the bars begin {gaps} pixels below the cells")
    padding = "() => parseFloat(getComputedStyle(document.documentElement).scrollPaddingBottom)"
    high = page.locator("#bar").bounding_box()["height"]
    expect(page.evaluate(padding) >= high, f"{name}: the player may cover the focused element")
    context.close()


def headlines(page, name):
    """Checks the headline of ring and circulant, and of plans that differ in other ways."""
    shown = page.locator("#finding").inner_text().replace("\u00a0", " ")
    begin = "Both send 110 KiB per rank. Circulant takes 6 rounds instead of 12, so it waits less for "
    expect(shown.startswith(begin), f"{name}: {shown}")
    slow = {"price": "2 ms", "ends_s": [2e-3], "parts_s": [1e-3, 1e-3, 0], "sends": "2 KiB"}
    fast = {"price": "1 ms", "ends_s": [1e-3], "parts_s": [0.5e-3, 0.5e-3, 0], "sends": "1 KiB"}
    cases = [
        # Equal rounds, fewer bytes.
        ([(0, slow), (0, {**fast, "parts_s": [1e-3, 0, 0]})],
         "Ring sends 1 KiB per rank instead of 2 KiB. Both take 12 rounds. Ring is predicted to end "
         "first, after 1 ms instead of 2 ms, because sending the data takes 0 s instead of 1 ms."),
        # More bytes, fewer rounds.
        ([(0, slow), (1, {**fast, "sends": "3 KiB"})],
         "Circulant sends 3 KiB per rank instead of 2 KiB. It takes 6 rounds instead of 12, so it "
         "waits less for messages: 500 µs instead of 1 ms. It is predicted to end first, after 1 ms "
         "instead of 2 ms."),
        # More rounds, but a shorter time.
        ([(1, slow), (0, {**fast, "parts_s": [1.5e-3, 0, 0]})],
         "Ring sends 1 KiB per rank instead of 2 KiB. It takes 12 rounds instead of 6, so it waits "
         "longer for messages: 1.50 ms instead of 1 ms. It is predicted to end first, after 1 ms "
         "instead of 2 ms, because sending the data takes 0 s instead of 1 ms."),
        # No difference.
        ([(0, slow), (0, slow)],
         "Both send 2 KiB per rank. Both take 12 rounds. Both are predicted to end after 2 ms."),
        # One plan, and one without data.
        ([(0, slow)], "Ring takes 12 rounds, and each rank sends 2 KiB. It is predicted to end after "
         "2 ms, 1 ms of that waiting for messages."),
        ([(0, {**slow, "sends": "0 B"})], "Ring takes 12 rounds. It is predicted to end after 2 ms, "
         "1 ms of that waiting for messages."),
    ]
    for changes, expected in cases:
        found = page.evaluate(HEADLINE, changes)
        expect(found == expected, f"{name}: {found}, not: {expected}")


def looks(browser, url, name):
    """Checks that the page fits a phone, has two themes, and does not truncate text."""
    colors = set()
    for scheme in ["light", "dark"]:
        for width in [360, 768, 1280]:
            context, page = opened(browser, url, width, scheme)
            page.keyboard.press("ArrowRight")
            wide = page.evaluate("() => document.documentElement.scrollWidth")
            expect(wide <= width, f"{name}: {wide} pixels wide on {width}")
            background = "() => getComputedStyle(document.documentElement).backgroundColor"
            colors.add(page.evaluate(background))
            before = page.evaluate(background)
            page.locator("#theme").click()
            expect(page.evaluate(background) != before, f"{name}: the switch changes nothing")
            context.close()
    expect(len(colors) == 2, f"{name}: light and dark are {colors}")


def explains(page):
    """Checks that a page explains the name and the two times three rounds of circulant."""
    expect("a circle" in page.locator(".meaning").inner_text(), "circulant is not defined")
    why = page.locator(".why").inner_text().replace("\u00a0", " ")
    for text in ["1 → 2 → 4 → 7", "⌈log₂ 7⌉ = 3", "2 × (3 + 3) = 12 rounds"]:
        expect(text in why, f"{text} is not in: {why}")


def main(folder, pictures):
    pages = sorted(folder.glob("*.html"))
    expect(len(pages) == 12, f"{len(pages)} pages in {folder}")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        for path in pages:
            expected = json.loads(path.with_suffix(".json").read_text())
            name, url = expected["line"], path.resolve().as_uri()
            faults, requests = [], []
            context, page = opened(browser, url, 1280, "light", faults, requests)
            keys(page, name)
            play(page, name, expected["plans"])
            if path == pages[0]:
                explains(page)
            if path == pages[1]:
                headlines(page, name)
            expect(not faults, f"{name}: {faults}")
            expect(requests == [url], f"{name}: requests {requests}")
            context.close()
            looks(browser, url, name)
            print(f"ok  {name}")
        url = pages[1].resolve().as_uri()
        motion(browser, url, "playing")
        still(browser, url, "loading")
        on_a_phone(browser, url, "phone")
        if pictures:
            photograph(browser, pages, pictures)
        browser.close()


def photograph(browser, pages, pictures):
    """Saves screenshots for visual inspection."""
    pictures.mkdir(parents=True, exist_ok=True)
    shots = {
        "light": (0, 1280, "light", 4),
        "dark": (0, 1280, "dark", 4),
        "phone": (1, 420, "light", 3),
        "two": (1, 1280, "light", 5),
        "hosts": (3, 1280, "dark", 6),
        "blocks": (8, 1280, "light", 2),
        "many": (11, 1280, "light", 3),
    }
    for name, (number, width, scheme, steps) in shots.items():
        context, page = opened(browser, pages[number].resolve().as_uri(), width, scheme)
        for _ in range(steps):
            page.keyboard.press("ArrowRight")
        page.wait_for_timeout(300)
        page.screenshot(path=pictures / f"{name}.png", full_page=True)
        context.close()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None)
