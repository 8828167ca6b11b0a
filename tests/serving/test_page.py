"""The page, in a real browser."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest
from serving_models import BOTH, TOKENS, distances, matrix

from scaledsgd.serving.answers import Known

pytestmark = pytest.mark.slow
playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
expect = playwright.expect
expect.set_options(timeout=20_000)
BROWSER = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


@pytest.fixture(scope="module")
def browser():
    if BROWSER is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as play:
        found = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Opens a page; at the end, nothing may have gone wrong in it."""
    faults, contexts = [], []

    def go(server, token: str = "", width: int = 1600, scheme: str = "light"):
        how = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
        context = browser.new_context(**how)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda why: faults.append(str(why)))
        page.on("console", lambda told: faults.append(told.text) if told.type == "error" else None)
        page.goto(f"{server.url}/" + (f"#token={token}" if token else ""))
        return page

    yield go
    for context in contexts:
        context.close()
    assert [one for one in faults if not one.startswith("Failed to load resource")] == []


def narrow(page) -> bool:
    """Whether nothing sticks out to the right."""
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def rows(page) -> list[str]:
    page.wait_for_selector("ol.rows")
    return page.locator("ol.rows .name").all_inner_texts()


def test_search_by_keyboard_and_items_like_one(served, opened):
    server = served(titles={"rye/3": "Rye <b>bold</b> bread"})
    page = opened(server)
    field = page.get_by_role("combobox")
    field.fill("<b>bold")
    expect(page.locator("li[role=option]").first).to_contain_text("Rye <b>bold</b> bread")
    assert page.locator("b", has_text="bold").count() == 0  # text, not HTML
    field.press("Enter")
    page.wait_for_selector("text=Like Rye <b>bold</b> bread")
    expected = server.service.live.snapshot.model.similar("rye/3", 12)[0].tolist()
    assert rows(page) == expected
    widths = page.locator(".line .track i").evaluate_all("all => all.map(one => one.clientWidth)")
    assert widths == sorted(widths, reverse=True) and widths[0] > 20
    page.get_by_role("button", name=expected[0], exact=True).click()  # on from one to the next
    page.wait_for_selector(f"h2:has-text('Like {expected[0]}')")
    field.fill("nothing like that")
    page.wait_for_selector("text=Nothing has that in its name.")


def test_picks_and_a_user_with_reasons_and_a_choice(served, opened):
    server = served(learn=True)
    page = opened(server)
    page.get_by_role("button", name="For some picks").click()
    page.wait_for_selector("text=Pick a few items")
    field = page.get_by_role("combobox")
    for pick in ("rye/1", "rye/2"):
        field.fill(pick)
        page.wait_for_selector(f"li[role=option]:has-text('{pick}')")
        field.press("Enter")
    page.wait_for_selector("h2:has-text('For whoever likes these')")
    expect(page.locator(".chip")).to_have_count(2)
    expect(page.locator(".name", has_text=re.compile("^rye/[12]$"))).to_have_count(0)
    page.get_by_role("button", name="Why").first.click()
    page.wait_for_selector(".why .share")
    page.get_by_role("button", name="Remove rye/1").click()
    expect(page.locator(".chip")).to_have_count(1)
    page.get_by_role("button", name="For a user").click()
    field = page.get_by_role("combobox")
    field.fill("u7")
    page.wait_for_selector("li[role=option]:has-text('u7')")
    field.press("Enter")
    page.wait_for_selector("h2:has-text('For u7')")
    best = rows(page)[0]
    page.get_by_role("button", name="Why").first.click()
    page.wait_for_selector(".why .share")
    page.get_by_role("button", name=f"u7 chooses {best}").click()
    expect(page.locator(".name", has_text=re.compile(f"^{best}$"))).to_have_count(0)


def test_the_map_zooms_and_is_pointed_at(served, opened):
    server = served()
    page = opened(server)
    canvas = page.locator(".plane canvas")
    canvas.wait_for()
    before = canvas.evaluate("one => one.toDataURL()")
    page.get_by_role("button", name="Zoom in").click()
    assert canvas.evaluate("one => one.toDataURL()") != before
    page.get_by_role("button", name="Show all").click()
    box = canvas.bounding_box()
    found = False
    for x in range(20, int(box["width"]), 8):  # sweep until something is named
        for y in range(20, int(box["height"]), 60):
            page.mouse.move(box["x"] + x, box["y"] + y)
            if page.locator(".tip").is_visible():
                found = page.locator(".tip").inner_text()
                page.mouse.click(box["x"] + x, box["y"] + y)
                break
        if found:
            break
    assert found and re.match(r"(rye|tea)/\d+", found)
    page.wait_for_selector(f"h2:has-text('Like {found.split(' ')[0]}')")


