"""`fedpeer new`: a folder with a task, its terms and a test, which run as they stand."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fedpeer.cli.errors import CommandError
from fedpeer.protocol.model_file import encode_model

#: What is written, as it lies beside this module; programs have the suffix ".in" there, being none of this package's.
SCAFFOLD = Path(__file__).with_name("scaffold")

#: The first model of the scaffold's task: `MyTask().start_weights()`.
_START = {"bias": np.zeros(3, np.float32), "weight": np.zeros((2, 3), np.float32)}


def new(folder: Annotated[Path, typer.Argument(help="A new or empty folder.")]) -> None:
    """Write a task, its terms, a participant and a test that run as they stand."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CommandError(f"{folder} exists and is not an empty folder; name another")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in sorted(SCAFFOLD.iterdir()):
            (folder / file.name.removesuffix(".in")).write_text(file.read_text())
        (folder / "start.safetensors").write_bytes(encode_model(_START))
    except OSError as error:
        raise CommandError(f"{folder} cannot be written: {error.strerror}; name another folder") from None
    typer.echo(f"{folder} is ready; README.md in it says what each file is. Next:\n")
    typer.echo(f"    cd {folder}\n    fedpeer simulate my_task:MyTask --participants 5")
