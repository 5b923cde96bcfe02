"""The page of ``promptccd open`` in a browser, as quick as it is with so many photographs.

    python -m benchmarks.bench_page --pictures caltech101.parquet cifar100.parquet --photographs 10000 100000

Photographs and projects are made once, in `--folder`; corrections are taken back before it ends. Times are of this
machine, browser and server together: the goals beside them are for one that does nothing else.
"""

import argparse
import gzip
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.page_project import make_project

IMPORTS = "import promptccd_command, promptccd.cli.page_commands, promptccd.discovery.page.server"
ROOT = "const root = document.querySelector('promptccd-desk').shadowRoot;"
FRAME = "new Promise(done => requestAnimationFrame(() => setTimeout(done)))"
FIRST = (
    f"(() => {{ {ROOT} return [...root.querySelectorAll('.card img')].some(each => each.naturalWidth) }})()"
)
JUMP = f"""async place => {{ {ROOT}
    const scroll = root.querySelector('.photos .scroll'), began = performance.now();
    scroll.scrollTop = place * (scroll.scrollHeight - scroll.clientHeight);
    for (;;) {{
        await new Promise(done => requestAnimationFrame(done));
        const cells = [...root.querySelectorAll('.cell')];
        const seen = cells.filter(each => each.getBoundingClientRect().bottom > scroll.getBoundingClientRect().top
            && each.getBoundingClientRect().top < innerHeight);
        const filled = seen.length && seen.every(each => each.querySelector('img')?.naturalWidth);
        if (filled || performance.now() - began > 10000) return performance.now() - began;
    }} }}"""
KEY = f"""async ([place, key, held]) => {{ {ROOT}
    const began = performance.now();
    const pressed = {{ key, bubbles: true, composed: true, ...held }};
    root.querySelector(place).dispatchEvent(new KeyboardEvent('keydown', pressed));
    await {FRAME};
    return performance.now() - began; }}"""
SAID = f"""async ([place, key, held, said]) => {{ {ROOT}
    const began = performance.now(), status = root.querySelector('.status');
    const pressed = {{ key, bubbles: true, composed: true, ...held }};
    root.querySelector(place).dispatchEvent(new KeyboardEvent('keydown', pressed));
    while (!status.textContent.includes(said)) await new Promise(done => requestAnimationFrame(done));
    await {FRAME};
    return performance.now() - began; }}"""
EDIT = """async body => {
    const began = performance.now();
    const answer = await fetch('/api/edit', { method: 'POST', body: JSON.stringify(body) });
    const reply = await answer.json();
    if (!answer.ok) throw new Error(reply.error);
    return [performance.now() - began, reply.undo?.number ?? -1]; }"""
LINE = f"""() => {{ {ROOT}
    window.closedIn = 0;
    root.querySelector('canvas').addEventListener('pointerup', async () => {{
        const began = performance.now();
        do await {FRAME}; while (!root.querySelector('.selection'));
        window.closedIn = performance.now() - began;
    }}, {{ capture: true, once: true }}); }}"""
SCROLL = f"""async () => {{ {ROOT}
    const tasks = [], scroll = root.querySelector('.photos .scroll');
    new PerformanceObserver(list => tasks.push(...list.getEntries())).observe({{ type: 'longtask' }});
    scroll.scrollTop = 0;
    for (let row = 0; row < 200; row++) {{
        scroll.scrollTop += 150;
        await new Promise(done => requestAnimationFrame(done));
    }}
    await new Promise(done => setTimeout(done, 300));
    return Math.max(0, ...tasks.map(each => each.duration)); }}"""


def report(what: str, values: Sequence[float], goal: str = "") -> None:
    """One row: the median and the 95th percentile."""
    ordered = sorted(values)
    high = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    print(f"  {what:46s} {statistics.median(values):8.0f} {high:8.0f}   {goal}", flush=True)


