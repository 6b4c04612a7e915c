"""All mutants of a file: one operator, constant or statement of one function is changed."""

import ast
import copy
import pathlib
import types
from collections.abc import Iterator
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAIRS = [
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
    (ast.And, ast.Or),
    (ast.Add, ast.Sub),
    (ast.Mult, ast.Div),
    (ast.BitAnd, ast.BitOr),
    (ast.LShift, ast.RShift),
]
SWAPS = dict(PAIRS) | {b: a for a, b in PAIRS} | {ast.FloorDiv: ast.Div, ast.Mod: ast.Mult, ast.BitXor: ast.BitAnd}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
NOT_RUN = {"annotation", "returns", "decorator_list", "type_params"}


@dataclass
class Mutant:
    """A node that can stand in another's place."""

    path: pathlib.Path
    tree: ast.Module
    function: tuple[str, int]  # the outermost one: qualified name, first line with decorators
    lines: range  # of the statement, or of the head of a compound one
    place: tuple[ast.AST, str, int | None]  # parent, field, index
    new: ast.AST
    what: str

    @property
    def key(self) -> str:
        return f"{self.path.relative_to(ROOT)} {self.function[0]}: {self.what}"

    def compile(self) -> types.CodeType | None:
        """Compile the changed function. Only a forked child may call this, because it changes the tree."""
        parent, name, index = self.place
        if index is None:
            setattr(parent, name, self.new)
        else:
            getattr(parent, name)[index] = self.new
        codes = [compile(ast.fix_missing_locations(self.tree), str(self.path), "exec", dont_inherit=True)]
        for code in codes:
            if (code.co_qualname, code.co_firstlineno) == self.function:
                return code
            codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
        return None


def _replacements(node: ast.AST, field: str) -> Iterator[ast.AST]:
    """Nodes to put in place of `node`, which is in this field of its parent."""
    if isinstance(node, ast.Compare):
        for at, operator in enumerate(node.ops):
            changed = copy.copy(node)
            changed.ops = [*node.ops[:at], SWAPS[type(operator)](), *node.ops[at + 1 :]]
            yield changed
    elif isinstance(node, ast.BoolOp | ast.BinOp | ast.AugAssign) and type(node.op) in SWAPS:
        changed = copy.copy(node)
        changed.op = SWAPS[type(node.op)]()
        yield changed
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield from (ast.Constant(node.value + 1), ast.Constant(node.value - 1))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
        yield ast.Call(ast.Name(CALLS[node.func.id], ast.Load()), node.args, node.keywords)
    elif isinstance(node, ast.Return) and not isinstance(node.value, None | ast.Constant):
        yield ast.Return(ast.Constant(None))
    if field in ("test", "ifs") and not isinstance(node, ast.Compare | ast.UnaryOp):
        yield ast.UnaryOp(ast.Not(), node)
    stored = isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name | ast.Tuple)
    called = isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant)
    if stored or called or isinstance(node, ast.AugAssign | ast.Raise | ast.Delete | ast.Continue | ast.Break):
        yield ast.Pass()


def _children(node: ast.AST, in_function: bool) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Children whose code runs when a function is called, with their fields. Texts and errors' arguments stay."""
    if isinstance(node, ast.JoinedStr | ast.Raise):
        return
    skipped = NOT_RUN | {"args"} if isinstance(node, FUNCTIONS) else NOT_RUN
    for field, value in ast.iter_fields(node):
        if field in skipped or not (in_function or field in ("body", "orelse")):
            continue
        if isinstance(value, list):
            yield from ((child, field, at) for at, child in enumerate(value) if isinstance(child, ast.AST))
        elif isinstance(value, ast.AST):
            yield value, field, None


def mutants(path: pathlib.Path) -> Iterator[Mutant]:
    tree = ast.parse(path.read_text())

    def visit(node: ast.AST, scope: str, function: tuple[str, int] | None, lines: range) -> Iterator[Mutant]:
        for child, field, at in _children(node, function is not None):
            inner, outer, where = scope, function, lines
            if isinstance(child, ast.stmt):
                body = getattr(child, "body", None)
                last = max(child.lineno, body[0].lineno - 1) if body else child.end_lineno or child.lineno
                where = range(child.lineno, last + 1)
            if function is not None:
                for new in _replacements(child, field):
                    what = f"`{_short(child)}` → `{_short(new)}`"
                    yield Mutant(path, tree, function, where, (node, field, at), ast.copy_location(new, child), what)
            elif isinstance(child, FUNCTIONS | ast.ClassDef):
                inner = f"{scope}.{child.name}" if scope else child.name
                if isinstance(child, FUNCTIONS):
                    if child.name in ("__repr__", "__str__"):
                        continue
                    outer = inner, min(part.lineno for part in [child, *child.decorator_list])
            yield from visit(child, inner, outer, where)

    return visit(tree, "", None, range(0))


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 90 else f"{text[:87]}..."
