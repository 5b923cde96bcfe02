"""What is different from before the newest images, corrections included."""

from collections.abc import Iterable

import gradio as gr

from promptccd.discovery.app.desk import Desk, Panel, Updates
from promptccd.discovery.app.html import render, thumbnail_uri
from promptccd.discovery.app.panels.images import has_groups
from promptccd.discovery.app.visits import Visit
from promptccd.discovery.session import DiscoverySession
from promptccd.errors import DataError

MOST_PICTURES = 12  # per line of the list


class ChangesPanel(Panel):
    """The list of what is new, grown, moved and no longer sure.

    Args:
        desk: connects the tab.
    """

    def __init__(self, desk: Desk):
        self._desk = desk
        self.list = gr.HTML(render("changes.html.jinja", change=None), elem_id="pc-changes")
        self.outputs = [self.list]

    def connect(self, tab: gr.Tab) -> None:
        """Show it anew when the tab is opened."""
        self._desk.on_select(tab, self)

    def show(self, visit: Visit) -> Updates:
        """What changed."""
        if not has_groups(visit):
            return {self.list: render("changes.html.jinja", change=None)}
        session, change = visit.session, visit.session.change
        registry = session.registry

        def named(identities: Iterable[int]) -> list[tuple[str, list[tuple[str, str]]]]:
            return [
                (
                    f"{each} · {registry.categories[each].name}",
                    _pictures(session, _newest(session, each)),
                )
                for each in identities
            ]

        def title(identity: int | None) -> str:
            return "no category" if identity is None else f"{identity} · {registry.categories[identity].name}"

        return {
            self.list: render(
                "changes.html.jinja",
                change=change,
                stage=session.current.stage,
                new=[
                    (*each, registry.categories[identity].size)
                    for each, identity in zip(named(change.new), change.new, strict=True)
                ],
                grown=[
                    (*each, *change.grown[identity])
                    for each, identity in zip(named(change.grown), change.grown, strict=True)
                ],
                shrunk=[(title(each), *sizes) for each, sizes in change.shrunk.items()],
                renamed=[(title(each), was) for each, (was, _) in change.renamed.items()],
                emptied=[title(each) for each in change.emptied],
                retired=[title(each) for each in change.retired],
                moved=[
                    (title(was), title(now), _pictures(session, [key]))
                    for key, (was, now) in list(change.moved.items())[:MOST_PICTURES]
                ],
                num_moved=len(change.moved),
                unsure=_pictures(session, change.unsure),
                num_unsure=len(change.unsure),
                kept=sum(
                    1 for each in session.current.before.active if each.id in {a.id for a in registry.active}
                ),
                before=len(session.current.before.active),
            )
        }


def _newest(session: DiscoverySession, category: int) -> list[str]:
    return [key for key in session.current.keys if session.registry.members.get(key) == category]


def _pictures(session: DiscoverySession, keys: Iterable[str]) -> list[tuple[str, str]]:
    """Name and picture of images that are at hand; those of an earlier visit are not."""
    found = []
    for key in list(keys)[:MOST_PICTURES]:
        try:
            found.append((session.file_of(key)[1].name, thumbnail_uri(session, key)))
        except DataError:
            continue
    return found
