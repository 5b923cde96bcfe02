"""Up to ten times "same or different?" about the pairs whose answers tell most."""

from collections.abc import Mapping

import gradio as gr

from promptccd.discovery.app.desk import Desk, Panel, Updates
from promptccd.discovery.app.html import counted, render, thumbnail_uri
from promptccd.discovery.app.panels.images import has_groups
from promptccd.discovery.app.visits import Visit
from promptccd.discovery.grouping import PairQuestion, pair_questions
from promptccd.registry import Answer

MOST = 10
# Why there is no question: a heading and a text.
NOTHING_YET = (
    "No questions yet",
    "They are about images that stand between two groups: give images and find groups first.",
)
ENOUGH = ("That was the last one", "Thank you. There are new questions when the next images come.")
NOTHING_LEFT = ("No more questions", "There is no pair left whose answer would tell something new.")
TO_THE_QUESTION = "() => document.querySelector('#pc-question h3')?.focus()"


class QuestionsPanel(Panel):
    """The question and its three answers.

    Args:
        desk: connects the buttons.
    """

    def __init__(self, desk: Desk):
        self._desk = desk
        self.question = gr.HTML(_no_question(NOTHING_YET), elem_id="pc-question")
        self.pair = gr.Textbox(visible=False)
        with gr.Row(elem_classes="pc-actions pc-centred", visible=False) as self.answers:
            self.same = gr.Button("Same", variant="primary", elem_id="pc-same")
            self.different = gr.Button("Different", variant="primary", elem_id="pc-different")
            self.skip = gr.Button("Skip", elem_id="pc-skip")
        self.outputs = [self.question, self.pair, self.answers]

    def connect(self, tab: gr.Tab, groups: list[Panel]) -> None:
        """Wire the buttons; answers change the groups as well."""
        desk = self._desk
        desk.on_select(tab, self)
        for button, same in ((self.same, True), (self.different, False), (self.skip, None)):
            answered = desk.on(
                button.click,
                lambda visit, pair, same=same: self._answer(visit, pair, same),
                [self.pair],
                panels=[self, *groups],
            )
            answered.success(None, js=TO_THE_QUESTION, api_visibility="private")

    def show(self, visit: Visit) -> Updates:
        """The next question, if there is one."""
        found = _next(visit) if has_groups(visit) else None
        if found is None:
            why = ENOUGH if len(visit.asked) >= MOST else NOTHING_LEFT if has_groups(visit) else NOTHING_YET
            html = _no_question(why)
            return {self.question: html, self.pair: "", self.answers: gr.Row(visible=False)}
        session = visit.session
        sides = [
            (session.file_of(key)[1].name, thumbnail_uri(session, key), session.registry.category(category))
            for key, category in ((found.first, found.first_category), (found.second, found.second_category))
        ]
        html = render(
            "question.html.jinja",
            question=found,
            number=len(visit.asked) + 1,
            most=MOST,
            sides=sides,
        )
        return {self.question: html, self.pair: " ".join(found.pair), self.answers: gr.Row(visible=True)}

    def _answer(self, visit: Visit, pair: str, same: bool | None) -> str | None:
        first, _, second = (pair or "").partition(" ")
        found = _next(visit)
        if found is None or found.pair != (first, second):
            return None  # a button that was pressed twice
        said = None
        if same is not None:
            before = dict(visit.session.registry.members)
            visit.session.edit(Answer(first, second, same), regroup=True)
            visit.opened = None
            moved = _moved(before, visit.session.registry.members)
            said = (
                f"Thank you: {counted(moved, 'image')} changed groups."
                if moved
                else "Thank you: the groups stay as they are."
            )
        visit.asked.add(found.pair)
        return said


def _no_question(why: tuple[str, str]) -> str:
    heading, text = why
    return render("question.html.jinja", question=None, heading=heading, text=text)


def _next(visit: Visit) -> PairQuestion | None:
    """The most telling question that was not asked yet; none about fewer than two images.

    Raises:
        DataError: nothing is grouped yet.
    """
    if len(visit.asked) >= MOST:
        return None
    session = visit.session
    found = session.assignment()
    if len(found.keys) < 2:
        return None
    questions = pair_questions(found, visit.asked, constraints=session.registry.constraints(), count=1)
    return questions[0] if questions else None


def _moved(before: Mapping[str, int], after: Mapping[str, int]) -> int:
    return sum(before.get(key) != after.get(key) for key in before.keys() | after.keys())
