"""Report pages in a real headless Chromium: the switch of the arm by keyboard, on a phone, in both schemes, offline."""

from __future__ import annotations

import re

import pytest
from claimwise.eval.report import write_report
from reporting import make_run
from test_report_runs import make_distillation, make_gradients, make_study
from test_report_train import make_train


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    """All kinds of run on one page, two of them with a switch."""
    folder = tmp_path_factory.mktemp("runs")
    runs = [folder / "run", folder / "again"]
    for run in runs:
        run.mkdir()
        make_run(run)
    runs += [make_train(folder / "grpo"), make_distillation(folder / "verifier")]
    return write_report(
        [*runs, make_study(folder / "study"), make_gradients(folder / "gradients")], folder / "page.html"
    )


def opened(browser, page_file, width=1000, **settings):
    context = browser.new_context(viewport={"width": width, "height": 800}, **settings)
    page = context.new_page()
    asked, said = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.goto(page_file.as_uri())
    assert [url for url in asked if not url.startswith("data:")] == [page_file.as_uri()] and not said
    return page


def shown_arms(page, run):
    """The texts of the visible blocks of an arm, of the first response and its verdicts."""
    return [text for text in page.locator(f"#r{run} .arm:visible").all_inner_texts()]


def test_the_arm_is_switched_by_keyboard_for_its_own_group(browser, page_file):
    page = opened(browser, page_file)
    before = shown_arms(page, 1)
    assert "+0.500" in before[0] and "adds +0.750 to tokens 1–3" in " ".join(before)
    assert "whole" not in " ".join(before)
    page.get_by_role("radio", name="prefix").first.focus()
    page.keyboard.press("ArrowLeft")
    after = shown_arms(page, 1)
    assert page.get_by_role("radio", name="scalar").first.is_checked()
    assert "arm scalar" in after[0] and "−0.125" in after[0] and "Counts in the rubric as a whole" in " ".join(after)
    assert len(before) == len(after) == 4  # the response's credit, and a line for each of its three criteria
    assert shown_arms(page, 2) == before  # the other run's switch stays


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_a_phone_and_text_stands_out(browser, page_file, scheme):
    page = opened(browser, page_file, width=380, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    ink, paper = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    assert (brightness(ink) > brightness(paper)) is (scheme == "dark")
    assert abs(brightness(ink) - brightness(paper)) > 150
    lines = page.evaluate(
        "[...document.querySelectorAll('svg.plot path')].map(p => getComputedStyle(p).stroke).filter(s => s != 'none')"
    )
    assert len(set(lines)) >= 4  # ink and the series' colours, all of them the page's
    assert all(abs(brightness(line) - brightness(paper)) > 40 for line in set(lines))


def brightness(colour):
    red, green, blue = map(float, colour.strip("rgba()").split(",")[:3])
    return 0.3 * red + 0.6 * green + 0.1 * blue


def test_every_plot_and_picture_has_a_text(browser, page_file):
    """Of all kinds of run: plots say in words what they show, pictures which example they are of."""
    page = opened(browser, page_file)
    plots = page.evaluate("[...document.querySelectorAll('svg')].map(s => [s.getAttribute('role'), s.ariaLabel])")
    assert len(plots) > 20 and all(role == "img" and label and re.search(r"\d", label) for role, label in plots)
    pictures = page.evaluate("[...document.querySelectorAll('img')].map(i => [i.alt, i.naturalWidth])")
    assert len(pictures) > 10 and all(alt.startswith("The picture of example e") and width for alt, width in pictures)


def test_the_groups_of_a_training_have_switches_of_their_own(browser, page_file):
    page = opened(browser, page_file, width=380)
    views = page.locator("#r3-credit .arms")
    assert views.count() == 3
    first, second = (views.nth(n).locator(".arm:visible") for n in (0, 1))
    before = second.all_inner_texts()
    views.nth(0).get_by_role("radio", name="scalar").check(force=True)
    assert "arm scalar" in first.all_inner_texts()[0] and "−0.125" in first.all_inner_texts()[0]
    assert second.all_inner_texts() == before and "arm prefix" in before[0]
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
