"""The mutants of a module: small changes that a test should notice.

    boundary    < as <=, > as >=, and back               negated     a condition turned round, `not` left out
    compared    < as >=, == as !=, in as not in          logic       and as or, and back; one operand left out
    arithmetic  + as -, * as //, << as >>, & as |        number      n + 1, n - 1; True as False
    word        a name in quotes, or bytes, changed      removed     a statement left out
    guard       an `if` that raises or refuses left out  returned    None in place of what is returned
    swapped     two neighbouring arguments               raised      another exception raised, or caught
    chosen      min as max, any as all, floor as ceiling, sorted as list

A mutant replaces the text of one node, so that the rest of the file stays as it is. Docstrings, annotations, decorators
and formatted sentences are left alone: no test should hang on them.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

_BOUNDARY: dict[type[ast.cmpop], str] = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_OPPOSITE: dict[type[ast.cmpop], str] = {
    ast.Lt: ">=",
    ast.LtE: ">",
    ast.Gt: "<=",
    ast.GtE: "<",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_ARITHMETIC: dict[type[ast.operator], ast.operator] = {
    ast.Add: ast.Sub(),
    ast.Sub: ast.Add(),
    ast.Mult: ast.FloorDiv(),
    ast.Div: ast.Mult(),
    ast.FloorDiv: ast.Mult(),
    ast.Mod: ast.Mult(),
    ast.Pow: ast.Mult(),
    ast.LShift: ast.RShift(),
    ast.RShift: ast.LShift(),
    ast.BitAnd: ast.BitOr(),
    ast.BitOr: ast.BitAnd(),
    ast.BitXor: ast.BitAnd(),
}
_CHOSEN = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "sorted": "list",
    "ROUND_FLOOR": "ROUND_CEILING",
    "ROUND_CEILING": "ROUND_FLOOR",
    "ROUND_HALF_EVEN": "ROUND_HALF_UP",
}

#: Calls whose arguments may change places.
_COMMUTATIVE = {"min", "max", "add", "multiply", "gcd", "union"}

#: Calls whose text is for people.
_SENTENCES = {"Verdict", "Refusal", "warning", "info", "debug", "error", "exception"}


@dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes:
        name: where and what, the same as long as the function's text is: `Class.function:operator:old -> new#n`.
        line: of the changed text.
        source: the module with the change.
    """

    name: str
    operator: str
    line: int
    source: str


@dataclass(frozen=True)
class _Change:
    operator: str
    node: ast.expr | ast.stmt
    text: str
    scope: str


