"""Every mutant of a source file: where it is, what it changes, and the file's text with it.

A comment says of a mutant that no test could tell why it cannot: ``# mutant: the size of a batch changes speed alone``
leaves out all that begin on its line, ``# mutant 4 to 5, > to >= #2: ...`` those alone. On a line of its own it
is for the next line of code; ``# mutants: ...`` there is for all lines up to the next empty one.
"""

import ast
import difflib
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

SWAPS: dict[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Div,), ast.Div: (ast.Mult,), ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.Mult,), ast.Pow: (ast.Mult,), ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitAnd,), ast.And: (ast.Or,), ast.Or: (ast.And,),
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
}  # fmt: skip
SAID = ("logger", "logging", "warnings", "print", "tqdm")  # what is only said to a person
# Keywords that make no difference on a CPU or where UTF-8 is what files are in, or watch over ourselves.
UNTOLD = ("device", "strict", "encoding", "stable", "non_blocking", "pin_memory")
# Swapped, the arguments of the last three give other random numbers, as good as these.
SYMMETRIC = (
    "min", "max", "minimum", "maximum", "transpose", "equal", "torch_generator", "numpy_generator", "seed_of",
)  # fmt: skip
UNDONE = ("sorted", "realpath", "inside", "clean_image")  # what they return is like what they are given
JUMPS = (ast.Raise, ast.Return, ast.Continue, ast.Break)
# With-blocks that change speed or memory alone.
UNFELT = ("torch.no_grad", "torch.inference_mode", "warnings.catch_warnings")
GUARD = "guard removed"
MARK = re.compile(r"# (mutants?)(?: ([^:]+))?: \S")
UNTOUCHED = (
    "annotation", "returns", "decorator_list", "exc", "cause", "type_comment", "names", "type_params",
)  # fmt: skip
COMPOUND = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.FunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Mutant:
    """One mistake.

    Attributes:
        file: from the root of the project.
        line: where it begins.
        lines: those of its statement, one of which a test must run; none for what runs when the file is imported.
        word: the one its line begins with: of ``limit: int = 4`` the field.
        operator: what was done, such as ``"< to <="``; ``"< to <= #2"`` where it can be done twice in the line.
        span: bytes of the file that it replaces.
        new: what it puts there.
        is_marked: whether a comment says that no test could tell it.
    """

    file: str
    line: int
    lines: range
    word: str
    operator: str
    span: tuple[int, int]
    new: str
    is_marked: bool = False

    def applied(self, whole: str) -> str:
        """The file's text with it."""
        data, (begin, end) = whole.encode(), self.span
        return (data[:begin] + self.new.encode() + data[end:]).decode()

    def diff(self, whole: str) -> str:
        """What it changes of the file's text."""
        lines = difflib.unified_diff(whole.splitlines(), self.applied(whole).splitlines(), n=0, lineterm="")
        return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def mutants_of(root: Path, file: str) -> list[Mutant]:
    """All mutants of a file, in order; none in annotations, decorators, texts, or what is only said to a person."""
    whole = (root / file).read_text(encoding="utf-8")
    starts = [0]
    for line in whole.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found, so_far = {}, Counter[tuple[int, str]]()
    marks, texts = marks_of(whole), whole.splitlines()
    for node, lines in _nodes(ast.parse(whole), range(0), at_import=True):
        for place, operator, new in _changes(node):
            begin = starts[place.lineno - 1] + place.col_offset
            end = starts[place.end_lineno - 1] + place.end_col_offset
            if ((begin, end), new) in found:
                continue
            so_far[place.lineno, operator] += 1
            number = so_far[place.lineno, operator]
            is_marked = not {"", operator, f"{operator} #{number}"}.isdisjoint(marks.get(place.lineno, ()))
            is_body = operator in (GUARD, "branch removed")
            if number > 1:
                operator = f"{operator} #{number}"
            # Tests that get past a guard could not tell: those that it stops can.
            run = range(place.lineno, place.end_lineno + 1) if lines and is_body else lines
            word = re.match(r"\s*(\w*)", texts[place.lineno - 1])[1]
            found[(begin, end), new] = Mutant(
                file, place.lineno, run, word, operator, (begin, end), new, is_marked
            )
    return list(found.values())


