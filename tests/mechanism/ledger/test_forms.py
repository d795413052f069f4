"""An entry is taken by its form only where the general way would take it too."""

from fractions import Fraction

from hypothesis import example, given, settings
from hypothesis import strategies as st

from mechanism.ledger import entries
from mechanism.ledger.entry import Entry
from mechanism.ledger.forms import ModelForm, model_form, plain_verdict
from mechanism.settlement import MICRO, Assessment
from mechanism.statements import ModelStatement

names = st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?", fullmatch=True)
digests = st.binary(min_size=32, max_size=32)
statements = st.builds(
    ModelStatement,
    submission_id=names,
    task_id=names,
    terms_digest=digests,
    participant_id=names,
    round=st.integers(1, 10**6),
    model_sha256=digests,
    model_bytes=st.integers(1, 10**12),
    samples=st.integers(1, 10**9),
    nonce=st.binary(min_size=16, max_size=16),
)
ONE = ModelStatement("s-1", "task", bytes(32), "p001", 3, bytes([7] * 32), 64, 10, bytes(16))


def entry_of(form: ModelForm) -> Entry:
    """The entry that the fields of a form make."""
    statement = ModelStatement(
        form.submission_id,
        form.task_id,
        bytes.fromhex(form.terms),
        form.participant_id,
        int(form.round),
        bytes.fromhex(form.model_sha256),
        int(form.model_bytes),
        int(form.samples),
        bytes.fromhex(form.nonce),
    )
    return entries.model(statement, bytes.fromhex(form.signature), keys=bytes.fromhex(form.keys))


@given(statements, st.binary(max_size=80), digests)
def test_a_models_form_says_what_its_entry_says(
    statement: ModelStatement, signature: bytes, keys: bytes
) -> None:
    entry = entries.model(statement, signature, keys=keys)
    form = model_form(entry.data)
    assert form is not None
    assert (form.id, entry_of(form).data) == (entry.id, entry.data)
    assert form.statement in entry.data.decode()


def test_a_late_model_has_another_form() -> None:
    assert model_form(entries.model(ONE, b"signature", late=True).data) is None


@settings(max_examples=1000)
@given(
    st.integers(0, 700),
    st.integers(0, 20),
    st.one_of(st.binary(max_size=3), st.text('0123456789abcdef"{},:-', max_size=3).map(str.encode)),
)
@example(0, 0, b"")
@example(0, 0, b" ")
def test_bytes_that_are_changed_are_taken_only_where_they_are_an_entry(at: int, cut: int, put: bytes) -> None:
    data = entries.model(ONE, bytes(8)).data
    changed = data[:at] + put + data[at + cut :]
    form = model_form(changed)
    if form is not None:
        assert entry_of(form).data == changed


def test_ranges_are_those_of_the_statement() -> None:
    data = entries.model(ONE, bytes(8)).data
    for old, new in [
        (b'"samples":10,', b'"samples":0,'),
        (b'"samples":10,', b'"samples":010,'),
        (b'"samples":10,', b'"samples":-1,'),
        (b'"samples":10,', b'"samples":99999999999999999999,'),
        (b'"p001"', b'"P001"'),
        (b'"s-1"', b'"-s"'),
        (b"/s-1", b"/s-2"),
        (b'"0000000000000000', b'"000000000000000'),
    ]:
        assert data.count(old) >= 1
        assert model_form(data.replace(old, new, 1)) is None


@given(names, st.integers(1, 10**6), names, digests, st.integers(0, MICRO), st.integers(1, 10**9))
def test_a_plain_verdict_is_written_as_its_entry_is(
    task_id: str, round_: int, name: str, digest: bytes, micro: int, scale: int
) -> None:
    degree = Fraction(micro, MICRO * scale)
    assessment = Assessment(name, digest, degree, round(degree * MICRO))
    written = plain_verdict(task_id, round_, assessment, str(degree))
    assert written == entries.verdict(task_id, round_, assessment).data
