"""Writes the reference pages of the SDK from its docstrings, or checks that they are current.

python docs/generate_reference.py [--check]
"""

import argparse
import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"

#: Page name to the modules that it documents, in order.
PAGES = {
    "participant": ["participant.sync", "participant.task", "participant.effort", "participant.report",
                    "participant.work", "participant.policy", "participant.accounting", "participant.backoff"],
    "asyncio": ["participant.aio"],
    "raw-client": ["participant.client", "participant.endpoint"],
    "errors": ["participant.errors"],
    "adapters": ["participant.adapters.workload", "participant.adapters.counting", "participant.adapters.torch",
                 "participant.adapters.sklearn", "participant.adapters.numpy", "participant.adapters.flower"],
    "configuration": ["participant.config"],
}  # fmt: skip

#: What the clients have in common is documented with each of them; so is what tasks have of a base that is not public.
SHARED = ("participant.membership", "participant.client", "participant.calls", "participant.adapters.fitting")


def page(title: str, modules: list[str]) -> str:
    """The Markdown of one page."""
    parts = [f"# {title}", "", "Generated from the docstrings by `python docs/generate_reference.py`."]
    for name in modules:
        module = import_module(name)
        parts += ["", f"## {name}", "", *_text(module)]
        for item_name, item in _public(module):
            parts += [
                "",
                f"### {item_name}",
                "",
                "```python",
                _signature(item_name, item),
                "```",
                "",
                *_text(item),
            ]
            if inspect.isclass(item):
                for method_name, method in _methods(item):
                    parts += ["", f"#### {item_name}.{method_name}", "", "```python",
                              _signature(method_name, method), "```", "", *_text(method)]  # fmt: skip
    return "\n".join(parts).rstrip() + "\n"


def _public(module: Any) -> Iterator[tuple[str, Any]]:
    """Classes and functions that the module itself defines, in the order of its source."""
    items = [
        (name, item)
        for name, item in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(item) or inspect.isfunction(item))
        and item.__module__ == module.__name__
    ]
    yield from sorted(items, key=lambda pair: inspect.getsourcelines(pair[1])[1])


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    bases = [
        base
        for base in reversed(kind.__mro__)
        if base.__module__ in SHARED or base is kind or base.__name__.startswith("_")
    ]
    for name in dict.fromkeys(name for base in bases for name in vars(base)):
        member = inspect.getattr_static(kind, name)
        plain = member.__func__ if isinstance(member, classmethod) else member
        if not name.startswith("_") and (inspect.isfunction(plain) or isinstance(plain, property)):
            yield name, plain


def _signature(name: str, item: Any) -> str:
    """How the source declares it: what it takes, in the source's own words."""
    if isinstance(item, property):
        return f"@property\n{_signature(name, item.fget)}"
    node = ast.parse(textwrap.dedent(inspect.getsource(item))).body[0]
    if isinstance(node, ast.ClassDef):
        made = item.__init__
        if "__init__" not in vars(item) and getattr(made, "__module__", "") in SHARED:
            node.body += ast.parse(textwrap.dedent(inspect.getsource(made))).body
        return _class_signature(node)
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    node.body, node.decorator_list = [ast.Expr(ast.Constant(...))], []
    text = ast.unparse(node).rpartition(":")[0]
    if not hasattr(item, "__wrapped__"):
        return text
    # A call of the SDK: described by its steps, and shown as what follows from them.
    takes, result = text.partition("def ")[2].rpartition(" -> ")[0], _result(node, inspect.signature(item))
    return ("async def " if inspect.iscoroutinefunction(item) else "def ") + f"{takes} -> {result}"


def _result(node: ast.FunctionDef | ast.AsyncFunctionDef, signature: inspect.Signature) -> str:
    returns = node.returns
    if isinstance(returns, ast.Constant):
        returns = ast.parse(returns.value, mode="eval").body
    for part in ast.walk(returns):
        if isinstance(part, ast.Subscript) and ast.unparse(part.value) == "Steps":
            result = ast.unparse(part.slice)
            if not result.endswith("Kind"):
                return result.replace("M.", "market_pb2.")
    # An iterator, or the client's own class.
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", inspect.formatannotation(signature.return_annotation))


def _class_signature(node: ast.ClassDef) -> str:
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    lines = [f"class {node.name}({bases})" if bases else f"class {node.name}"]
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            lines.append(f"    {_signature_of(part)}")
        elif isinstance(part, ast.AnnAssign) and not ast.unparse(part.target).startswith("_"):
            lines.append(f"    {ast.unparse(part)}")
    return "\n".join(lines)


def _signature_of(node: ast.FunctionDef) -> str:
    return f"def {node.name}({ast.unparse(node.args)})"


def _text(item: Any) -> list[str]:
    text = inspect.getdoc(item) or ""
    if not text:
        return []
    # Indented parts of a docstring are laid out by hand; Markdown keeps them as they are inside a fence.
    return ["```text", text, "```"] if "\n" in text else [text]


def main() -> int:
    """Writes or checks every page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a page is stale")
    check = parser.parse_args().check
    FOLDER.mkdir(exist_ok=True)
    stale = []
    for name, modules in PAGES.items():
        path, text = FOLDER / f"{name}.md", page(name, modules)
        if path.exists() and path.read_text() == text:
            continue
        stale.append(path.name)
        if not check:
            path.write_text(text)
    if stale and check:
        sys.stderr.write(f"stale: {', '.join(stale)}; run python docs/generate_reference.py\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    raise SystemExit(main())
