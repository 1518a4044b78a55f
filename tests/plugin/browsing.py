"""What the tests in the browser do alike: log in, open a view, close a dialog."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playwright.sync_api import expect
from tests.plugin.airflow_server import AirflowServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

# On a busy machine an answer takes longer than the five seconds that are usual.
expect.set_options(timeout=30_000)

#: Looks for what keeps people out who cannot see, or use no mouse.
AXE = Path(__file__).parents[2] / "plugin" / "ui" / "node_modules" / "axe-core" / "axe.min.js"
#: Where the pictures in the documentation come from, and those that it shows.
PICTURES = Path(__file__).parents[2] / "docs" / "how-to" / "page"
SHOWN = {
    "overview-wide-light",
    "overview-wide-dark",
    "overview-narrow-light",
    "overview-narrow-dark",
    "messages-wide-light",
    "messages-wide-dark",
    "message-wide-light",
    "message-wide-dark",
    "dead-letters-wide-light",
    "dead-letters-wide-dark",
    "plan-wide-light",
    "plan-wide-dark",
}
#: Whether the tests write them anew.
WRITES_PICTURES = "DUEWHEEL_WRITE_PICTURES" in os.environ
#: The page keeps a shared answer for 500 times as long as it took: long, on a busy machine.
SHARED_ANSWER_MS = 180_000
WIDE = {"width": 1400, "height": 900}
NARROW = {"width": 400, "height": 900}

#: The cookies of those who have logged in, by server and role.
_LOGINS: dict[tuple[str, str], Any] = {}


@contextmanager
def logged_in(
    chromium: Browser, airflow: AirflowServer, role: str, *, dark: bool = False, size: Any = None
) -> Iterator[Page]:
    """A page of the browser after a real login; what goes wrong in it fails the test.

    A user logs in once and keeps the cookies from then on, as in a browser that was closed and opened again.
    """
    known = _LOGINS.get((airflow.url, role))
    context = chromium.new_context(
        storage_state=known,
        viewport=size or WIDE,
        color_scheme="dark" if dark else "light",
        locale="en-GB",
        timezone_id="UTC",
    )
    context.add_init_script(f"localStorage.setItem('theme', '{'dark' if dark else 'light'}')")
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        if known is None:
            page.goto(f"{airflow.url}/auth/login/?next={airflow.url}/plugin/duewheel")
            page.locator("input[name=username]").fill(role)
            page.locator("input[name=password]").fill(airflow.password)
            page.locator("button[type=submit]").click()
            # The rest of the login goes on by itself, and would break off what is loaded meanwhile.
            expect(page.get_by_role("link", name="Delays")).to_be_visible(timeout=60_000)
            _LOGINS[airflow.url, role] = {"cookies": context.storage_state()["cookies"]}
        yield page
        assert errors == []
    finally:
        # A page that asks again and again may be in the midst of it.
        page.unroute_all(behavior="ignoreErrors")
        context.close()


def open_view(page: Page, airflow: AirflowServer, query: str = "") -> None:
    """Load the page with a query string, and wait until it shows itself."""
    page.goto(f"{airflow.url}/plugin/duewheel{query}")
    expect(page.get_by_role("heading", name="Delay messages")).to_be_visible(timeout=30_000)


def follow(page: Page, query: str) -> None:
    """Go to another view without loading the page again, as a link within it does."""
    page.evaluate("history.pushState({}, '', location.pathname + " + json.dumps(query) + ")")
    page.evaluate("dispatchEvent(new PopStateEvent('popstate'))")


def choose(box: Locator) -> None:
    """Check a box by its key: a click at its place misses it while what stands above it comes."""
    expect(box).to_be_enabled()
    box.press("Space")
    expect(box).to_be_checked()


def choose_all(page: Page, *, that_match: bool = False) -> None:
    """Select the page of a list, or all that match."""
    choose(page.get_by_role("checkbox", name="Select all shown"))
    if that_match:
        page.get_by_role("button", name=re.compile("^Select all")).click()


def close(dialog: Locator) -> None:
    """Close it, and wait until it is gone: it fades, and its buttons have the names of those behind it."""
    dialog.get_by_role("button", name="Close").first.click()
    expect(dialog).to_have_count(0)


def take_picture(page: Page, name: str, folder: Path) -> None:
    """Take a picture of the window, into the documentation where that shows it, else into a folder."""
    is_kept = WRITES_PICTURES and name in SHOWN
    # A new view focuses the heading, whose ring would distract from the picture.
    page.evaluate("document.activeElement.blur()")
    page.screenshot(path=(PICTURES if is_kept else folder) / f"{name}.png")


def findings(page: Page, part: str) -> list[tuple[str, str]]:
    """What hinders people at a part of the page, however little, when all of it has come to rest."""
    page.evaluate(AXE.read_text())
    page.evaluate("Promise.allSettled(document.getAnimations().map(one => one.finished))")
    found = page.evaluate(f"axe.run('{part}')")
    return [(one["id"], one["nodes"][0]["html"][:200]) for one in found["violations"]]
