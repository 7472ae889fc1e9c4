"""The audit's page: blind, escaped and self-contained; and in a real headless Chromium, by keyboard alone."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from auditing import CRITERIA, EVIL, sample_flags, tables, write_tables
from claimwise.eval.audit_page import page_data, pieces, write_page
from claimwise.eval.audit_sample import draw, population
from claimwise.scripts.cli import main
from claimwise.verifier.schema import Example
from claimwise.verifier.tables import read_verdicts
from PIL import Image


def drawn(count=12):
    examples, rollouts, a, b = tables()
    return draw(population(examples, rollouts, {"A": a, "B": b})[0], count, 3)


def test_the_page_does_not_depend_on_verdicts_and_chances(tmp_path):
    """What the page does not depend on, it cannot tell."""
    ours = drawn()
    flip = {"yes": "no", "no": "missing", "missing": "yes"}
    others = [
        replace(one, chance=one.chance / 2, pair=replace(one.pair, verdicts=tuple(flip[v] for v in one.pair.verdicts)))
        for one in ours
    ]
    pages = [write_page(of, tmp_path / f"{n}.html")[0].read_bytes() for n, of in enumerate((ours, others))]
    assert pages[0] == pages[1]
    assert (tmp_path / "0.key.jsonl").read_bytes() != (tmp_path / "1.key.jsonl").read_bytes()


def test_the_page_is_blind_self_contained_and_escaped(tmp_path):
    html = write_page(drawn(48), tmp_path / "page.html")[0].read_text()
    assert not re.search(r"secret|judge-[ab]|87654|12345|attack|charts|photos", html)
    assert not re.search(r"https?:|//[a-z]|@import|url\(|src=[\"']?(?!x onerror)[a-z]", html.replace("u003c", ""))
    assert "default-src 'none'" in html
    assert html.count("</script>") == html.count("<script") == 2  # the data and the program
    data = json.loads(re.search(r'id="data">(.*?)</script>', html)[1])
    assert {"".join(text for text, _ in item["response"]) for item in data["items"]} >= {EVIL}
    assert len(data["images"]) == 6 and len(data["items"]) == 48 and len(data["criteria"]) == 24  # each once


def test_pieces_are_cut_at_the_judges_sentences():
    pair = drawn(48)[0].pair
    pair = replace(pair, rollout=replace(pair.rollout, response="Ab😀. Cd. Ef."))
    assert pieces(replace(pair, spans=((0, 4),))) == [("Ab😀.", 1), (" Cd. Ef.", 0)]
    assert pieces(replace(pair, spans=((0, 4), (5, 8)))) == [("Ab😀.", 1), (" ", 0), ("Cd.", 1), (" Ef.", 0)]
    assert pieces(replace(pair, spans=((0, 4), (2, 8)))) == [("Ab", 1), ("😀.", 1), (" Cd.", 1), (" Ef.", 0)]
    assert pieces(replace(pair, spans=())) == [("Ab😀. Cd. Ef.", 0)]
    assert pieces(replace(pair, rollout=replace(pair.rollout, response=""), spans=())) == []


def test_what_yes_means_and_what_kind():
    of = {c["text"]: c for c in page_data(drawn(48))["criteria"]}
    assert of[CRITERIA[0].text]["kind"] == "visual faithfulness: about what the image shows, essential"
    assert "names a failure" in of[CRITERIA[2].text]["kind"]
    assert of[CRITERIA[2].text]["means"].startswith("Yes: the response commits this failure")
    assert of[CRITERIA[3].text]["kind"] == "not given"
    assert of[CRITERIA[3].text]["others"] == [c.text for c in CRITERIA[:3]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_tables(tmp_path_factory.mktemp("audit"))
    assert main(sample_flags(folder, folder / "page.html")) == 0
    return folder


@pytest.fixture
def new_context(browser):
    """Makes contexts. Whatever a page asks of a network, or complains of, fails the test."""
    made, complaints = [], []

    def make(**settings):
        context = browser.new_context(**{"viewport": {"width": 1100, "height": 800}, **settings})
        context.set_default_timeout(10_000)
        context.on("request", lambda r: r.url.startswith(("file:", "data:", "blob:")) or complaints.append(r.url))
        context.on("console", lambda message: complaints.append(message.text))
        context.on("weberror", lambda error: complaints.append(str(error.error)))
        context.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
        made.append(context)
        return context

    yield make
    for context in made:
        context.close()
    assert complaints == []


@pytest.fixture
def context(new_context):
    return new_context()


def opened(context, folder, name="Ada Lovelace"):
    """The page, with its person's name given."""
    page = context.new_page()
    page.goto((folder / "page.html").as_uri())
    painted(page)
    if name:
        page.fill("#name", name)
        keys(page, "Enter")
    return page


