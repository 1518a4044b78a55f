"""The borders of fields stand out from what is behind them, 3 to 1 at least (X08).

WCAG asks for it in 1.4.11, and axe does not test it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from tests.plugin.airflow_server import AirflowServer
from tests.plugin.browsing import follow, logged_in, open_view

from duewheel.store.broker import Broker

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.long, pytest.mark.needs("chromium")]

#: The contrast of each field's border to what is behind the field, by the beginning of its text. A colour is
#: read as it is painted, whatever it is written in.
CONTRASTS = """
() => {
  const context = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const painted = (colour) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const behind = (node) => {
    for (let at = node.parentElement; at; at = at.parentElement) {
      const colour = painted(getComputedStyle(at).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  const over = (colour, ground) => ground.map((one, at) => one + ((colour[at] - one) * colour[3]) / 255);
  const luminance = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((one) => one / 255)
      .map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const fields = "[data-page=duewheel] :is(input, select, textarea), [role=alertdialog] :is(input, select),"
    + "[data-page=duewheel] [data-scope=checkbox][data-part=control]";
  return [...document.querySelectorAll(fields)]
    .filter((one) => one.checkVisibility() && one.getBoundingClientRect().width > 2)
    .map((one) => {
      const ground = behind(one);
      const lights = [over(painted(getComputedStyle(one).borderTopColor), ground), ground].map(luminance);
      return [one.outerHTML.slice(0, 200), (Math.max(...lights) + 0.05) / (Math.min(...lights) + 0.05)];
    });
}
"""


@pytest.fixture(scope="module")
def filled(shop: Broker) -> Broker:
    """A broker with a message to choose and a group to rewind."""
    shop.create_topic("contrast")
    shop.consumer("contrast", "contrast")
    shop.send("contrast", b"", key="contrast-1", delay=timedelta(hours=1))
    return shop


def faint(page: Page) -> list[str]:
    """The fields that are shown and whose borders do not stand out."""
    page.evaluate("Promise.allSettled(document.getAnimations().map(one => one.finished))")
    found = page.evaluate(CONTRASTS)
    assert found, "no field is shown"
    return [f"{contrast:.2f} {field}" for field, contrast in found if contrast < 3]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_x08_the_borders_of_fields_stand_out(
    chromium: Browser, airflow: AirflowServer, filled: Broker, dark: bool
) -> None:
    with logged_in(chromium, airflow, "op", dark=dark) as page:
        open_view(page, airflow, "?view=messages&topic=contrast")
        expect(page.get_by_text("contrast-1")).to_be_visible()
        assert faint(page) == []
        for view in ("overview", "dead&group=contrast", "leases"):
            follow(page, f"?view={view}")
            expect(page.locator("[data-page=duewheel] input").first).to_be_visible()
            assert faint(page) == [], view
        follow(page, "?view=groups&topic=contrast")
        page.get_by_role("button", name="More actions on contrast, contrast").click()
        page.get_by_role("button", name="Rewind").click()
        expect(page.get_by_role("alertdialog").locator("input, select").first).to_be_visible()
        assert faint(page) == []
