"""The dashboard's page in a real browser: every view, console errors, keyboard, contrast, and how fast it draws.

The cheap test shows an ended job from its files. The soak tests show a live job, write the pictures of the docs, and
print frames per second and memory for a job of 10,000 shards and 200 roles.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from springtide.dashboard import app
from springtide.telemetry import events, planner_views, progress
from tests.architecture import sources
from tests.unit.cli.show.test_status import FINISHED, make_past_run

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.process,
    pytest.mark.extra("playwright"),
    pytest.mark.skipif(
        CHROMIUM is None or not app.is_built(), reason="needs chromium and the page: make setup-browser"
    ),
]
OF_A_JOB = ("overview", "timeline", "step", "nodes", "data", "tables", "checkpoints", "plan", "logs")
PICTURES = sources.ROOT / "docs" / "images"
WAIT_MS = 120_000

SCRIPT = """
import time, torch
import springtide as st

class Clicks(torch.utils.data.Dataset):
    def __len__(self):
        return 400_000

    def __getitem__(self, i):
        return torch.tensor([i % 1000, i * 7919 % 50_000]), torch.tensor(float(i % 3 == 0))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.ids = torch.nn.Embedding(50_000, 16)
        self.top = torch.nn.Linear(32, 1)

    def forward(self, x):
        return self.top(self.ids(x).flatten(1)).squeeze(1)

job = st.join()
model = Model()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
loader = torch.utils.data.DataLoader(Clicks(), batch_size=128)
model, optimizer, batches = job.prepare(model, optimizer, loader)
for x, y in batches:
    optimizer.zero_grad()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x), y)
    loss.backward()
    optimizer.step()
    job.report(loss=loss.item())
    time.sleep(0.05)
"""

CONTRASTS = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const part = (value) => ((value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const color = parse(getComputedStyle(element).backgroundColor);
      if (color.length < 4 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const poor = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement, style = getComputedStyle(element);
    if (!texts.currentNode.data.trim() || style.visibility === "hidden" || !element.getClientRects().length) continue;
    if (element.closest("svg, canvas, :disabled, noscript, title")) continue;
    const [one, other] = [light(parse(style.color)), light(behind(element))].sort((a, b) => b - a);
    const large = parseFloat(style.fontSize) >= 18.66 && Number(style.fontWeight) >= 600;
    const ratio = (one + 0.05) / (other + 0.05);
    if (ratio < (large ? 3 : 4.5)) poor.push(`${texts.currentNode.data.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return poor;
}"""
FRAMES = """(seconds) => new Promise((done) => {
  let frames = 0;
  const began = performance.now();
  const count = () => {
    frames++;
    const passed = (performance.now() - began) / 1000;
    passed < seconds ? requestAnimationFrame(count) : done(frames / passed);
  };
  requestAnimationFrame(count);
})"""


@contextlib.contextmanager
def command(*words, cwd, stream="stdout"):
    """A command that prints a URL and serves it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(sources.ROOT)}
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=cwd,
        env=environment,
        text=True,
        start_new_session=True,
        **{stream: subprocess.PIPE},
    )
    try:
        lines = getattr(process, stream)
        url = next(found[0] for line in lines if (found := re.search(r"http://\S+", line)))
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=60)
        process.kill()
        process.communicate()


@contextlib.contextmanager
def browser_page(url, *, size=(1280, 800), theme="light"):
    """A page in a fresh browser; nothing may appear on its console."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--enable-precise-memory-info"]
        )
        page = browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=theme)
        page.set_default_timeout(WAIT_MS)
        said = []
        page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on(
            "request",
            lambda request: said.append(request.url) if not request.url.startswith(url.partition("#")[0]) else None,
        )
        page.goto(url)
        yield page
        browser.close()
        assert not said, f"on the console, or loaded from elsewhere: {said}"


