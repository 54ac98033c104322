"""Plays the pages of `ringtree plan --draw html` in a browser, and compares what they show with
what the library says. `tests/player/run` makes the pages and the states and starts this.

check.py FOLDER [SCREENSHOTS]
"""

import json
import pathlib
import re
import sys

from playwright.sync_api import sync_playwright

BROWSER = "/usr/bin/chromium"
RANKS_APART = 16

# What the page shows in each cell: the ranks that contributed, the part that is there, the text.
SHOWN = """() => [...document.querySelectorAll(".plan")].map((plan) =>
  [...plan.querySelectorAll(".cell")].map((cell) => ({
    rank: Number(cell.dataset.rank), row: Number(cell.dataset.row), kind: cell.classList[1],
    holds: cell.dataset.holds.split(" ").filter((word) => word).map(Number),
  })))"""
# The rounds that each plan has done, now and one stop before.
ROUNDS = "() => player.stops[player.at].rounds"
ROUNDS_BEFORE = "() => player.stops[player.at - 1]?.rounds"
# What the page's replay has found.
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
# The chunks [first, end) of each row.
ROWS = "() => player.views.map((view) => view.place.rows)"


def expect(condition, what):
    """Ends the test with `what` unless `condition` holds."""
    if not condition:
        raise AssertionError(what)


def opened(browser, url, width, scheme, faults=None, requests=None):
    """Opens a page that does not move, and notes what it complains of and asks for."""
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
    """Compares the states of all plans of a page at the stop where it is."""
    rows = page.evaluate(ROWS)
    rounds = page.evaluate(ROUNDS)
    before = page.evaluate(ROUNDS_BEFORE) or [None] * len(rounds)
    shown = page.evaluate(SHOWN)
    for plan, round_ in enumerate(rounds):
        expected = states[plan][round_]
        where = f"{name}, plan {plan}, round {round_}"
        holds = page.evaluate(HOLDS, [plan, round_])
        # The verifier lists the scratch that a rank has; the page gives all ranks as much.
        for rank, chunks in enumerate(expected["holds"]):
            found = holds[rank][: len(chunks)]
            expect(found == chunks, f"{where}: rank {rank} holds {found}, not {chunks}")
        for rank, parts in enumerate(page.evaluate(PARTS, [plan, round_])):
            for chunk, part in enumerate(parts):
                difference = abs(part - expected["parts"][rank][chunk])
                expect(difference < 1e-6, f"{where}: part {part} of chunk {chunk} of rank {rank}")
        # Of two plans, one may be within a round while the other ends one.
        if round_ == before[plan] and round_ + 1 < len(states[plan]):
            continue
        cells = len(rows[plan]) * len(expected["holds"])
        expect(len(shown[plan]) == cells, f"{where}: {len(shown[plan])} cells are shown, not {cells}")
        for cell in shown[plan]:
            first, end = rows[plan][cell["row"]]
            chunks = expected["holds"][cell["rank"]][first:end]
            union = sorted({rank for ranks in chunks for rank in ranks})
            expect(cell["holds"] == union, f"{where}: the cell {cell} should hold {union}")
            if not any(chunks):
                expect(cell["kind"] == "h0", f"{where}: the cell {cell} should be empty")
            parts = expected["parts"][cell["rank"]][first:end]
            if len(parts) == 1 and any(chunks) and not name.startswith("all-to-all"):
                kinds = {0.0: "passed", 1.0: "done"}
                kind = kinds.get(parts[0], cell["kind"])
                expect(cell["kind"] == kind, f"{where}: the cell {cell} should be {kind}")


def play(page, name, states):
    """Steps through a page, to the end and back."""
    stops = page.evaluate("() => player.stops.length")
    expect(page.locator("#back").is_disabled(), f"{name}: there is something before the start")
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
    """Checks the keyboard, the buttons, the slider and what is read out."""
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
    """Checks that the page plays by itself, stops at the end, and pauses."""
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


def looks(browser, url, name):
    """Checks that the page fits a phone, has two themes, and cuts no text off."""
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
    """Checks that seven ranks by circulant are told why they take three rounds and three."""
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
            expect(not faults, f"{name}: {faults}")
            expect(requests == [url], f"{name}: requests {requests}")
            context.close()
            looks(browser, url, name)
            print(f"ok  {name}")
        motion(browser, pages[1].resolve().as_uri(), "playing")
        if pictures:
            photograph(browser, pages, pictures)
        browser.close()


def photograph(browser, pages, pictures):
    """Leaves pictures for a person to look at."""
    pictures.mkdir(parents=True, exist_ok=True)
    shots = {
        "light": (0, 1280, "light", 4),
        "dark": (0, 1280, "dark", 4),
        "phone": (1, 360, "light", 3),
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