def painted(page):
    """Waits until there is something to be seen: Chromium drops keys that come earlier.

    A promise, not `wait_for_function`, which looks again by `eval` and so breaks the page's Content Security Policy.
    """
    page.evaluate("new Promise(done => new PerformanceObserver(() => done()).observe({type: 'paint', buffered: true}))")


def keys(page, *names):
    for name in names:
        page.keyboard.press("Space" if name == " " else name)


def pressed(page):
    return page.locator("button[aria-pressed=true]").evaluate_all(
        "all => all.map(b => Object.values(b.dataset).join())"
    )


def exported(page, path):
    with page.expect_download() as download:
        keys(page, "e")
    download.value.save_as(path)
    return download.value.suggested_filename


def test_answered_by_keyboard_reloaded_exported_and_merged(context, folder, capsys):
    page = opened(context, folder, name=None)
    keys(page, *"Ada  Lovelace ", "Enter", "y", "0", "ArrowRight", "n", "ArrowRight", "c", "ArrowRight")
    page.reload()
    painted(page)
    assert page.inner_text("#place") == "Pair 4 of 12" and page.inner_text("#done") == "3 answered"
    assert page.inner_text("#person") == "Ada Lovelace"
    keys(page, "ArrowLeft")
    assert pressed(page)[0] == "cannot tell"
    keys(page, "ArrowLeft", "y", "u", "n")  # a correction; then on to the first without an answer
    assert page.inner_text("#place") == "Pair 4 of 12" and page.inner_text("#done") == "4 answered"
    hash_ = json.loads((folder / "page.key.jsonl").read_text().splitlines()[0])["page"]
    assert exported(page, folder / "ada.json") == f"audit-{hash_[:8]}-ada-lovelace.json"
    found = json.loads((folder / "ada.json").read_text())
    assert (found["annotator"], found["page"]) == ("Ada Lovelace", hash_)
    verdicts = {row["id"]: row["verdict"] for row in found["answers"] if row["verdict"]}
    assert verdicts == {"p0001": "yes", "p0002": "yes", "p0003": "cannot tell", "p0004": "no"}
    fine = {"true": "yes", "atomic": "yes", "type": "yes", "redundant": "no"}
    assert found["answers"][0]["quality"] == fine and found["answers"][0]["blind"] == "yes"

    merge = ["audit", "merge", f"{folder}/page.key.jsonl", f"{folder}/ada.json", "--out", f"{folder}/people.jsonl"]
    assert main([*merge, "--verdicts", f"{folder}/a.jsonl", "--verdicts", f"{folder}/b.jsonl"]) == 0
    assert "Ada Lovelace: 4 of 12 pairs answered, 1 of them cannot tell" in capsys.readouterr().out
    table = read_verdicts(folder / "people.ada-lovelace.jsonl")
    assert [v.verdict for v in table] == [True, True, None, False, *[None] * 8]
    assert [v.error for v in table] == [None, None, "cannot tell", None, *["not answered"] * 8]
    assert read_verdicts(folder / "people.jsonl")[1].verdict is True


def test_text_is_text(context, folder):
    page = opened(context, folder)
    while page.inner_text("#response") != EVIL:
        keys(page, "ArrowRight")
    assert page.locator("#response *:not(span)").count() == 0
    assert page.inner_text("#others li:first-child") in (CRITERIA[0].text, CRITERIA[1].text)