def test_the_live_view_moves_while_events_are_posted(served, opened):
    server = served(learn=True)
    page = opened(server)
    page.get_by_role("tab", name="Live").click()
    page.wait_for_selector("#view-1 canvas")
    tile = page.locator("#view-1 .tile", has_text="events learned").locator("b")
    for n in range(3):
        server.client.send([{"user": f"w{n}", "item": f"rye/{k}"} for k in range(10)])
        expect(tile).to_have_text(str(10 * (n + 1)))
    assert page.locator("#view-1 canvas").count() == 3
    assert re.search(r"events/s", page.locator("#pulse").inner_text())
    server.service.stopping = lambda: True  # the stream ends: what is shown grows old, and says so
    expect(page.locator("#pulse")).to_contain_text("no news for")


def test_the_token_is_asked_for_and_a_wrong_one_refused(served, opened):
    server = served(tokens=TOKENS)
    page = opened(server)
    page.get_by_label("Token", exact=True).fill("not the token at all")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=That token is wrong, or has expired.")
    page.get_by_label("Token", exact=True).fill(BOTH)
    page.get_by_role("button", name="Go on").click()
    page.wait_for_selector("[role=tab]")
    assert page.locator("dialog[open]").count() == 0
    page = opened(server, token=BOTH)  # or it comes with the link, and is not left there
    page.wait_for_selector("[role=tab]")
    assert page.url.endswith("/")
    page = opened(server)
    page.get_by_label("Token", exact=True).wait_for()
    page.goto(f"{server.url}/#token={BOTH}")  # over the page that asks for it
    page.wait_for_selector("[role=tab]")


def test_errors_are_shown_and_can_be_tried_again(served, opened):
    server = served()
    page = opened(server)
    page.wait_for_selector(".plane canvas")
    page.route("**/v1/similar/**", lambda route: route.fulfill(
        status=503, content_type="application/problem+json",
        body='{"title": "x", "status": 503, "detail": "too many questions at once"}',
    ))  # fmt: skip
    page.get_by_role("combobox").fill("rye/1")
    page.wait_for_selector("li[role=option]")
    page.keyboard.press("Enter")
    page.wait_for_selector("[role=alert]:has-text('too many questions at once')")
    page.unroute("**/v1/similar/**")
    page.get_by_role("button", name="Try again").click()
    assert len(rows(page)) == 12


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["recommender", "ranker", "matrix", "distances"])
def test_four_hundred_pixels_are_enough(served, opened, kind, scheme):
    model: object = kind
    known = None
    if kind == "matrix":
        model, known = matrix(), Known(np.arange(5), np.arange(5), np.arange(5.0))
    if kind == "distances":
        model = distances()
        known = Known(np.array(["p1"], object), np.array(["p2"], object), np.array([1.0]))
    page = opened(served(model, known=known), width=400, scheme=scheme)
    page.wait_for_selector(".plane canvas")
    assert narrow(page)
    for tab in ("Live", "Model"):
        page.get_by_role("tab", name=tab).click()
        page.wait_for_timeout(300)
        assert narrow(page)
    page.get_by_role("tab", name="Model").press("ArrowLeft")
    assert page.get_by_role("tab", name="Live").get_attribute("aria-selected") == "true"
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(247, 247, 245)", "dark": "rgb(20, 23, 26)"}[scheme]


def test_matrices_and_points_show_what_they_are(served, opened):
    known = Known(np.arange(1, 5), np.arange(1, 5), np.arange(1.0, 5))
    page = opened(served(matrix(), known=known))
    page.wait_for_selector("td:has-text('4')")
    assert page.locator(".bars i").count() == 1
    page.get_by_label("Row").fill("2")
    page.get_by_label("Column").fill("2")
    page.get_by_role("button", name="Predict").click()
    page.wait_for_selector("output:has-text('Entry 9')")
    page.get_by_label("Row").fill("99")
    page.get_by_role("button", name="Predict").click()
    page.wait_for_selector("[role=alert]:has-text('was never seen in training')")
    page = opened(served(distances()))
    page.wait_for_selector("text=20 points as the known distances place them")
    page.wait_for_selector("text=No known entries to compare with")