def marks_of(whole: str) -> dict[int, set[str]]:
    """Operators that comments leave out, by line; an empty one stands for all."""
    marks: dict[int, set[str]] = {}
    texts = whole.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(whole).readline):
        if token.type != tokenize.COMMENT or not (mark := MARK.search(token.string)):
            continue
        for line in _marked_lines(texts, token.start, is_block=mark[1] == "mutants"):
            marks.setdefault(line, set()).update(re.split(r", +", mark[2] or ""))
    return marks


def _marked_lines(texts: list[str], start: tuple[int, int], *, is_block: bool) -> list[int]:
    """Lines that a comment at a place is for."""
    first, column = start
    if texts[first - 1][:column].strip():
        return [first]
    block = list(takewhile(lambda line: texts[line - 1].strip(), range(first + 1, len(texts) + 1)))
    code = [line for line in block if not texts[line - 1].lstrip().startswith("#")]
    return code if is_block else code[:1]


def _nodes(node: ast.AST, lines: range, *, at_import: bool) -> Iterator[tuple[ast.AST, range]]:
    """Nodes that may be changed, and the lines of the statement of each."""
    if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Global) or _is_said(node):
        return
    if isinstance(node, ast.keyword) and node.arg in UNTOLD:
        return
    if isinstance(node, ast.stmt) and not at_import:
        last = node.body[0].lineno - 1 if isinstance(node, COMPOUND) else node.end_lineno
        lines = range(node.lineno, max(last, node.lineno) + 1)
    if isinstance(node, ast.stmt | ast.expr | ast.comprehension):
        yield node, lines
    for name, value in ast.iter_fields(node):
        runs_later = name == "body" and isinstance(node, ast.FunctionDef)
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in UNTOUCHED:
                yield from _nodes(child, lines, at_import=at_import and not runs_later)


def _is_said(node: ast.AST) -> bool:
    """A docstring, or a call that only says something."""
    if isinstance(node, ast.Expr):
        node = node.value
        if isinstance(node, ast.Constant):
            return True
    if not isinstance(node, ast.Call):
        return False
    return ast.unparse(node.func).split(".")[0] in SAID


def _changes(node: ast.AST) -> Iterator[tuple[ast.AST, str, str]]:
    """Changes of one node alone: the node that is replaced, the operator, and what stands there instead."""
    if isinstance(node, ast.stmt):
        yield from _of_statement(node)
    elif isinstance(node, ast.Constant):
        yield from ((node, f"{node.value} to {new}", repr(new)) for new in _other_values(node.value))
    elif isinstance(node, ast.BinOp | ast.BoolOp | ast.Compare):
        yield from _of_operator(node)
    elif isinstance(node, ast.IfExp):
        yield node, "always", f"({ast.unparse(node.body)})"
        yield node, "never", f"({ast.unparse(node.orelse)})"
    elif isinstance(node, ast.UnaryOp):
        yield node, f"without {_sign(node.op)}", f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.Call):
        yield from _of_call(node)
    for test in _tests(node):
        if isinstance(node, ast.comprehension):
            yield test, "filter removed", "True"
        if not isinstance(test, ast.Compare | ast.UnaryOp):
            yield test, "negated", f"(not ({ast.unparse(test)}))"


def _of_statement(node: ast.stmt) -> Iterator[tuple[ast.AST, str, str]]:
    yield from _of_block(node)
    stored = isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name | ast.Tuple)
    if isinstance(node, ast.Expr | ast.AugAssign | ast.Raise | ast.Continue | ast.Break) or stored:
        yield node, "dropped", "pass"
    if isinstance(node, ast.AugAssign):
        for other in SWAPS.get(type(node.op), ()):
            new = ast.AugAssign(node.target, other(), node.value)
            yield node, f"{_sign(node.op)}= to {_sign(other())}=", ast.unparse(new)
    if isinstance(node, ast.Return) and node.value and ast.unparse(node.value) != "None":
        yield node, "returns None", "return None"


def _of_block(node: ast.stmt) -> Iterator[tuple[ast.AST, str, str]]:
    """What refuses, catches or holds something, taken away."""
    if isinstance(node, ast.If) and _tests(node) and not all(map(_is_said, node.body)):
        operator = GUARD if isinstance(node.body[-1], JUMPS) else "branch removed"
        yield _joined(node.body), operator, "pass"
    if isinstance(node, ast.Try):
        for handler in node.handlers:
            if ast.unparse(handler.body[-1]) != "raise":
                yield _joined(handler.body), "not caught", "raise"
    if isinstance(node, ast.With):
        for item in node.items:
            if item.optional_vars is None and not ast.unparse(item.context_expr).startswith(UNFELT):
                new = '__import__("contextlib").nullcontext()'
                yield item.context_expr, "without the with", new


