"""The page in a browser: the jobs of people who sort photographs, what they cost, and what axe finds."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from promptccd.discovery import Project
from promptccd.discovery.page import OpenPage
from promptccd.discovery.project import ProjectView, edits, proposals
from tests.browsing import driver
from tests.discovery.conftest import EACH, KINDS
from tests.discovery.page.conftest import (
    CHOSEN,
    PHONE,
    Person,
    Window,
    edits_of,
    first_group,
    on_both,
    person_at,
    served,
    sizes,
)
from tests.discovery.page.test_together import served_alone
from tests.discovery.stored import correct, drawn_together, registry_in
from tests.processes import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Request, Route

pytestmark = pytest.mark.slow


def test_a_name_that_is_there_asks_whether_the_two_are_one(person: Person, project: Path) -> None:
    person.page.locator(".card .name").first.click()
    person.type("heron")
    person.said("Now called")
    person.type("Heron")  # the next group, in other letters
    person.page.locator("dialog[open] .side").nth(1).wait_for()
    person.press("Enter")
    person.said("Merged 2 groups as “heron”")
    assert sizes(project)["heron"] > EACH
    person.press("Control+z")
    person.said("Taken back: merged")
    assert len(sizes(project)) == KINDS


@on_both
def test_merge_groups_and_choose_the_name(person: Person, project: Path) -> None:
    for nth in range(3):
        person.click(".card .box", nth, force=True)
    person.press("m")
    person.page.locator("dialog[open] input[type=radio]").nth(1).check()
    person.actions += 1
    person.click("dialog[open] .primary")
    person.said("Merged 3 groups")
    assert person.actions <= 7
    assert len(sizes(project)) == KINDS - 2


def test_two_that_may_be_one_are_one_click_from_being_so(person: Person, project: Path) -> None:
    one, other = drawn_together(project)
    together = sum(each.size for each in registry_in(project).active if each.id in (one, other))
    offer = person.page.locator(".alike .offer")
    offer.wait_for(timeout=10_000)
    assert offer.locator("img").count() == 2
    person.click(".alike .offer")
    person.click("dialog[open] .primary")
    person.said("Merged 2 groups")
    assert person.actions == 2
    assert together in [each.size for each in registry_in(project).active]
    assert offer.count() == 0


def test_drag_one_onto_a_group_and_move_a_range_by_keyboard_alone(person: Person, project: Path) -> None:
    number, size = first_group(person, project)
    person.page.locator(".cell").nth(2).drag_to(person.page.locator(".list li").nth(2))
    person.said("Moved 1 to")
    size -= 1
    assert registry_in(project).category(number).size == size
    person.page.locator(".cell").first.focus()
    person.press("Space", "Shift+End")  # all of them
    person.press("Shift+Home")
    person.press("Escape", "Space", "Shift+ArrowRight")
    assert person.page.locator(".cell.picked").count() == 2
    person.press("m")
    person.see("dialog[open]")
    person.press("Enter")
    person.said("Moved 2 to")
    assert registry_in(project).category(number).size == size - 2
    person.press("Control+z")
    person.said("Taken back: moved 2")
    assert registry_in(project).category(number).size == size


@on_both
def test_see_one_large_and_go_on(person: Person, project: Path) -> None:
    first_group(person, project)
    person.click(".cell", 1)
    photo = person.page.locator("dialog[open] .photo")
    photo.wait_for()
    assert person.actions == 1
    before = photo.get_attribute("alt")
    person.press("ArrowRight")
    assert photo.get_attribute("alt") != before
    person.press("w")
    person.page.locator(".why", has_text="The grouping put it into").wait_for()
    person.page.locator(".why", has_text="was not measured").wait_for()  # by a bare backbone
    person.press("b")
    person.said("belongs where it is")
    person.page.locator(".why", has_text="You, or somebody before you").wait_for()
    person.press("Escape")
    assert person.page.locator(".cell:focus").get_attribute("aria-posinset") == "3"


def test_sort_photographs_one_key_each(person: Person, project: Path) -> None:
    count = len(registry_in(project).members)
    person.go("view=desk")
    for _ in range(12):
        person.see(".answers .offer")
        person.press("1")
    person.page.get_by_text("You have looked at 12.").wait_for()
    registry = registry_in(project)
    drawn = [key for key, review in registry.reviews.items() if review.left]
    assert (person.actions, len(drawn)) == (12, 2)  # every fifth
    sure = {key: round(255 * each) for key, each in registry.confidences.items()}  # as a window knows it
    chosen = sorted(sure[key] for key in registry.reviews if key not in drawn)
    drawn.append(Project(project).drawn())  # which is left for its turn
    assert chosen == sorted(value for key, value in sure.items() if key not in drawn)[:10]  # least sure first
    said = re.compile("Of 2 drawn at random [0-2] were wrong: about [0-9]+% of all")
    person.page.get_by_text(said).wait_for()
    for _ in range(count - 12):
        person.see(".answers .offer")
        person.press("1")
    person.page.get_by_text("You have looked at every photograph").wait_for()
    assert len(registry_in(project).reviews) == count


def test_a_screen_is_one_key_and_a_digit_sends_those_that_are_pointed_at_elsewhere(
    person: Person, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit = person.page
    names = [each.id for each in registry_in(project).active]
    visit.evaluate("location.hash = 'view=check'")
    shown = visit.locator(".page li")
    shown.first.wait_for()
    assert "All" not in visit.locator(".foot").inner_text()  # most belong elsewhere
    monkeypatch.setattr(proposals, "LIKELY", 0.0)
    visit.reload()
    shown.first.wait_for()
    rows = [int(row.get_attribute("data-row")) for row in visit.locator(".page img").all()]
    shown.nth(0).click()
    shown.nth(2).click(modifiers=["Shift"])
    assert visit.locator(".page li.picked").count() == 3
    second = visit.locator(".offered .offer").nth(1)
    target = second.locator("span").last.inner_text()
    visit.keyboard.press("2")
    assert visit.locator(".page li small").filter(has_text=target).count() >= 3
    visit.keyboard.press("ArrowRight")
    person.said("Moved 3")
    assert len(registry_in(project).pinned) == 3  # every answer is stored when it is given
    visit.keyboard.press("0")
    person.said("Took 1")
    visit.keyboard.press("Enter")
    person.said(f"Sorted {len(rows) - 4}")
    registry = registry_in(project)
    assert len(registry.reviews) == len(rows)
    assert len(registry.pinned) == len(rows) - 1
    home = int(target.removeprefix("Group "))  # none has a name
    assert [*registry.members.values()].count(home) >= 3
    for kind in ("sorted", "moved 1", "moved 3"):
        visit.keyboard.press("Control+z")
        person.said(f"Taken back: {kind}")
    assert not registry_in(project).reviews
    assert [each.id for each in registry_in(project).active] == names


def test_same_or_different_is_one_key_each(person: Person, project: Path) -> None:
    person.go("view=desk")
    person.page.get_by_role("button", name="Same or different?").click()
    shown = person.page.locator(".pair img")
    asked, replies = set[str](), [True, False, True, False]
    for same in replies:
        shown.first.wait_for()
        pair = " and ".join(str(each.get_attribute("alt")) for each in shown.all())
        assert pair not in asked
        asked.add(pair)
        person.press("y" if same else "x")
        person.said("The same: it is in" if same else "Different: it is not in")
        person.page.wait_for_timeout(300)
    assert person.actions == len(replies)
    assert len(registry_in(project).log) == 1 + len(replies)  # what grouped them is the first
    person.press("s", "Control+z")
    person.said("Taken back")
    assert len(registry_in(project).log) == len(replies)


@on_both
def test_nothing_is_corrected_that_nobody_chose(person: Person, project: Path) -> None:
    sent = edits_of(person)
    person.click(".card .open")  # a group, by mouse
    person.see(".cell img")
    for key in ("Delete", "b", "g", "x", "m", "."):
        person.press(key)
        person.said("Select a photograph first")
    person.page.locator(".scroll").evaluate("each => each.scrollTo(0, 2500)")
    person.press("Delete")
    assert (sent, person.page.locator("dialog").count()) == ([], 0)
    person.press("ArrowDown")  # the list has the focus: the first photograph in sight is the next
    assert person.page.evaluate(CHOSEN) != []
    person.press("Delete")
    assert len(sent) == 1


def test_one_corrected_large_gives_way_at_once_and_nothing_else_moves(person: Person, project: Path) -> None:
    _, size = first_group(person, project)
    sent = edits_of(person)
    person.click(".cell", 1)
    photo = person.page.locator("dialog.large .photo")
    photo.wait_for()
    first = photo.get_attribute("data-row")
    person.press("Delete")
    second = photo.get_attribute("data-row")
    assert second != first
    person.press("ArrowRight")
    third = photo.get_attribute("data-row")
    status = person.page.locator("dialog.large").get_by_role("status")
    status.filter(has_text="Took 1 out of its group").wait_for()
    person.page.wait_for_timeout(2500)
    assert photo.get_attribute("data-row") == third
    assert person.page.locator("dialog.large small").first.text_content() == f"4 / {size}"
    person.press("Delete", "Control+z")
    status.filter(has_text="Taken back").wait_for()
    assert photo.get_attribute("data-row") == third  # it is in its place again, and looked at
    person.press("Escape")
    person.page.wait_for_timeout(400)
    assert person.page.evaluate(CHOSEN) == [int(third)]
    assert person.page.locator(".cell").count() == size - 1  # and the rest is tidy now
    assert [each["images"] for each in sent if "images" in each] == [[int(first)], [int(third)]]


def test_a_clump_on_the_map_becomes_a_group(person: Person, project: Path) -> None:
    person.go("view=map")
    person.see("canvas")
    person.see(".plane .empty", state="detached", timeout=60_000)
    box = person.page.locator("canvas").bounding_box()
    corners = [(2, 60), (box["width"] - 2, 60), (box["width"] - 2, box["height"] - 2), (2, box["height"] - 2)]
    person.page.mouse.move(box["x"] + 2, box["y"] + 60)
    person.page.mouse.down()
    for x, y in [*corners[1:], corners[0]]:
        person.page.mouse.move(box["x"] + x, box["y"] + y, steps=10)
    person.page.mouse.up()
    person.actions = 1
    person.said("selected")
    person.press("m")
    person.see("dialog[open]")
    person.type("all of it")
    person.said("the group “all of it”")
    assert person.actions <= 4
    assert sizes(project)["all of it"] > KINDS * EACH // 2


@on_both
def test_one_step_leads_to_the_next_up_to_the_export(person: Person, project: Path) -> None:
    """With eight groups these are 19 actions."""
    names = [f"kind {number}" for number in range(KINDS)]
    for number, name in enumerate(names):
        person.page.locator(".next", has_text=f"Name the groups, {KINDS - number} left").wait_for()
        if not number:
            person.click(".next")
        person.type(name)
        person.said(f"Now called “{name}”")
    person.page.locator(".next", has_text="Review 20 uncertain photographs").wait_for()
    person.click(".bar .wide")
    person.page.locator("dialog[open]").get_by_role("button", name="The files themselves").click()
    person.page.locator("dialog[open]", has_text="photographs are in").wait_for()
    assert person.actions + 1 <= 1 + 2 * KINDS + 2
    assert {each.name for each in (project / "folders").iterdir() if each.is_dir()} == set(names)
    person.press("Escape")
    keys = ProjectView(project).photos.keys
    correct(project, lambda registry: edits.confirm(registry, keys[:20]))
    person.page.locator(".next", has_text="Export").wait_for()
    person.page.get_by_text("You have looked at 20").wait_for()


def test_a_slow_server_is_said_and_the_next_key_is_about_the_next_one(person: Person, project: Path) -> None:
    number, size = first_group(person, project)
    held: list[Route] = []
    person.page.route("**/api/edit", lambda route: held.append(route))
    person.page.locator(".cell").first.focus()
    chosen = person.page.evaluate(CHOSEN)
    person.press("Delete")  # which shows at once
    assert person.page.locator(".cell.gone").count() == 1
    assert person.page.evaluate(CHOSEN) != chosen
    person.said("It is not saved yet")
    person.press("Delete")
    person.page.unroute("**/api/edit")  # which lets both go
    person.said("Took 1 out of its group")
    person.page.wait_for_timeout(500)
    assert len(held) == 2
    assert registry_in(project).category(number).size == size - 2


def test_a_correction_that_reaches_nobody_says_so(person: Person, project: Path) -> None:
    person.page.locator(".card .name").first.click()
    person.page.route(re.compile("/api/(edit|state)$"), lambda route: route.abort())
    person.type("heron")
    person.said("promptccd open")
    assert "heron" not in sizes(project)
    lost = "Failed to load resource"  # Chromium's own line
    person.visit.complaints = [each for each in person.visit.complaints if lost not in each]


def test_what_is_away_is_grey_and_can_be_forgotten(browser: Browser, found_once: Path, project: Path) -> None:
    away = sorted((found_once / "album").iterdir())[:2]
    for path in away:
        path.rename(found_once / path.name)
    try:
        with served(project) as page, person_at(browser, page.url) as person:
            person.click(".menu summary")
            person.page.locator(".place", has_text="Not here 2").click()
            assert person.page.locator(".cell.away img").count() == 2
            person.page.get_by_role("button", name="Forget them").click()
            left = f"{KINDS * EACH - 2} photographs"
            person.page.locator(".title, header", has_text=left).first.wait_for()
            person.page.get_by_role("button", name="Undo").click()
            person.page.locator(".place", has_text="Not here 2").wait_for()
            assert len(registry_in(project).images) == KINDS * EACH
    finally:
        for path in away:
            (found_once / path.name).rename(path)


@on_both
def test_a_group_and_photographs_are_set_aside_and_come_back(person: Person, project: Path) -> None:
    number, size = first_group(person, project)
    person.click(".head .menu summary")
    person.click(".head button:text-is('Ignore')")
    person.said("is ignored, and later photographs like it will be")
    assert [(each.id, each.size) for each in registry_in(project).aside] == [(number, size)]
    person.go("view=aside")
    person.see(".cell img")
    assert person.page.locator(".place", has_text=f"Ignored {size}").count() == 1
    person.press("Control+z")
    person.said("Taken back: group ignored")
    first_group(person, project)
    person.page.locator(".cell").first.focus()
    person.press("x")
    person.said("1 photograph is ignored.")
    assert [each.size for each in registry_in(project).aside] == [1]


def test_a_server_that_ended_loses_nothing(person: Person, page: OpenPage, project: Path) -> None:
    person.page.locator(".card .name").first.click()
    person.type("heron")
    person.said("Now called")
    page.close()
    person.page.get_by_text("The server does not answer").wait_for(timeout=10_000)
    assert "heron" in sizes(project)
    person.page.evaluate("location.hash = 'view=all'")
    with served(project):
        person.page.get_by_text("The server does not answer").wait_for(state="detached", timeout=10_000)
        person.page.locator(".cell").first.focus()
        person.press("Control+a", "g", "Enter")  # the same window goes on where it was
        person.said(f"Made {KINDS * EACH} photographs the group")
    person.visit.complaints.clear()  # the browser's own, of a server that is gone


def test_a_reload_comes_back_to_the_same_photograph_and_order(person: Person) -> None:
    person.go("view=all")
    person.see(".cell img")
    person.page.locator(".head select").select_option("unsure")
    person.page.locator(".cell").first.focus()
    person.press("End")
    person.page.wait_for_timeout(200)
    row = person.page.evaluate(CHOSEN)
    person.page.reload()
    person.see(".cell img")
    person.page.wait_for_timeout(300)
    assert person.page.locator(".head select").input_value() == "unsure"
    assert person.page.locator(f".cell[data-row='{row[0]}']").is_visible()


def test_fewer_groups_and_back(person: Person, project: Path) -> None:
    before = registry_in(project).state_hash()
    person.click(".menu summary")
    person.click(".tools button:text-is('Fewer or more groups')")
    number = person.page.locator("dialog[open] input[type=range]")
    number.wait_for()
    person.page.wait_for_timeout(300)
    assert person.page.locator(":focus[type=range]").count() == 1
    assert person.page.locator("dialog[open] .primary").is_disabled()
    person.press("ArrowLeft", "ArrowLeft")
    person.click("dialog[open] .primary")
    person.said("They are 2 groups now")
    assert len(registry_in(project).active) == 2
    assert person.actions <= 5  # the menu is one
    person.press("Escape", "Control+z")
    person.said("Taken back: grouped again")
    assert registry_in(project).state_hash() == before


@pytest.mark.parametrize(
    ("way", "said"),
    [("most like", "went to the nearest"), ("To no group", "are in no group"), ("Ignored", "is ignored")],
)
def test_a_group_that_is_none_asks_where_they_go(person: Person, project: Path, way: str, said: str) -> None:
    number, size = first_group(person, project)
    person.click(".head .menu summary")
    person.click(".head button:text-is('Not a group')")
    person.page.locator("dialog[open]").get_by_role("button", name=way).click()
    person.said(said)
    registry = registry_in(project)
    there = {"most like": KINDS * EACH, "To no group": KINDS * EACH - size}
    assert sum(each.size for each in registry.active) == there.get(way, KINDS * EACH - size)
    assert [each.id for each in registry.aside] == ([number] if way == "Ignored" else [])
    person.press("Control+z")
    person.said("Taken back")
    assert registry_in(project).category(number).size == size


# Where answers are given, what is there by then, and the keys that answer; a name is typed.
PLACES = {
    "desk": (".answers .offer", ["1", "0"]),
    "check": (".page img", ["1", "0"]),
    "group": (".cell img", ["b", "Delete"]),
    "groups": (".naming input", ["Enter"]),
}
# Rows that a key is about: what is sorted, pointed at on a screen of proposals, or has the focus.
ASKED = """() => [...document.querySelector('promptccd-desk').shadowRoot.querySelectorAll(
    '.quick .stage img, .page li.here img, .cell:focus')].map((each) => Number(each.dataset.row))"""


def answer(person: Person, place: str, random: Random) -> set[int | str]:
    """Answer at a place; the rows that it is about, or the name."""
    where, keys = PLACES[place]
    person.see(where)
    given = set[int | str]()
    if place == "groups":
        person.page.keyboard.type(name := f"name {random.random()}")
        given.add(name)
    elif place == "group":
        person.press("ArrowRight")
    given.update(person.page.evaluate(ASKED))
    person.page.keyboard.press(random.choice(keys))
    if place == "check":
        person.page.keyboard.press("ArrowRight")
    assert given
    return given


def stored(project: Path) -> set[int | str]:
    """Rows that a person has reviewed, and names of groups."""
    registry, keys = registry_in(project), ProjectView(project).photos.keys
    return {row for row, key in enumerate(keys) if key in registry.reviews} | {*registry.names().values()}


@pytest.mark.parametrize(
    ("place", "leave"),
    [
        *zip(PLACES, ("Escape", "go_back", "reload", "close"), strict=True),
        *((each, "kill") for each in PLACES),
    ],
)
def test_an_answer_is_stored_however_the_page_is_left(
    browser: Browser, project: Path, place: str, leave: str
) -> None:
    """Up to three answers, the last of which may be on its way; a killed server has stored what it confirmed."""
    random, given, confirmed = Random(f"{place} {leave}"), set[int | str](), set[int | str]()

    def note(request: Request) -> None:
        if "/api/edit" in request.url and request.response().status == 200:
            sent = request.post_data_json
            confirmed.update(sent.get("images", [sent.get("name")]))

    with served_alone(project) as (process, window), person_at(browser, window.page.url) as person:
        person.page.on("requestfinished", note)
        person.go("view=" + place + f"&of={registry_in(project).active[0].id}" * (place == "group"))
        if place == "groups":
            person.click(".card .name")
        elif place == "group":  # the first photograph gets the focus
            person.click(".cell", modifiers=["Control"])
            person.page.keyboard.press("Escape")
        for number in range(random.randrange(1, 4)):
            person.page.wait_for_timeout(250 * bool(number))
            given |= answer(person, place, random)
        person.page.wait_for_timeout(random.choice([0, 0, 1, 5, 20, 60, 200]))
        if leave == "kill":
            process.kill()
            process.wait()
            person.page.wait_for_timeout(100)
            given = confirmed
        else:
            person.page.keyboard.press(leave) if leave == "Escape" else getattr(person.page, leave)()
        eventually(lambda: given <= stored(project))
        person.visit.complaints.clear()  # the browser's own, of a server that is gone
    assert given <= stored(project)


def test_one_whose_answer_is_taken_back_is_drawn_again(person: Person, project: Path) -> None:
    person.go("view=desk")
    for _ in range(4):
        person.see(".answers .offer")
        person.press("1")
        person.page.wait_for_timeout(200)
    person.see(".drawn")
    row = person.page.locator(".photo").get_attribute("data-row")
    for _ in range(2):
        person.see(".answers .offer")  # before that the key is about nothing
        person.press("1")
        person.see(".drawn", state="detached")
        assert [review.left > 0 for review in registry_in(project).reviews.values()].count(True) == 1
        person.press("Control+z")
        person.said("Taken back")
        person.see(".drawn")
        assert person.page.locator(".photo").get_attribute("data-row") == row
        assert not any(review.left for review in registry_in(project).reviews.values())


@on_both
def test_search_opens_the_only_group_and_says_that_there_is_no_file(person: Person, project: Path) -> None:
    number = registry_in(project).active[0].id
    person.page.locator(".search").fill(f"group {number}")
    person.press("Enter")
    person.see(".cell")
    assert person.page.evaluate("location.hash") == f"#view=group&of={number}"
    assert person.page.locator(".search").input_value() == ""
    person.click(".bar .back")
    person.page.locator(".search").fill("no such thing")
    person.press("Enter")
    person.page.get_by_text("No file has such a name").wait_for()
    person.click(".bar .back")
    person.see(".cards")


def test_pictures_that_scrolled_away_are_not_waited_for_and_all_in_view_come(person: Person) -> None:
    person.go("view=all")
    for share in (1, 0, 0.5, 1):
        scroll = f"(each) => each.scrollTo(0, {share} * each.scrollHeight)"
        person.page.locator(".photos .scroll").evaluate(scroll)
    person.see(".cell img[src^=blob]")
    person.page.wait_for_function(
        "() => !document.querySelector('promptccd-desk').shadowRoot.querySelector('.cell img:not([src])')",
        timeout=5000,
    )


@pytest.mark.parametrize(
    ("where", "said"), [("nonsense", "no such place"), ("group&of=99", "not there any more")]
)
def test_an_address_of_no_place_says_so(person: Person, where: str, said: str) -> None:
    person.go(f"view={where}")
    person.said(said)
    assert person.page.locator(".card img").count()


FOCUSED = """(path) => {
    const { activeElement } = document.querySelector('promptccd-desk').shadowRoot;
    return path.split('.').reduce((value, name) => value?.[name], activeElement) ?? null; }"""
AREA = """() => document.querySelector('promptccd-desk').shadowRoot.activeElement
    .closest('[data-area]').dataset.area"""


def focused(person: Person, path: str = "className") -> Any:
    """Something of what has the focus."""
    return person.page.evaluate(FOCUSED, path)


@on_both
def test_cards_and_the_list_are_one_stop_each(person: Person, project: Path) -> None:
    person.page.locator(".card .open").first.focus()
    person.press("End")
    last = focused(person, "dataset.group")
    person.press("Tab")
    assert "card" not in str(focused(person, "parentElement.className"))
    person.press("Shift+Tab")
    assert focused(person, "dataset.group") == last
    ids = person.page.locator(".card .open").evaluate_all("all => all.map(each => each.dataset.group)")
    person.press("Home", "ArrowDown")
    assert focused(person, "dataset.group") == ids[0 if person.page.viewport_size["width"] > 700 else 2]
    person.press("ArrowUp", "ArrowRight", " ")
    person.said("1 selected")
    assert person.page.locator(".card.picked .open").get_attribute("data-group") == ids[1]
    person.press("Escape", "r")
    person.page.keyboard.type("heron")
    person.press("Enter", "Escape")
    person.page.wait_for_timeout(200)
    assert "heron" in sizes(project)
    assert focused(person, "dataset.group") is not None
    first_group(person, project)
    person.page.locator(".list .stop[tabindex='0']").focus()
    person.press("Home")
    assert focused(person, "tabIndex") == 0
    assert person.page.locator(".list .stop[tabindex='0']").count() == 1
    person.press("ArrowRight", "Enter")
    person.page.wait_for_timeout(400)
    assert focused(person, "ariaPosInSet") == "1"


def test_f6_goes_from_area_to_area_and_back(person: Person, project: Path) -> None:
    first_group(person, project)
    person.page.locator(".cell").first.focus()
    seen = []
    for _ in range(6):
        person.press("F6")
        seen.append(person.page.evaluate(AREA))
    assert set(seen[:4]) == {"bar", "list", "tools", "main"}
    assert seen[:2] == seen[4:]
    person.press("Shift+F6", "Shift+F6")
    assert focused(person, "ariaPosInSet") == "1"
    person.press("/", "F6")
    assert "search" not in focused(person)


def test_a_group_opened_by_key_has_the_focus_on_its_first_photograph(person: Person) -> None:
    person.press("Tab")
    assert focused(person, "className") == "skip"
    person.press("Enter")
    number = focused(person, "dataset.group")
    assert person.actions <= 3
    person.press("ArrowRight", "Enter")
    person.see(".cell img")
    person.page.wait_for_timeout(200)
    assert focused(person, "ariaPosInSet") == "1"
    opened = person.page.evaluate("location.hash").rpartition("=")[2]
    assert opened != number
    first = person.page.evaluate(CHOSEN)
    person.press("]")
    person.page.wait_for_timeout(400)
    assert focused(person, "ariaPosInSet") == "1"
    assert person.page.evaluate(CHOSEN) != first
    person.press("Escape")
    person.see(".card img")
    person.page.wait_for_timeout(200)
    assert focused(person, "dataset.group") not in (None, opened)  # the group that one came from


@pytest.mark.parametrize("where", ["all", "group"])
def test_it_is_at_most_three_tabs_to_the_first_photograph(person: Person, project: Path, where: str) -> None:
    person.go("view=all") if where == "all" else first_group(person, project)
    person.see(".cell img")
    person.page.evaluate("document.querySelector('promptccd-desk').shadowRoot.activeElement?.blur()")
    person.page.locator(".bar button").first.focus()  # the first stop of the page
    person.press("Enter")
    assert focused(person, "ariaPosInSet") == "1"
    assert person.actions <= 3


# What axe finds on every screen and dialog: nothing, in any light and width; a phone shows all of it


RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def do(page: Page, step: str) -> None:
    """A step to a screen: a verb, and what it is about."""
    verb, _, about = step.partition(" ")
    if verb == "go":
        page.evaluate(f"location.hash = 'view={about}'")
    elif verb == "press":
        page.keyboard.press(about)
    elif verb == "choose":
        page.get_by_role("button", name=about).click()
    elif verb == "click":
        page.locator(about).first.click(force=".box" in about)
    elif verb == "focus":
        page.locator(about).first.focus()
    else:
        page.locator(about).first.wait_for(state="visible" if verb == "see" else "detached", timeout=60_000)


GROUP = ("click .card .open", "see .cell img")
SELECTED = (*GROUP, "focus .cell >> nth=1", "press Space", "see .selection")
LARGE = (*GROUP, "click .cell", "see dialog[open] .photo")
SCREENS = {
    "groups": (),
    "naming": ("click .card .name", "see .naming input"),
    "merge": ("click .card .box", "click .card .box >> nth=1", "press m", "see dialog[open] .side >> nth=1"),
    "keys": ("click .help", "see dialog[open] .about"),
    "one group": GROUP,
    "selected": SELECTED,
    "move": (*SELECTED, "press m", "see dialog[open] .targets"),
    "large": LARGE,
    "why": (*LARGE, "press w", "see .why img"),
    "desk": ("go desk", "see .answers .offer"),
    "check": ("go check", "see .page img", "click .page li"),
    "same": ("go same", "see .pair img >> nth=1"),
    "map": ("go map", "miss .plane .empty"),
    "changed": ("go changed", "see .changes .offer"),
    "export": ("choose Export", "see dialog[open] button"),
    "dissolve": (*GROUP, "click .head .menu summary", "choose Not a group", "see dialog[open] button"),
    "regroup": ("click .menu summary", "choose Fewer or more groups", "see dialog[open] input[type=range]"),
    "one file": (*LARGE, "press f", "see dialog[open] .button"),
    "near": (*LARGE, "press z", "see .photo[src*=original]"),
}


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_no_screen_shuts_anybody_out(browser: Browser, reader: Window, scheme: str, width: int) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 844},
        color_scheme=scheme,
        reduced_motion="reduce",
        bypass_csp=True,  # for axe; the page keeps to it in its other tests
    )
    page, found = context.new_page(), {}
    axe = driver("axe_playwright_python.sync_playwright").Axe()
    for screen, steps in SCREENS.items():
        page.goto(reader.page.url)
        for step in ("see .card img", *steps):
            do(page, step)
        answer = axe.run(page, options={"runOnly": RULES}).response
        assert answer["passes"], "axe has looked at nothing"
        for problem in answer["violations"]:
            found[screen, problem["id"]] = [each["html"][:200] for each in problem["nodes"][:3]]
    context.close()
    assert found == {}


# What stands or lies beyond the screen, but for lists that are scrolled sideways.
BEYOND = """() => [...document.querySelector('promptccd-desk').shadowRoot.querySelectorAll(
    '.right, .caption, .foot, .photo, .bar > *')].flatMap((each) => {
  const { left, right, bottom, width } = each.getBoundingClientRect();
  const isFoot = each.matches('.foot') && bottom > innerHeight;
  return width > 1 && (left < 0 || right > innerWidth + 1 || isFoot) ? [each.className || each.textContent] : [];
})"""


@pytest.mark.parametrize("person", [PHONE], indirect=True)
@pytest.mark.parametrize("place", ["groups", "desk", "check", "alike&of=3,5", "group&of={}"])
def test_on_a_phone_all_there_is_is_seen(person: Person, project: Path, place: str) -> None:
    person.go(f"view={place.format(registry_in(project).active[0].id)}")
    person.see("[data-area=main] img, .cell img")
    person.page.wait_for_timeout(300)
    assert person.page.evaluate(BEYOND) == []
