"""The templates, with the words and pictures that they are written in."""

from collections.abc import Callable

from jinja2 import Environment, PackageLoader, StrictUndefined

from coordinator.task_text import training
from fedpeer.console import drawing, words


def templates(now: Callable[[], float]) -> Environment:
    """What renders `templates/`: everything that is put in is text unless it was made as markup here.

    Args:
        now: seconds since the epoch, for countdowns.
    """
    pages = Environment(
        loader=PackageLoader("fedpeer.console"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    pages.filters |= {
        "money": words.money,
        "exact_credits": words.exact_credits,
        "when": words.when,
        "degree": words.degree,
        "share": words.share,
        "duration": words.duration,
        "training": training,
        "kind": words.kind,
        "audit_stage": words.audit_stage,
        "plainly": words.plainly,
        "sentence": words.state_sentence,
    }
    pages.globals |= {
        "countdown": lambda deadline: words.countdown(deadline, now()),
        "drawing": drawing,
    }
    pages.globals["p"] = pages.get_template("parts.html").module
    return pages
