"""Every mutant of a source file: where it is, what it changes, and the file's text with it.

``equivalent.toml`` lists the mutants that no test could tell from the code, each with its reason: by file, function,
line of code and operators (all operators of the line if none is named).
"""

import ast
import functools
import re
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

# How an operator is written, and what is written instead.
SIGNS: dict[type, tuple[str, ...]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"), ast.Pow: ("**", "*"), ast.MatMult: ("@",), ast.LShift: ("<<",), ast.RShift: (">>",),
    ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.BitXor: ("^", "&"), ast.And: ("and", "or"),
    ast.Or: ("or", "and"), ast.Lt: ("<", "<=", ">="), ast.LtE: ("<=", "<", ">"), ast.Gt: (">", ">=", "<="),
    ast.GtE: (">=", ">", "<"), ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
    ast.USub: ("-",), ast.UAdd: ("+",), ast.Not: ("not",), ast.Invert: ("~",),
}  # fmt: skip
SAID = ("logger", "logging", "warnings", "print", "tqdm")  # what is only said to a person
# Keywords that make no difference on a CPU or where UTF-8 is what files are in, watch over ourselves, or save bytes.
UNTOLD = ("device", "strict", "encoding", "stable", "non_blocking", "pin_memory", "optimize")
GENERATORS = ("torch_generator", "numpy_generator", "seed_of")  # of other random numbers, as good as these
SYMMETRIC = ("min", "max", "minimum", "maximum", "transpose", "equal", "suppress", *GENERATORS)
UNFELT = ("torch.no_grad", "torch.inference_mode", "warnings.catch_warnings")  # with-blocks
JUMPS = (ast.Raise, ast.Return, ast.Continue, ast.Break)
DROPPED = (ast.Expr, ast.AugAssign, ast.Raise, ast.Continue, ast.Break)
OTHERS = {
    bool: lambda value: [not value],
    int: lambda value: [value + 1] if value in (0, 1) else [value + 1, value - 1],
    float: lambda value: [2 * value or 1.0],
}
# Of a named amount (bytes of a limit, rows that are read together, seconds that are waited) nobody could notice one
# more or less. Its mistakes are of size: so little that nothing goes through, or so much that it limits nothing.
AMOUNT, TOO_MUCH = 100, 1000  # from how many on it is one; times as many
OF_BODY = ("guard removed", "branch removed")
EQUIVALENT = "tests/mutants/equivalent.toml"  # from the root of the project
UNTOUCHED = ("annotation", "returns", "decorator_list", "exc", "cause", "names")
# Nodes that are replaced, the operator, and what stands there instead.
Changes = Iterator[tuple[list[ast.AST] | ast.AST, str, str]]


@dataclass(frozen=True)
class Mutant:
    """One mistake."""

    path: Path
    file: str  # the path from the root of the project
    line: int
    lines: range  # of its statement: a test must run one; none for what runs when the file is imported
    operator: str  # such as "< to <=", and "< to <= #2" where it can be done twice in the line
    span: tuple[int, int]  # bytes of the file that it replaces
    new: str
    is_equivalent: bool  # listed in `EQUIVALENT`

    def applied(self) -> str:
        """The file's text with it."""
        data, (begin, end) = self.path.read_bytes(), self.span
        return (data[:begin] + self.new.encode() + data[end:]).decode()

    def shown(self) -> str:
        """Its line of the file, and what it puts there."""
        line = self.path.read_text(encoding="utf-8").splitlines()[self.line - 1]
        return f"    {line.strip()}\n -> {textwrap.shorten(self.new, 150)}"


def mutants_of(root: Path, file: str) -> list[Mutant]:
    """All mutants of a file, in order; none in annotations, decorators, texts, or what is only said to a person."""
    whole = (root / file).read_text(encoding="utf-8")
    starts = [0]
    for line in whole.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: dict[tuple[tuple[int, int], str], Mutant] = {}
    tree = ast.parse(whole)
    equivalent, so_far = equivalent_of(tree, whole, listed(root).get(file, [])), Counter[tuple[int, str]]()
    for node, lines in _nodes(tree, range(0), at_import=True):
        for places, operator, new in _changes(node):
            line, end_line = places[0].lineno, places[-1].end_lineno
            end = starts[end_line - 1] + places[-1].end_col_offset
            span = (starts[line - 1] + places[0].col_offset, end)
            if (span, new) in found:
                continue
            so_far[line, operator] += 1
            number = f"{operator} #{so_far[line, operator]}"
            is_equivalent = not {"", operator, number}.isdisjoint(equivalent.get(line, ()))
            # Tests that get past a guard could not tell: those that it stops can.
            run = range(line, end_line + 1) if lines and operator in OF_BODY else lines
            name = operator if number.endswith(" #1") else number
            found[span, new] = Mutant(root / file, file, line, run, name, span, new, is_equivalent)
    return list(found.values())


