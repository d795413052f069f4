"""The console script `fedpeer`. It stands beside the package, so that it can say what hides the package."""

import sys
from importlib.util import find_spec
from pathlib import Path


def main() -> int:
    """Runs `fedpeer.__main__.main`, where `fedpeer` is the package that was installed with this module."""
    spec, home = find_spec("fedpeer"), Path(__file__).resolve().parent / "fedpeer"
    found = None if spec is None or spec.origin is None else Path(spec.origin).resolve()
    if found is None or not found.is_relative_to(home):
        sys.stderr.write(
            f"fedpeer: {found} hides the package fedpeer, which is in {home}, since it stands before it on Python's "
            "path; take its folder out of PYTHONPATH, or rename it\n"
            if found
            else f"fedpeer: the package fedpeer is missing in {home}; install it again\n"
        )
        return 2
    from fedpeer.__main__ import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