def _joined(body: list[ast.stmt]) -> ast.AST:
    """A place from the first to the last of some statements."""
    place = ast.copy_location(ast.Pass(), body[0])
    place.end_lineno, place.end_col_offset = body[-1].end_lineno, body[-1].end_col_offset
    return place


def _of_operator(node: ast.BinOp | ast.BoolOp | ast.Compare) -> Iterator[tuple[ast.AST, str, str]]:
    if isinstance(node, ast.BinOp) and any(isinstance(each, ast.JoinedStr) for each in ast.walk(node)):
        return
    old = node.ops if isinstance(node, ast.Compare) else [node.op]
    for number, operator in enumerate(old):
        for other in SWAPS.get(type(operator), ()):
            new = ast.parse(ast.unparse(node), mode="eval").body
            if isinstance(node, ast.Compare):
                new.ops[number] = other()
            else:
                new.op = other()
            yield node, f"{_sign(operator)} to {_sign(other())}", f"({ast.unparse(new)})"
    yield from _of_operands(node)


def _of_operands(node: ast.BinOp | ast.BoolOp | ast.Compare) -> Iterator[tuple[ast.AST, str, str]]:
    """A condition that is asked for, or a flag that is given, left out."""
    if isinstance(node, ast.BoolOp):
        for number, left_out in enumerate(node.values):
            kept = [each for each in node.values if each is not left_out]
            new = ast.unparse(ast.BoolOp(node.op, kept) if len(kept) > 1 else kept[0])
            yield node, f"without operand {number + 1}", f"({new})"
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield node, "without the right", f"({ast.unparse(node.left)})"
        yield node, "without the left", f"({ast.unparse(node.right)})"


def _of_call(node: ast.Call) -> Iterator[tuple[ast.AST, str, str]]:
    function, words = ast.unparse(node.func), [ast.unparse(each) for each in (*node.args, *node.keywords)]
    for number, keyword in enumerate(node.keywords, start=len(node.args)):
        if keyword.arg not in (None, *UNTOLD):
            kept = ", ".join([*words[:number], *words[number + 1 :]])
            yield node, f"without {keyword.arg}=", f"{function}({kept})"
    if function.rpartition(".")[2] in UNDONE and node.args and not isinstance(node.args[0], ast.Starred):
        yield node, f"without {function}()", f"({words[0]})"
    plain = node.args[:2] if not any(isinstance(each, ast.Starred) for each in node.args[:2]) else []
    if len(plain) == 2 and words[0] != words[1] and function.rpartition(".")[2] not in SYMMETRIC:
        yield node, "arguments swapped", f"{function}({', '.join([words[1], words[0], *words[2:]])})"
    if (
        isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Call | ast.BinOp | ast.Subscript)
        and not _only_moves(node.func.attr, words)
    ):
        yield node, f"without .{node.func.attr}()", f"({ast.unparse(node.func.value)})"


def _only_moves(method: str, words: list[str]) -> bool:
    """Whether a call takes a tensor to a device, where the tests' is the only one."""
    return method == "cpu" or (method == "to" and len(words) == 1 and words[0].endswith("device"))


def _tests(node: ast.AST) -> list[ast.expr]:
    """What decides something in a node."""
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        return [] if ast.unparse(node.test) == "TYPE_CHECKING" else [node.test]
    return node.ifs if isinstance(node, ast.comprehension) else []


def _other_values(value: object) -> list[object]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1] if value in (0, 1) else [value + 1, value - 1]
    return [2 * value or 1.0] if isinstance(value, float) else []


def _sign(operator: ast.AST) -> str:
    """How an operator is written."""
    one, other = ast.Name("x"), ast.Name("y")
    if isinstance(operator, ast.unaryop):
        whole: ast.expr = ast.UnaryOp(operator, other)
    elif isinstance(operator, ast.boolop):
        whole = ast.BoolOp(operator, [one, other])
    elif isinstance(operator, ast.cmpop):
        whole = ast.Compare(one, [operator], [other])
    else:
        whole = ast.BinOp(one, operator, other)
    return ast.unparse(whole).strip("xy ")