@functools.cache
def listed(root: Path) -> dict[str, list[dict[str, Any]]]:
    """Content of `EQUIVALENT` by file; empty without it."""
    path = root / EQUIVALENT
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def equivalent_of(tree: ast.Module, whole: str, entries: Sequence[Mapping[str, Any]]) -> dict[int, set[str]]:
    """Operators of equivalent mutants by line of a file; an empty operator stands for all.

    An entry that fits no line is ignored here; a test reports it.
    """
    texts, functions = whole.splitlines(), functions_of(tree, whole)
    found: dict[int, set[str]] = {}
    for entry in entries:
        for line in functions.get(entry["function"], ()):
            if code_of(texts[line - 1]) == entry["line"]:
                found.setdefault(line, set()).update(entry.get("operators", [""]))
    return found


def functions_of(tree: ast.Module, whole: str) -> dict[str, range]:
    """Lines of every function and class by qualified name; those of the file by an empty name."""
    found = {"": range(1, len(whole.splitlines()) + 1)}

    def visit(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            own = name
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                own = f"{name}.{child.name}".lstrip(".")
                found[own] = range(child.lineno, child.end_lineno + 1)
            visit(child, own)

    visit(tree, "")
    return found


def code_of(text: str) -> str:
    """A line without its comment."""
    return re.sub(r"(^|\s+)#.*$", "", text).strip()


def _nodes(node: ast.AST, lines: range, *, at_import: bool) -> Iterator[tuple[ast.AST, range]]:
    """Nodes that may be changed, and the lines of the statement of each."""
    if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Global) or _is_said(node):
        return
    if isinstance(node, ast.keyword) and node.arg in UNTOLD:
        return
    if isinstance(node, ast.stmt) and not at_import:
        body = getattr(node, "body", None)
        lines = range(node.lineno, max(node.lineno + 1, body[0].lineno) if body else node.end_lineno + 1)
    yield node, lines
    if _amount(node):
        return
    for name, value in ast.iter_fields(node):
        runs_later = name == "body" and isinstance(node, ast.FunctionDef)
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in UNTOUCHED:
                yield from _nodes(child, lines, at_import=at_import and not runs_later)


def _is_said(node: ast.AST) -> bool:
    """A docstring, or a call that only says something."""
    said = node.value if isinstance(node, ast.Expr) else node
    if isinstance(said, ast.Constant):
        return said is not node
    return isinstance(said, ast.Call) and ast.unparse(said.func).split(".")[0] in SAID


def _amount(node: ast.AST) -> float:
    """The value of a named amount, such as ``MOST = 4 * 2**30``; 0 for all else."""
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
        return 0
    numbers = (ast.Constant, ast.BinOp, ast.operator)
    is_number = all(isinstance(each, numbers) for each in ast.walk(node.value))
    if not node.targets[0].id.isupper() or not is_number:
        return 0
    value = eval(ast.unparse(node.value), {})
    return value if isinstance(value, int | float) and value >= AMOUNT else 0


def _changes(node: ast.AST) -> Iterator[tuple[list[ast.AST], str, str]]:
    for kind, changes in OPERATORS.items():
        if isinstance(node, kind):
            for place, operator, new in changes(node):
                yield place if isinstance(place, list) else [place], operator, new


def _of_constant(node: ast.Constant) -> Changes:
    others = OTHERS.get(type(node.value), lambda value: [])(node.value)
    yield from ((node, f"{node.value} to {other}", repr(other)) for other in others)


