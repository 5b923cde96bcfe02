"""The one list of corrections."""

from promptccd.discovery.page import routes
from promptccd.discovery.project.corrections_list import CORRECTIONS
from promptccd.discovery.project.project import Project


def test_the_list_names_the_corrections_of_a_project_and_of_the_page() -> None:
    assert set(CORRECTIONS) == set(routes.CORRECTIONS)
    assert all(getattr(Project, name) is each.function for name, each in CORRECTIONS.items())
    assert CORRECTIONS["split"].required == {"category"}
    assert CORRECTIONS["move"].required == {"images", "to"}
