"""Types and shapes of samples: those of D_c stand in the terms, and everybody's samples are brought to them.

forms = forms_of(validation)                # for `mechanism.terms.Terms.arrays`
own = formed(samples, forms)                # of the same types and shapes, or refused
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedpeer.learning.errors import DataError
from fedpeer.learning.samples import Array, Samples
from fedpeer.learning.tables import INSTEAD, WHOLE, as_texts, dates_as_texts, first_text
from mechanism.workload import ELEMENTS, INPUT, INPUTS, TARGETS, ArrayForm


def forms_of(samples: Samples) -> tuple[ArrayForm, ...]:
    """Of inputs and targets. Raises DataError for elements that are no numbers or texts of `ELEMENTS`."""
    return tuple(ArrayForm(name, _element(name, part), part.shape[1:]) for name, part in _arrays(samples))


def texts_among(forms: Sequence[ArrayForm]) -> tuple[str, ...]:
    """The names of those inputs of several that are texts."""
    return tuple(
        form.name.removeprefix(INPUT)
        for form in forms
        if form.dtype == "text" and form.name.startswith(INPUT)
    )


def formed(samples: Samples, forms: Sequence[ArrayForm]) -> Samples:
    """The samples with inputs and targets of these types; no value is changed beyond the precision of the type.

    Raises:
        DataError: other inputs, values that the type does not have, or another shape. Targets that the type does not
            have stay as they are.
    """
    wanted, own = {form.name: form for form in forms}, dict(_arrays(samples))
    if own.keys() != wanted.keys():
        todo = ": give one array" if INPUTS in wanted else ": give arrays by name" if INPUTS in own else ""
        raise DataError(f"the samples have {', '.join(own):.200}; expected {', '.join(wanted):.200}{todo}")
    made = {name: _formed(own[name], form) for name, form in wanted.items()}
    targets = made.pop(TARGETS)
    one = made.get(INPUTS)
    inputs = {name.removeprefix(INPUT): part for name, part in made.items()} if one is None else one
    return replace(samples, inputs=inputs, targets=targets)


def _arrays(samples: Samples) -> list[tuple[str, Array]]:
    return samples.parts()[: len(samples.arrays) + 1]


def _element(name: str, array: Array) -> str:
    kind = "text" if array.dtype.kind == "U" else array.dtype.name
    if kind not in ELEMENTS:
        raise DataError(f"the {name} are {array.dtype}; expected texts, or numbers of 64 bits or less")
    return kind


def _formed(array: Array, form: ArrayForm) -> Array:
    if array.shape[1:] != form.shape:
        raise DataError(_other_shape(array, form))
    if (
        form.dtype == "text"
        and array.dtype.kind in "Mf"
        and (nothing := np.argwhere(~np.isfinite(array))).size
    ):
        raise DataError(
            f"the {form.name} have no value in row {nothing[0][0]}; expected a text everywhere: fill them in, or leave "
            "such rows out"
        )
    if array.dtype.kind == "M" and form.dtype == "text":
        array = dates_as_texts(array)
    if array.dtype.kind not in "biufU" or (array.dtype.kind == "U" and form.dtype != "text"):
        texts = array.dtype.kind == "U"
        raise DataError(
            f"the {form.name} are {'texts' if texts else array.dtype}; expected {_words(form)}, as the operator has "
            f"them{first_text(array) if texts else INSTEAD.get(array.dtype.kind, '')}"
        )
    if form.dtype == "text":
        return array if array.dtype.kind == "U" else as_texts(array)
    if array.dtype == form.dtype:
        return array
    with np.errstate(over="ignore", invalid="ignore"):  # looked for below
        made = array.astype(form.dtype)
    if made.dtype.kind != "f":
        lost = made != array
    elif made.dtype == np.float64 and array.dtype.kind in "iu":  # as `tables.samples_of` has it
        lost = (array > WHOLE) | (array < -WHOLE)
    else:
        lost = ~np.isfinite(made) & np.isfinite(array)
    if not lost.any():
        return made
    if form.name == TARGETS:  # a measured one may be whole in D_c by chance
        return array
    place = np.argwhere(lost)[0]
    raise DataError(
        f"the {form.name} have {array[tuple(place)]} in row {place[0]}; expected {_words(form)}, as the operator has "
        "them"
    )


def _words(form: ArrayForm) -> str:
    if form.dtype == "text":
        return "texts"
    what = (
        "numbers"
        if form.dtype.startswith("float")
        else "truth values"
        if form.dtype == "bool"
        else "whole numbers"
    )
    return f"{what} ({form.dtype})"


def _other_shape(array: Array, form: ArrayForm) -> str:
    own = ArrayForm(form.name, form.dtype, array.shape[1:])
    image = form.name == INPUTS and len(form.shape) == 3
    what = " (channels x height x width)" if image else ""
    todo = ": scale or cut the images, or give them as many channels" if image else ""
    if [size for size in form.shape if size != 1] == [size for size in array.shape[1:] if size != 1]:
        todo = f": reshape the array from {array.shape} to {(len(array), *form.shape)}"
    return (
        f"a sample's {form.name} are {own.size}; expected {form.size}{what}, as the operator has them{todo}"
    )
