"""The first chapter of Learn in a real browser: the divider moves, and what is painted is on its right side.

If these fail, the divider is a decoration, or the picture under it is another than the chosen one.
"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image
from playwright.sync_api import Locator, Page, expect

from app.learn import picture

AROUND = 30
"""Pixels to each side of the divider that its grip covers."""


def open_picture(page: Page, url: str) -> Locator:
    page.goto(f"{url}/?tab=learn")
    box = page.locator(".before-after")
    expect(box.locator(".after[src]")).to_be_visible()
    page.wait_for_function("[...document.querySelectorAll('.before-after img')].every(i => i.complete)")
    return box


def painted(box: Locator) -> np.ndarray:
    """[rows, columns]: red, which in a grey picture is all there is; without the rows of the labels."""
    image = Image.open(io.BytesIO(box.screenshot())).convert("RGB")
    return np.asarray(image)[: image.height - 50, :, 0].astype(int)


def choose(page: Page, scheme: str) -> None:
    page.locator(f".sights button[value={scheme}]").click()
    expect(page.locator(".before-after .after")).to_have_attribute("src", f"{page_root(page)}{scheme}.png")


def page_root(page: Page) -> str:
    return str(page.evaluate("new URL('picture/', location.href).href"))


def test_the_divider_is_drawn_by_mouse_and_keys(page: Page, url: str) -> None:
    """All of one picture at each end; between them the original is left of the divider."""
    box = open_picture(page, url)
    choose(page, "int2_group32")
    slider = page.get_by_role("slider", name="Divider")
    slider.focus()
    page.keyboard.press("Home")
    rounded = painted(box)
    page.keyboard.press("End")
    original = painted(box)
    inner = slice(AROUND, -AROUND)
    assert np.abs(original - rounded)[:, inner].mean() > 25
    area = box.bounding_box()
    assert area
    width, middle = area["width"], area["y"] + area["height"] / 2
    page.mouse.move(area["x"] + width - 2, middle)
    page.mouse.down()
    page.mouse.move(area["x"] + 0.3 * width, middle, steps=6)
    page.mouse.up()
    expect(slider).to_have_value("30")
    _is_divided(painted(box), original, rounded, 0.3)
    for _ in range(20):
        page.keyboard.press("ArrowRight")
    expect(slider).to_have_value("50")
    expect(slider).to_have_attribute("aria-valuetext", "50 % original, 50 % INT2 group 32, amax/2")
    _is_divided(painted(box), original, rounded, 0.5)


def _is_divided(now: np.ndarray, left: np.ndarray, right: np.ndarray, at: float) -> None:
    """``now`` is ``left`` before the share ``at`` of its width and ``right`` behind it, the grip left out."""
    column = round(at * now.shape[1])
    before, behind = slice(AROUND, column - AROUND), slice(column + AROUND, -AROUND)
    assert (now[:, before] == left[:, before]).all()
    assert (now[:, behind] == right[:, behind]).all()


def test_a_scheme_is_seen_at_once(page: Page, url: str) -> None:
    """Sentence, enlarged cut and outlines follow a button, without a request once the pictures are there; the
    cut's pixels are square, and no brighter or darker between them."""
    box = open_picture(page, url)
    page.wait_for_function(
        "n => performance.getEntriesByType('resource').filter(e => e.name.includes('/picture/')).length > n",
        arg=len(picture.SIGHTS),
    )
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "picture" in request.url else None)
    cut = page.locator(".cuts figure").nth(1)
    for name, label, edges in (("nvfp4", "NVFP4 (", True), ("int4_tensor", "INT4 per tensor", False)):
        choose(page, name)
        expect(page.locator(".seen p:visible")).to_have_count(1)
        expect(page.locator(".seen p:visible")).to_contain_text(label)
        expect(cut.locator("figcaption")).to_contain_text(label)
        assert bool(cut.locator(".block").get_attribute("d")) is edges
    assert not asked and box.is_visible()
    shot = np.asarray(Image.open(io.BytesIO(cut.locator("svg").screenshot())).convert("L")).astype(int)
    assert len(np.unique(shot[20:-20, 20:-20])) <= 8, "one scale of INT4 has eight greys"


def test_a_phone_has_it_too(page: Page, url: str) -> None:
    """Nothing scrolls sideways; a tap on the picture brings the divider there."""
    page.set_viewport_size({"width": 390, "height": 844})
    box = open_picture(page, url)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    area = box.bounding_box()
    assert area and area["width"] > 250
    page.mouse.click(area["x"] + 0.8 * area["width"], area["y"] + area["height"] / 2)
    expect(page.get_by_role("slider", name="Divider")).to_have_value("80")
