"""Chromium, and a learner's hands on JupyterLab: menus, scrolling, typing into a cell, saving."""

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from browser_jupyter import Jupyter

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PAGE_SECONDS = 60  # for one thing on the page to come about, with other work on the machine
RUN_SECONDS = 240  # for a notebook to run to its end


def need_browser() -> str:
    """The path of a Chromium on this machine; without one the test is skipped, and the summary counts it."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        assert os.environ.get("CI") != "true", "CI installs chromium (.ci/setup_env.sh)"
        pytest.skip("no browser here: apt install chromium fonts-noto-cjk")
    return found


@contextlib.contextmanager
def chromium():
    """A headless browser. Yields Playwright's Browser."""
    executable = need_browser()
    from playwright.sync_api import sync_playwright

    # Chromium's own sandbox refuses root; what it opens here is our own server on loopback.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=[*options, "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def new_page(browser, jupyter: Jupyter, *, width: int = 1280, height: int = 900):
    """A page of its own. On a failure a screenshot is kept beside the server's log, and the message names both."""
    context = browser.new_context(viewport={"width": width, "height": height}, locale="zh-CN")
    page = context.new_page()
    page.set_default_timeout(PAGE_SECONDS * 1000)
    try:
        yield page
    except Exception as error:
        shot = jupyter.home / f"failure-{time.monotonic_ns()}.png"
        with contextlib.suppress(Exception):  # a dead page must not hide why it died
            page.screenshot(path=shot)
        error.add_note(f"screenshot: {shot}\nserver's log: {jupyter.log}")
        raise
    finally:
        context.close()


def _count(cell: dict) -> int:
    """A code cell's number among all runs of its kernel; 0 if it was not run."""
    return cell.get("execution_count") or 0


def _ended(saved: dict, earlier: int) -> bool:
    """Whether the code cells ran one after another, later than the run `earlier`, to the last one or to an error."""
    cells = [cell for cell in saved["cells"] if cell["cell_type"] == "code"]
    ran = [cell for cell in cells if _count(cell) > earlier]
    failed = bool(ran) and any(output["output_type"] == "error" for output in ran[-1]["outputs"])
    return ran == cells[: len(ran)] and (failed or len(ran) == len(cells))


class NotebookPage:
    """A notebook open in JupyterLab. `file` is where the server saves it."""

    def __init__(self, page, jupyter: Jupyter, file: Path):
        self.page, self.jupyter, self.file = page, jupyter, file
        self.notebook = page.locator(".jp-Notebook")
        self.cells = self.notebook.locator(".jp-Cell")

    def open(self, view: str = "lab/tree") -> None:
        """view: `lab/tree` is JupyterLab, `notebooks` the single document that fits a narrow screen."""
        self.page.goto(self.jupyter.url(f"{view}/{self.file.name}"), wait_until="domcontentloaded")
        self.page.locator("#jupyterlab-splash").wait_for(state="detached")
        count = len(self._ids())
        self.until("all cells are on the page", lambda: self.cells.count() == count)

    def until(self, what: str, holds: Callable[[], object], seconds: float = PAGE_SECONDS):
        """Asks again and again, the page going on meanwhile; returns what `holds` gave once that is true."""
        deadline = time.monotonic() + seconds
        while not (value := holds()):
            assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
            self.page.wait_for_timeout(200)
        return value

    def menu(self, name: str, command: str) -> None:
        self.page.get_by_role("menubar").get_by_text(name, exact=True).click()
        item = self.page.locator(".lm-Menu .lm-Menu-item").filter(has_text=re.compile(f"^{command}"))
        item.first.click()

    def save(self) -> dict:
        """File → Save Notebook, and the file as it then is."""
        changed = self.page.locator(".lm-TabBar-tab.jp-mod-dirty")  # how the tab of an unsaved document is marked

        def saved() -> bool:
            self.menu("File", "Save Notebook")
            again = time.monotonic() + 5  # a cell that runs meanwhile changes the document after it was saved
            while changed.count() and time.monotonic() < again:
                self.page.wait_for_timeout(100)
            return changed.count() == 0

        self.until("the notebook is saved", saved)
        return self._written()

    def run_all(self) -> dict:
        """Run → Run All Cells, to its end or its first error; then saved: the file as it then is."""
        earlier = max(map(_count, self.save()["cells"]))
        self.menu("Run", "Run All Cells")

        def over() -> dict | None:
            if self.notebook.get_by_text("[*]:").count():
                return None  # a cell waits or runs; the prompt of a folded cell is not on the page
            saved = self.save()
            return saved if _ended(saved, earlier) else None

        return self.until("all cells have run", over, RUN_SECONDS)

    def _written(self) -> dict:
        """The file, once it is whole: the server writes it in place, and for a moment it is empty or cut off."""

        def whole() -> dict | None:
            with contextlib.suppress(json.JSONDecodeError):
                return json.loads(self.file.read_text("utf-8"))

        return self.until("the file is whole", whole)

    def _ids(self) -> list[str]:
        return [cell["id"] for cell in self._written()["cells"]]

    def cell(self, cell_id: str):
        """A cell by its id in the file, scrolled into sight."""
        cell = self.cells.nth(self._ids().index(cell_id))
        cell.scroll_into_view_if_needed()
        return cell

    def replace_line(self, cell_id: str, start: str, text: str) -> None:
        """Types `text` over the one line of a cell that starts with `start`; its indentation stays."""
        line = self.cell(cell_id).locator(".cm-line").filter(has_text=re.compile(r"^\s*" + re.escape(start)))

        def drawn() -> int:
            if not line.count():  # a long editor draws only the lines that are near
                self.notebook.hover()
                self.page.mouse.wheel(0, 300)
            return line.count()

        self.until(f"the line {start!r} is drawn", drawn)
        line.click()
        self.page.keyboard.press("End")
        self.page.keyboard.press("Shift+Home")  # up to the indentation
        self.page.keyboard.type(text)