def until(page, true, given=None):
    """Wait for a condition. (Playwright's own way needs `eval`, which the page's security policy forbids.)"""
    for _ in range(WAIT_MS // 100):
        if page.evaluate(true, given):
            return
        page.wait_for_timeout(100)
    pytest.fail(f"never true: {true} {given}")


def show(page, job, view):
    page.evaluate("place => { location.hash = place; }", f"/job/{job}/{view}")
    page.wait_for_selector("nav a[aria-current]")
    until(page, "() => !document.querySelector('main').innerText.match(/^(Reading|Asking)/)")


@pytest.fixture
def runs(tmp_path):
    plan = {"outcome": "taken", "shape": "2 workers", "why": "it is faster", "stage": "sample", "epoch": 1}
    saved = {"number": 1, "outcome": "complete", "full": True, "bytes": 100, "seconds": 0.1, "where": "/gone"}
    told = [
        ("joined", {"role": "worker-0", "pid": 1, "incarnation": 0}),
        ("plan", plan | {"throughput": 9e3}),
        ("checkpoint", saved),
    ]
    files = make_past_run(tmp_path / "runs", "clicks", began_at=time.time() - 100, status=FINISHED, told=told)
    log = progress.ProgressLog(files.progress)
    for second in range(100):
        at = time.time() - 100 + second
        log.add(
            progress.ProgressPoint(
                at=at, samples=second, samples_per_s=9e3 + second, loss=0.7 - second / 500, workers=2, servers=1
            )
        )
    planner_views.write(files.view, planner_views.read(sources.ROOT / "examples" / "plan_job.yaml"))
    planner_views.keep(files, 1)
    (files.logs / "worker-0.log").write_text(
        "2026-11-19 20:00:00,000 WARNING springtide: slow\nTraceback\nValueError: no\n"
    )
    return files.root.parent


def test_page_of_an_ended_job_shows_every_view_with_keys_and_contrast(runs, tmp_path):
    options = ("-m", "springtide.cli.app", "dashboard", "--port", "0", "--logs", str(runs))
    with command(*options, cwd=tmp_path) as url, browser_page(url) as page:
        page.wait_for_selector(".tile")
        assert "#" + url.partition("#")[2] not in page.url, "the token stays out of the address"
        for theme in ("light", "dark"):
            for view in OF_A_JOB:
                show(page, "clicks", view)
                assert page.evaluate(CONTRASTS) == [], f"{view}, {theme}"
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{view} is too wide"
            page.click("header button")
        show(page, "clicks", "overview")
        page.focus(".story .line")
        page.keyboard.press("Enter")
        assert "it is faster" in page.inner_text(".detail")
        page.wait_for_selector(".detail table tr.strong, .detail table td")
        page.focus("nav a")
        page.keyboard.press("Enter")
        page.wait_for_selector("td a")
        page.fill("input[type=search]", "nobody")
        assert "No job matches" in page.inner_text("main")
        page.set_viewport_size({"width": 390, "height": 800})
        for view in OF_A_JOB:
            show(page, "clicks", view)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
                f"{view} is too wide for a phone"
            )


@pytest.mark.soak
def test_page_of_a_live_job_shows_live_data_in_every_view(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    run = ("-m", "springtide.cli.app", "run", "train.py", "--servers", "2", "--workers", "2", "--checkpoint-every", "3")
    with command(*run, cwd=tmp_path, stream="stderr") as url, browser_page(url) as page:
        until(page, "() => document.querySelectorAll('.u-wrap').length >= 3")
        live = {
            "timeline": "4 rows|[5-9] rows",
            "step": "slowest worker is",
            "nodes": "worker-1",
            "data": "of [0-9]+ done",
            "tables": "Hot slots",
            "checkpoints": "complete",
            "logs": "server-0",
            "plan": "plan of this job is not known",
            "overview": "Samples/s",
        }
        for view, text in live.items():
            show(page, "train", view)
            until(page, "text => document.querySelector('main').innerText.match(new RegExp(text)) !== null", text)
            assert page.evaluate(CONTRASTS) == [], view
        before = page.inner_text(".tile dd")
        until(page, "before => document.querySelector('.tile dd').innerText !== before", before)
        story = events.read(tmp_path / ".springtide" / "runs" / "train" / "events.jsonl")
        worker = next(event for event in story if event["event"] == "joined" and event["role"] == "worker-1")
        os.kill(worker["pid"], signal.SIGKILL)
        until(page, "() => document.querySelector('.story').innerText.includes('relaunch worker-1')")
        page.wait_for_timeout(12_000)
        PICTURES.mkdir(exist_ok=True)
        for view in ("overview", "tables", "timeline"):
            show(page, "train", view)
            page.wait_for_timeout(2500)
            page.screenshot(path=PICTURES / f"dashboard-{view}.png")
        page.click("header button")
        show(page, "train", "overview")
        page.wait_for_timeout(1500)
        page.screenshot(path=PICTURES / "dashboard-dark.png")


@pytest.mark.soak
def test_page_of_a_big_job_draws_fast_in_little_memory():
    with command("-m", "tests.browser.big_job", cwd=sources.ROOT) as url, browser_page(url) as page:
        page.wait_for_selector(".tile")
        for view in ("overview", "timeline", "step", "nodes", "data", "tables"):
            show(page, "big", view)
            page.wait_for_timeout(2000)
            frames, heap = page.evaluate(FRAMES, 5), page.evaluate("performance.memory.usedJSHeapSize / 2 ** 20")
            print(f"{view}: {frames:.0f} frames/s, {heap:.0f} MiB")
            assert page.inner_text("main")