def test_marks_on_request_and_the_answer_before(context, folder):
    page = opened(context, folder)
    while page.inner_text("#response") != EVIL or page.inner_text("#criterion") not in (c.text for c in CRITERIA[:2]):
        keys(page, "ArrowRight")
    item = page.evaluate("item().id")
    assert page.locator("mark").count() == 0
    keys(page, "y", "m")
    assert page.inner_text("mark") == "A 😀 first."
    keys(page, "m", "n")  # hidden again, but seen
    assert page.locator("mark").count() == 0
    keys(page, "ArrowRight", "m", "ArrowRight", "ArrowLeft", "c")
    exported(page, folder / "marks.json")
    before, after = json.loads((folder / "marks.json").read_text())["answers"]
    assert (before["id"], before["verdict"], before["blind"], before["marked"]) == (item, "no", "yes", True)
    assert (after["verdict"], after["blind"], after["marked"]) == ("cannot tell", None, True)


def test_quality_keys_and_that_a_criterion_is_rated_once(context, folder, tmp_path):
    examples, rollouts, a, _ = tables()
    examples, rollouts, a = examples[:1], rollouts[:2], [v for v in a[:8] if v.criterion_id == "c1"]
    write_page(draw(population(examples, rollouts, {"A": a})[0], 2, 0), tmp_path / "page.html")  # one criterion, twice
    page = opened(context, tmp_path)
    keys(page, "1", "2", "2", "3", "4", "4")
    assert pressed(page) == ["true,yes", "atomic,no", "type,yes", "redundant,no"]
    assert page.inner_text("#status") == "Redundant: no."
    keys(page, "1", "1", "2", "3", "ArrowRight")
    assert pressed(page) == ["true,cannot tell", "type,no", "redundant,no"]
    keys(page, "1")
    assert pressed(page) == ["type,no", "redundant,no"]


def test_without_a_mouse_and_with_focus_in_sight(context, folder):
    page = opened(context, folder)

    def reached(key):
        """What the key leads the focus through, to "Yes" or to the image, always in sight."""
        seen = []
        while not seen or not (seen[-1].startswith("Yes") or seen[-1] == "image"):
            keys(page, key)
            text, outline, height = page.evaluate(
                "(e => [e.innerText || (e.querySelector('img') ? 'image' : e.id), getComputedStyle(e).outlineStyle,"
                "e.getBoundingClientRect().height])(document.activeElement)"
            )
            assert outline == "solid" and height > 20, text
            seen.append(text)
            assert len(seen) < 30, seen
        return seen

    assert len(reached("Tab")) == 1 + 1 + 9 + 1  # from the question: marks, nothing wrong, the quality's nine, yes
    keys(page, " ")
    assert pressed(page) == ["yes"]
    assert reached("Shift+Tab")[-1] == "image"
    keys(page, "Enter")
    assert page.locator("#zoom").is_visible()
    keys(page, "Escape", "Shift+Tab", "Space")
    assert page.inner_text("#status").startswith("Exported as audit-")
    keys(page, "?")
    for key in ("y", "n", "c", "u", "z", "m", "e"):
        assert page.locator("#keys kbd", has_text=re.compile(f"^{key}$")).is_visible()
    page.focus("#single")
    keys(page, "n", "Space", "Escape", "n")  # no answers while the list is open; Space switches single keys off
    assert pressed(page) == ["yes"]


def test_zoom(context, folder):
    page = opened(context, folder)
    assert "What is at the top" in page.get_attribute("#images img", "alt")
    keys(page, "z")
    image = page.locator("#canvas img")
    fitted = image.bounding_box()["width"]
    assert fitted > 700  # of 40 pixels
    keys(page, "+", "+")
    assert image.bounding_box()["width"] == pytest.approx(fitted * 1.25**2, rel=0.01)
    before = image.bounding_box()
    keys(page, "ArrowDown")
    for _ in range(100):
        if image.bounding_box()["y"] < before["y"]:
            break
        page.wait_for_timeout(50)
    assert image.bounding_box()["y"] < before["y"]
    keys(page, "f")
    assert image.bounding_box()["width"] == pytest.approx(fitted, rel=0.01)
    keys(page, "Escape")
    assert not page.locator("#zoom").is_visible() and pressed(page) == []