def mutants(source: str) -> list[Mutant]:
    """All mutants of a module, in the order of the text; each is Python, as expressions take expressions' places."""
    tree = ast.parse(source)
    lines = source.encode().split(b"\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    encoded = source.encode()
    found: list[Mutant] = []
    seen: Counter[str] = Counter()
    sources = {source}
    for change in _Walk().changes(tree):
        node = change.node
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        mutated = (encoded[:begin] + change.text.encode() + encoded[end:]).decode()
        if mutated in sources:
            continue
        sources.add(mutated)
        old = _short(encoded[begin:end].decode())
        name = f"{change.scope}:{change.operator}:{old} -> {_short(change.text)}"
        seen[name] += 1
        found.append(Mutant(f"{name}#{seen[name]}", change.operator, node.lineno, mutated))
    return found


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 90 else f"{words[:60]}...{words[-27:]}"


class _Walk:
    """Walks a module and yields changes; knows the scope and leaves alone what is no behaviour."""

    def __init__(self) -> None:
        self._scope: list[str] = []

    def changes(self, tree: ast.Module) -> Iterator[_Change]:
        yield from self._body(tree.body)

    def _change(self, operator: str, node: ast.expr | ast.stmt, new: ast.AST | str) -> _Change:
        text = new if isinstance(new, str) else ast.unparse(new)
        if isinstance(node, ast.expr) and not isinstance(new, str):
            text = f"({text})"
        return _Change(operator, node, text, ".".join(self._scope) or "module")

    def _body(self, body: list[ast.stmt]) -> Iterator[_Change]:
        for statement in body:
            yield from self._statement(statement)

    def _statement(self, node: ast.stmt) -> Iterator[_Change]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._scope.append(node.name)
            if not isinstance(node, ast.ClassDef):
                for default in [*node.args.defaults, *node.args.kw_defaults]:
                    if default is not None:
                        yield from self._expression(default)
            yield from self._body(node.body)
            self._scope.pop()
            return
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Pass | ast.Global | ast.Nonlocal):
            return
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return  # a docstring, or an ellipsis
        yield from self._whole(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "targets", "target", "type_comment"):
                continue
            if isinstance(node, ast.Raise) and name == "exc" and isinstance(value, ast.Call):
                continue  # its words are for people; the type is changed as a whole
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.stmt):
                    yield from self._statement(child)
                elif isinstance(child, ast.expr):
                    yield from self._expression(child)
                elif isinstance(child, ast.ExceptHandler):
                    yield from self._handler(child)
                elif isinstance(child, ast.match_case):
                    yield from self._body(child.body)
                elif isinstance(child, ast.withitem):
                    yield from self._expression(child.context_expr)

    def _whole(self, node: ast.stmt) -> Iterator[_Change]:
        """Changes of a statement as a whole."""
        if isinstance(node, ast.Expr | ast.AugAssign | ast.Assert | ast.Continue | ast.Break | ast.Delete):
            guard = isinstance(node, ast.Expr) and _checks(node.value)
            yield self._change("guard" if guard else "removed", node, "pass")
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield self._change("raised", node.exc, 'RuntimeError("another")')
        if isinstance(node, ast.If | ast.While):
            if isinstance(node, ast.If) and _refuses(node.body):
                yield self._change("guard", node.test, "False")
            yield self._change("negated", node.test, ast.UnaryOp(ast.Not(), node.test))
        if isinstance(node, ast.Assign) and not all(isinstance(t, ast.Name) for t in node.targets):
            yield self._change("removed", node, "pass")
        if isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
            yield self._change("returned", node, "return None")

    def _handler(self, node: ast.ExceptHandler) -> Iterator[_Change]:
        if isinstance(node.type, ast.Tuple):
            for i in range(len(node.type.elts)):
                rest = [e for j, e in enumerate(node.type.elts) if j != i]
                yield self._change("raised", node.type, ast.Tuple(rest, ast.Load()))
        elif node.type is not None:
            yield self._change("raised", node.type, "ZeroDivisionError")
        yield from self._body(node.body)

    def _expression(self, node: ast.expr) -> Iterator[_Change]:
        if isinstance(node, ast.JoinedStr):
            return
        yield from self._alone(node)
        if isinstance(node, ast.Call):
            yield from self._call(node)
            if _called(node) in _SENTENCES or _called(node) == "cast":
                return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from self._expression(child)
            elif isinstance(child, ast.keyword):
                if child.arg != "strict":  # of zip: says what is known already
                    yield from self._expression(child.value)
            elif isinstance(child, ast.comprehension):
                yield from self._expression(child.iter)
                for condition in child.ifs:
                    yield self._change("negated", condition, ast.UnaryOp(ast.Not(), condition))
                    yield self._change("removed", condition, "True")
                    yield from self._expression(condition)

    def _alone(self, node: ast.expr) -> Iterator[_Change]:
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
            for operator, table in (("boundary", _BOUNDARY), ("compared", _OPPOSITE)):
                if (new := table.get(type(node.ops[0]))) is not None:
                    yield self._change(operator, node, f"(({left}) {new} ({right}))")
        elif isinstance(node, ast.Compare):
            for i, op in enumerate(node.ops):
                for operator, table in (("boundary", _BOUNDARY), ("compared", _OPPOSITE)):
                    if (new := table.get(type(op))) is not None:
                        words = [ast.unparse(node.left)]
                        for j, (o, right_) in enumerate(zip(node.ops, node.comparators, strict=True)):
                            plain = ast.unparse(ast.Compare(ast.Name("a"), [o], [ast.Name("b")]))[2:-2]
                            words += [new if j == i else plain, ast.unparse(right_)]
                        yield self._change(operator, node, f"({' '.join(words)})")
        elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            if isinstance(node.left, ast.JoinedStr | ast.Constant) and isinstance(
                getattr(node.left, "value", ""), str
            ):
                return
            yield self._change(
                "arithmetic", node, ast.BinOp(node.left, _ARITHMETIC[type(node.op)], node.right)
            )
        elif isinstance(node, ast.BoolOp):
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield self._change("logic", node, ast.BoolOp(other, node.values))
            for i in range(len(node.values)):
                rest = [v for j, v in enumerate(node.values) if j != i]
                yield self._change("logic", node, rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
            yield self._change("negated", node, node.operand)
        elif isinstance(node, ast.IfExp):
            yield self._change(
                "negated", node, ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
            )
        elif isinstance(node, ast.Constant):
            yield from self._constant(node)
        elif isinstance(node, ast.Name) and node.id in _CHOSEN:
            yield self._change("chosen", node, _CHOSEN[node.id])

    def _constant(self, node: ast.Constant) -> Iterator[_Change]:
        value = node.value
        if isinstance(value, bool):
            yield self._change("number", node, str(not value))
        elif isinstance(value, int | float):
            for new in (value + 1, value - 1):
                yield self._change("number", node, f"({new!r})")
        elif isinstance(value, bytes):
            yield self._change("word", node, repr(value + b"X"))
        elif isinstance(value, str) and " " not in value.strip():
            yield self._change("word", node, repr(value + "X"))

    def _call(self, node: ast.Call) -> Iterator[_Change]:
        if _called(node) in _COMMUTATIVE:
            return
        for i in range(len(node.args) - 1):
            one, two = node.args[i], node.args[i + 1]
            alike = isinstance(one, ast.Name | ast.Attribute) and isinstance(two, ast.Name | ast.Attribute)
            if alike and ast.unparse(one) != ast.unparse(two):
                words = [*node.args[:i], two, one, *node.args[i + 2 :]]
                yield self._change("swapped", node, ast.Call(node.func, words, node.keywords))
        for one_, two_ in zip(node.keywords, node.keywords[1:], strict=False):
            if isinstance(one_.value, ast.Attribute) and isinstance(two_.value, ast.Attribute):
                # The first takes what the second has.
                yield self._change("swapped", one_.value, two_.value)


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _checks(node: ast.expr) -> bool:
    """Whether a statement only calls something that is there to refuse."""
    if isinstance(node, ast.Await):
        node = node.value
    return isinstance(node, ast.Call) and _called(node).lstrip("_").startswith(
        ("check", "require", "refuse", "expect", "at_most", "ensure", "must")
    )


def _refuses(body: list[ast.stmt]) -> bool:
    last = body[-1]
    if isinstance(last, ast.Raise):
        return True
    value = last.value if isinstance(last, ast.Return | ast.Expr) else None
    return isinstance(value, ast.Call) and _called(value).lstrip("_").startswith(("refuse", "fail", "fault"))


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
