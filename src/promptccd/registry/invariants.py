"""What is true of every registry, whatever was edited, grouped, undone or read from a file."""

from collections import Counter
from collections.abc import Iterator

from promptccd.errors import RegistryError
from promptccd.registry.tables import Category, CategoryState, Tables, check_name


def check_tables(tables: Tables, *, num_known: int, num_rows: int, next_id: int) -> None:
    """Refuse tables that contradict themselves.

    Args:
        tables: the state.
        num_known: ids below it were labelled at stage 0.
        num_rows: rows of prototypes.
        next_id: first id that was never given.

    Raises:
        RegistryError: the message names the category or image and what is wrong.
    """
    for identity, category in tables.categories.items():
        for problem in _category_problems(tables, identity, category, num_known, num_rows, next_id):
            raise RegistryError(f"Category {identity} {problem}.")
    names = Counter(each.name for each in tables.living())
    if repeated := [name for name, count in names.items() if count > 1]:
        raise RegistryError(f"Two categories are called {repeated[0]!r}.")
    for problem in _image_problems(tables):
        raise RegistryError(problem)
    if tables.links:
        tables.constraints(only_linked=True)


def _category_problems(
    tables: Tables, identity: int, category: Category, num_known: int, num_rows: int, next_id: int
) -> Iterator[str]:
    known = identity < num_known
    if category.id != identity or not 0 <= identity < next_id:
        yield f"has the id {category.id}, and the next free id is {next_id}"
    if not category.retired and category.known != known:
        yield f"is {category.state}, but ids below {num_known} are known and the others are not"
    if outside := [row for row in category.rows if not 0 <= row < num_rows]:
        yield f"has prototype row {outside[0]} of {num_rows}"
    if category.born < 0 or category.size < 0:
        yield f"has size {category.size} and was born at stage {category.born}"
    if category.dormant and (category.size or category.state is not CategoryState.DISCOVERED):
        yield f"is dormant, but {category.state} with {category.size} images"
    if category.retired and category.size:
        yield f"is retired, but has {category.size} images"
    if category.name != check_name(category.name):
        yield "has blanks around its name"
    yield from _merge_problems(tables, category)


def _merge_problems(tables: Tables, category: Category) -> Iterator[str]:
    if category.merged_into is not None and not category.retired:
        yield f"was merged into {category.merged_into}, but is not retired"
    passed = {category.id}
    target = category.merged_into
    while target is not None:
        if target in passed or target not in tables.categories:
            yield f"was merged into {target}, which leads nowhere"
            return
        passed.add(target)
        target = tables.categories[target].merged_into


def _image_problems(tables: Tables) -> Iterator[str]:
    sizes = Counter(tables.members.values())
    for category in tables.categories.values():
        if (count := sizes.pop(category.id, 0)) != category.size:
            yield f"Category {category.id} says that it has {category.size} images, but {count} are in it."
    for identity in sizes:
        yield f"Images are in category {identity}, which does not exist."
    for name in ("members", "confidences", "pinned", "forbidden"):
        if strangers := getattr(tables, name).keys() - tables.images.keys():
            yield f"Image {min(strangers)!r} is in {name} but not among the images."
    yield from _statement_problems(tables)


def _statement_problems(tables: Tables) -> Iterator[str]:
    for pair in tables.links:
        if not tables.images.keys() >= set(pair) or pair[0] >= pair[1]:
            yield f"The answer about {pair[0]!r} and {pair[1]!r} is not about two images, the smaller key first."
    for key, identity in tables.pinned.items():
        if tables.members.get(key) != identity:
            yield f"Image {key!r} is pinned to category {identity} but is not in it."
    for key, identities in tables.forbidden.items():
        if tables.members.get(key) in identities:
            yield f"Image {key!r} is in category {tables.members[key]}, which is forbidden to it."
        if unknown := [each for each in identities if each not in tables.categories]:
            yield f"Image {key!r} was taken out of category {unknown[0]}, which does not exist."