def test_two_people_at_one_browser(context, folder):
    page = opened(context, folder)
    keys(page, "y")
    page.click("#person")
    keys(page, *"Grace", "Enter")
    assert page.inner_text("#done") == "0 answered"
    keys(page, "n", "ArrowRight", "n")
    page.click("#person")
    keys(page, *"Ada Lovelace", "Enter")
    assert page.inner_text("#done") == "1 answered" and pressed(page) == ["yes"]


def test_a_browser_that_keeps_nothing(context, folder):
    context.add_init_script("Object.defineProperty(window, 'localStorage', {get() { throw new Error('no'); }})")
    page = opened(context, folder)
    keys(page, "y")
    assert "export before you close it" in page.inner_text("#unsaved")
    exported(page, folder / "kept.json")
    assert json.loads((folder / "kept.json").read_text())["answers"][0]["verdict"] == "yes"


def luminance(colour):
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone_light_and_dark(new_context, folder, scheme):
    context = new_context(viewport={"width": 380, "height": 780}, color_scheme=scheme, has_touch=True)
    page = opened(context, folder)
    while page.inner_text("#response") != EVIL or page.inner_text("#criterion") not in (c.text for c in CRITERIA[:2]):
        page.tap("#next")
    page.tap("[data-verdict=yes]")
    keys(page, "m")
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    for verdict in ("yes", "no", "cannot tell"):
        box = page.locator(f"[data-verdict='{verdict}']").bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 380 and box["y"] + box["height"] <= 780
        assert box["height"] >= 44
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (luminance(dark) < 0.1) == (scheme == "dark")
    for selector in ("#response", ".soft", "[data-verdict=yes]", "[data-verdict=no]", "mark", "#criterion"):
        ink, paper = page.locator(selector).first.evaluate(
            "e => { const ink = getComputedStyle(e).color; let paper;"
            "do { paper = getComputedStyle(e).backgroundColor; e = e.parentElement; } while (/, 0\\)/.test(paper));"
            "return [ink, paper]; }"
        )
        light, dark = sorted([luminance(ink), luminance(paper)], reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (selector, ink, paper)
    assert "underline" in page.locator("mark").evaluate(
        "e => getComputedStyle(e).textDecorationLine"
    )  # not colour alone


def test_no_image_several_images_and_an_empty_response(context, tmp_path):
    examples, rollouts, a, _ = tables()
    images = (Image.new("RGB", (2600, 1300), "red"), Image.new("RGB", (20, 20), "blue"))
    examples = [
        replace(examples[0], images=()),
        Example("two", "Which?", CRITERIA[:1], images),
    ]
    rollouts = [rollouts[0], replace(rollouts[2], rollout_id="r", example_id="two", response="")]
    verdicts = [replace(a[8], rollout_id="r", example_id="two", span_start=None, span_end=None), a[0]]
    write_page(draw(population(examples, rollouts, {"A": verdicts})[0], 2, 0), tmp_path / "page.html")
    page = opened(context, tmp_path)
    if page.inner_text("#question") != "Which?":
        keys(page, "ArrowRight")
    assert "the response is empty" in page.inner_text("#response")
    assert page.locator("#images img").evaluate_all("all => all.map(i => [i.naturalWidth, i.naturalHeight])") == [
        [2048, 1024],
        [20, 20],
    ]
    keys(page, "z", "Escape", "ArrowRight", "ArrowLeft", "ArrowLeft")
    while page.inner_text("#question") == "Which?":
        keys(page, "ArrowRight")
    assert "no image" in page.inner_text("#images")
    keys(page, "z")
    assert page.inner_text("#status") == "This question has no image."