@contextmanager
def served(found: Path) -> Iterator[tuple[str, int, float]]:
    """The page of a project as the command serves it: its address, its process, and the seconds until it was there."""
    began = time.perf_counter()
    words = [sys.executable, "-m", "promptccd_command", "open", str(found), "--no-browser"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    try:
        yield (
            next(word for word in line.split() if "token=" in word),
            process.pid,
            time.perf_counter() - began,
        )
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def seconds_of_imports() -> float:
    """What an interpreter takes to have what the command has before it looks at its folder."""
    took = list[float]()
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", IMPORTS], check=True)
        took.append(time.perf_counter() - began)
    return min(took)


def memory(process: int) -> float:
    """Of a process, in MB."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1000


def until_true(page: Page, script: str) -> None:
    """Wait without `wait_for_function`, which the page's policy refuses."""
    while not page.evaluate(script):
        time.sleep(0.005)


def until_groups(page: Page, url: str) -> float:
    """Milliseconds from the address to the first picture."""
    page.goto("about:blank")
    began = time.perf_counter()
    page.goto(url)
    until_true(page, FIRST)
    return 1000 * (time.perf_counter() - began)


def go(page: Page, where: str) -> None:
    """Show a place, and let it come to rest."""
    page.evaluate(f"location.hash = {where!r}")
    page.wait_for_timeout(2500)


def measure_looking(page: Page) -> None:
    """Jumps, scrolling, selecting; nothing is corrected."""
    go(page, "view=all")
    places = [(7 * step % 23) / 23 + 0.01 for step in range(22)]
    report("far jump filled, never seen", [page.evaluate(JUMP, place) for place in places])
    report("far jump filled", [page.evaluate(JUMP, place) for place in places], "p95 200")
    report("longest task while 200 rows scroll", [page.evaluate(SCROLL)], "50")
    page.wait_for_timeout(1000)
    picked = list[float]()
    for _ in range(20):
        page.evaluate(KEY, [".cells", "ArrowRight", {}])
        picked.append(page.evaluate(KEY, [".cells", " ", {}]))
    report("select one", picked, "p95 100")
    page.evaluate(KEY, [".cells", "Escape", {}])
    ends = [page.evaluate(KEY, [".cells", key, {"shiftKey": True}]) for key in ("End", "Home") * 4]
    report("select a range of all", ends, "p95 100")
    alls = [page.evaluate(KEY, [".cells", "a", {"ctrlKey": True}]) for _ in range(10)]
    report("select all", alls, "p95 100")
    page.evaluate(KEY, [".cells", "Escape", {}])


def measure_answers(page: Page) -> None:
    """What the server takes to answer corrections, and what it takes until they are seen."""
    state = page.evaluate("fetch('/api/state').then(answer => answer.json())")
    groups = [each["id"] for each in state["groups"] if each["origin"] != "known"][:8]
    asked = {"do": "move", "generation": state["generation"]}
    page.evaluate(EDIT, {**asked, "images": [0, 1], "to": groups[0]})  # features are there from the first on
    count, moves, numbers = state["photos"], list[float](), list[int]()
    for step in range(40):
        rows = [(step * 997 + each) % count for each in range(500 if step % 4 == 0 else 3)]
        took, number = page.evaluate(EDIT, {**asked, "images": rows, "to": groups[step % len(groups)]})
        moves.append(took)
        numbers.append(number)
    goal = "p95 40" if count <= 10_000 else "p95 80"
    report("answer to a move of 500", moves[::4], goal)
    report("answer to a move of 3", [each for at, each in enumerate(moves) if at % 4], goal)
    names = [
        page.evaluate(EDIT, {"do": "rename", "category": groups[0], "name": f"name {step}"})
        for step in range(20)
    ]
    report("answer to a name", [took for took, _ in names], goal)
    numbers += [number for _, number in names]
    undone = [page.evaluate(EDIT, {"do": "undo", "number": number})[0] for number in reversed(numbers)]
    report("answer to an undo", undone, goal)


def measure_corrections(page: Page) -> None:
    """Keys, until what they did is painted."""
    go(page, "view=all")
    moves, backs = list[float](), list[float]()
    for _ in range(8):
        page.evaluate(KEY, [".cells", " ", {}])
        for _ in range(2):
            page.evaluate(KEY, [".cells", "PageDown", {"shiftKey": True}])
        moves.append(page.evaluate(SAID, [".cells", "Delete", {}, "Took"]))
        backs.append(page.evaluate(SAID, [".cells", "z", {"ctrlKey": True}, "Taken back"]))
        page.evaluate(KEY, [".cells", "Home", {}])
    report("move some by key: seen", moves, "p95 100")
    report("undo by key: seen", backs, "p95 100")


def measure_windows(page: Page, other: Page) -> None:
    """From the answer to a correction until another window shows it."""
    until_groups(other, page.url.partition("#")[0])
    group = page.evaluate("fetch('/api/state').then(answer => answer.json())")["groups"][0]["id"]
    seen, number = list[float](), -1
    for step in range(10):
        _, number = page.evaluate(EDIT, {"do": "rename", "category": group, "name": f"seen {step}"})
        began = time.perf_counter()
        until_true(other, f"(() => {{ {ROOT} return root.textContent.includes('seen {step}') }})()")
        seen.append(1000 * (time.perf_counter() - began))
    for step in range(10):
        page.evaluate(EDIT, {"do": "undo", "number": number - step})
    report("another window shows it", seen, "300")
    other.close()
    page.bring_to_front()  # what is behind another is hardly painted


def measure_map(page: Page) -> None:
    """A frame of the map, drawn anew at another scale, and after the pointer moved."""
    go(page, "view=map")
    until_true(page, f"(() => {{ {ROOT} return !root.querySelector('.plane .empty') }})()")
    box = page.locator("canvas").bounding_box()
    assert box is not None
    middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    timed = "async name => { const began = performance.now(); const root = document.querySelector('promptccd-desk')"
    timed += (
        ".shadowRoot; root.querySelector('canvas').dispatchEvent(name === 'wheel' ? new WheelEvent('wheel', "
    )
    timed += "{ deltaY: 20, bubbles: true }) : new PointerEvent(name, { clientX: 500, clientY: 400, bubbles: true }));"
    timed += f" await {FRAME}; return performance.now() - began; }}"
    report("map: zoomed, painted", [page.evaluate(timed, "wheel") for _ in range(10)], "16 to draw")
    report("map: pointed at, painted", [page.evaluate(timed, "pointermove") for _ in range(10)], "p95 100")
    closed = [close_line(page, middle, 150 + 10 * step) for step in range(6)]
    report("map: line closed, selection painted", closed, "50 to select")


def close_line(page: Page, middle: tuple[float, float], wide: float) -> float:
    """Milliseconds from the end of a line around some photographs until they are selected."""
    page.evaluate(LINE)
    page.mouse.move(*middle)
    page.mouse.down()
    for dx, dy in ((wide, 0), (wide, wide), (-wide, wide), (-wide, -wide)):
        page.mouse.move(middle[0] + dx, middle[1] + dy, steps=5)
    page.mouse.up()
    until_true(page, "window.closedIn > 0")
    page.keyboard.press("Escape")
    page.wait_for_timeout(500)
    return float(page.evaluate("window.closedIn"))


def measure_page(browser: Browser, url: str, process: int, since: float) -> None:
    """Everything on one page; `since` are the seconds that its command has taken after its imports."""
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    page = context.new_page()
    began = time.perf_counter()
    until_groups(page, url)
    seconds = since + time.perf_counter() - began
    print(
        f"  from the imports to the first groups: {seconds:.1f} s (3); {memory(process):.0f} MB of the server"
    )
    plain = url.partition("?")[0]
    report("first picture", [until_groups(page, plain) for _ in range(5)], "600; 1000 at 100,000")
    measure_looking(page)
    measure_answers(page)
    measure_corrections(page)
    measure_windows(page, context.new_page())
    tools = context.new_cdp_session(page)
    tools.send("HeapProfiler.collectGarbage")
    tools.send("Performance.enable")
    metrics = {each["name"]: each["value"] for each in tools.send("Performance.getMetrics")["metrics"]}
    print(f"  nodes {metrics['Nodes']} (2000), heap {metrics['JSHeapUsedSize'] / 1e6:.0f} MB (60)")
    measure_map(page)
    print(f"  {memory(process):.0f} MB of the server at the end")
    context.close()


def main(argv: Sequence[str] | None = None) -> None:
    """Make projects, and measure the page of each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=Path, nargs="+", required=True, help="Parquet files with pictures")
    parser.add_argument("--photographs", type=int, nargs="+", default=[10_000])
    parser.add_argument("--folder", type=Path, default=Path("build/bench_page"), help="keeps what is made")
    arguments = parser.parse_args(argv)
    bundle = files("promptccd.discovery.page") / "bundle"
    weight = sum(len(gzip.compress((bundle / name).read_bytes())) for name in ("index.html", "desk.js"))
    print(f"page without photographs: {weight / 1000:.1f} kB, compressed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for count in arguments.photographs:
            found = make_project(arguments.folder / str(count), arguments.pictures, count)
            load, imports = os.getloadavg()[0], seconds_of_imports()
            print(f"{count} photographs, load {load:.1f}: median and 95th percentile in ms, goal", flush=True)
            print(f"  imports alone: {imports:.1f} s")
            with served(found) as (url, process, since):
                measure_page(browser, url, process, since - imports)
        browser.close()


if __name__ == "__main__":
    main()