def _of_operator(node: ast.BinOp | ast.BoolOp | ast.Compare) -> Changes:
    if any(isinstance(each, ast.JoinedStr) for each in ast.walk(node)) and isinstance(node, ast.BinOp):
        return
    if isinstance(node, ast.Compare):
        operands, operators = [node.left, *node.comparators], node.ops
    else:
        operands, operators = getattr(node, "values", None) or [node.left, node.right], [node.op]
    texts = [f"({ast.unparse(each)})" for each in operands]
    signs = [SIGNS[type(each)] for each in operators]
    for number, (sign, *others) in enumerate(signs):
        for other in others:
            new = [other if place == number else each[0] for place, each in enumerate(signs)]
            new *= len(texts[1:]) // len(new)  # a and b and c is one operator
            words = [texts[0], *chain.from_iterable(zip(new, texts[1:], strict=True))]
            yield node, f"{sign} to {other}", f"({' '.join(words)})"
    if isinstance(operators[0], ast.And | ast.Or | ast.BitOr):  # a condition, or a flag, is left out
        for number in range(len(texts)):
            kept = f" {signs[0][0]} ".join(texts[:number] + texts[number + 1 :])
            yield node, f"without operand {number + 1}", f"({kept})"


def _of_call(node: ast.Call) -> Changes:
    words = [ast.unparse(each) for each in (*node.args, *node.keywords)]
    function = ast.unparse(node.func)
    name = function.rpartition(".")[2]
    for number, keyword in enumerate(node.keywords, start=len(node.args)):
        if keyword.arg not in (None, *UNTOLD):
            kept = ", ".join([*words[:number], *words[number + 1 :]])
            yield node, f"without {keyword.arg}=", f"{function}({kept})"
    plain = [each for each in node.args[:2] if not isinstance(each, ast.Starred)]
    if len(plain) == 2 and words[0] != words[1] and name not in SYMMETRIC:
        yield node, "arguments swapped", f"{function}({', '.join([words[1], words[0], *words[2:]])})"
    # The tests' device is the only one.
    only_moves = name == "cpu" or (name == "to" and len(words) == 1 and words[0].endswith("device"))
    of = node.func.value if isinstance(node.func, ast.Attribute) and not only_moves else None
    if isinstance(of, ast.Call | ast.BinOp | ast.Subscript):
        yield node, f"without .{name}()", f"({ast.unparse(of)})"


def _of_condition(node: ast.If | ast.While | ast.IfExp) -> Changes:
    test = ast.unparse(node.test)
    if test == "TYPE_CHECKING":
        return
    if not isinstance(node.test, ast.Compare | ast.UnaryOp):
        yield node.test, "negated", f"(not ({test}))"
    if isinstance(node, ast.IfExp):
        yield node, "always", f"({ast.unparse(node.body)})"
        yield node, "never", f"({ast.unparse(node.orelse)})"
    if isinstance(node, ast.If) and not all(map(_is_said, node.body)):
        yield node.body, OF_BODY[not isinstance(node.body[-1], JUMPS)], "pass"


def _of_statement(node: ast.stmt) -> Changes:
    stored = isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name | ast.Tuple)
    if amount := _amount(node):
        yield node.value, "amount to 1", "1"
        yield node.value, f"amount * {TOO_MUCH}", repr(TOO_MUCH * amount)
    if isinstance(node, DROPPED) or stored:
        yield node, "dropped", "pass"
    if isinstance(node, ast.AugAssign):
        sign, *others = SIGNS[type(node.op)]
        target, value = ast.unparse(node.target), ast.unparse(node.value)
        yield from ((node, f"{sign}= to {other}=", f"{target} {other}= {value}") for other in others)
    for handler in getattr(node, "handlers", ()):
        if ast.unparse(handler.body[-1]) != "raise":
            yield handler.body, "not caught", "raise"
    for item in node.items if isinstance(node, ast.With) else ():
        if item.optional_vars is None and not ast.unparse(item.context_expr).startswith(UNFELT):
            yield item.context_expr, "without the with", '__import__("contextlib").nullcontext()'
    if isinstance(node, ast.Return) and node.value and ast.unparse(node.value) != "None":
        yield node, "returns None", "return None"


# By kind of node. The first of two that come to the same program is the one there is.
OPERATORS = {
    ast.If | ast.While | ast.IfExp: _of_condition,
    ast.stmt: _of_statement,
    ast.Constant: _of_constant,
    ast.BinOp | ast.BoolOp | ast.Compare: _of_operator,
    ast.UnaryOp: lambda node: [
        (node, "without " + SIGNS[type(node.op)][0], f"({ast.unparse(node.operand)})")
    ],
    ast.Call: _of_call,
    ast.comprehension: lambda node: ((test, "filter removed", "True") for test in node.ifs),
}
