"""What is mutated, each file with the tests that should notice: the quick ones first, none that takes minutes."""

EVIDENCE_UNITS = ("tests/mechanism/test_evidence.py", "tests/mechanism/ledger/test_dispute.py")

_LEDGER = "tests/mechanism/ledger"

#: Every history that is sound or forged, and the one that differs in a field at a time.
HISTORIES = (
    f"{_LEDGER}/test_sound_histories.py",
    f"{_LEDGER}/test_forged_histories.py",
    f"{_LEDGER}/test_replay.py",
)

TARGETS: dict[str, tuple[str, ...]] = {
    "mechanism/settlement.py": (
        "tests/mechanism/test_settlement_amounts.py",
        "tests/mechanism/test_settlement.py",
        "tests/mechanism/ledger/test_dispute.py",
    ),
    "mechanism/peers.py": ("tests/mechanism/test_peers.py", "tests/mechanism/test_settlement.py"),
    "mechanism/evidence.py": EVIDENCE_UNITS,
    "mechanism/affine.py": ("tests/mechanism/test_degree_map.py", *EVIDENCE_UNITS),
    "mechanism/degree_map.py": ("tests/mechanism/test_degree_map.py", *EVIDENCE_UNITS),
    "mechanism/trees.py": ("tests/mechanism/test_trees.py", *EVIDENCE_UNITS),
    "mechanism/statements.py": ("tests/mechanism/test_statements.py", "tests/fedpeer/protocol/test_codec.py"),
    "mechanism/dispute.py": ("tests/mechanism/ledger/test_dispute.py",),
    "mechanism/lifecycle.py": ("tests/mechanism/test_lifecycle.py", *HISTORIES),
    "mechanism/records.py": (
        "tests/mechanism/test_records.py",
        "tests/mechanism/test_terms.py",
        "tests/mechanism/test_statements.py",
        "tests/fedpeer/protocol/test_codec.py",
    ),
    "mechanism/terms.py": ("tests/mechanism/test_terms.py", "tests/mechanism/test_records.py"),
    "mechanism/price.py": ("tests/mechanism/test_price.py",),
    "mechanism/unmeasured.py": HISTORIES,
    "mechanism/ledger/openings.py": (f"{_LEDGER}/test_openings.py", *HISTORIES),
    "mechanism/ledger/audit_entries.py": HISTORIES,
    "mechanism/ledger/reputation.py": ("tests/mechanism/test_reputation.py",),
    "mechanism/ledger/accounts.py": (f"{_LEDGER}/test_entries.py", *HISTORIES),
    "mechanism/ledger/entries.py": (
        f"{_LEDGER}/test_refusals_of_parts.py",
        f"{_LEDGER}/test_entries.py",
        *HISTORIES,
    ),
    "mechanism/ledger/entry.py": (f"{_LEDGER}/test_entries.py", f"{_LEDGER}/test_replay.py"),
    "mechanism/ledger/appending.py": (
        f"{_LEDGER}/test_entries.py",
        "tests/fedpeer/audit/sql/test_ledger_contract.py",
    ),
    "mechanism/ledger/key_history.py": (
        f"{_LEDGER}/test_refusals_of_parts.py",
        f"{_LEDGER}/test_entries.py",
        f"{_LEDGER}/test_replay.py",
    ),
    "mechanism/ledger/log_keys.py": (
        f"{_LEDGER}/test_refusals_of_parts.py",
        f"{_LEDGER}/test_log_keys.py",
    ),
    "mechanism/ledger/merkle.py": (
        f"{_LEDGER}/test_refusals_of_parts.py",
        f"{_LEDGER}/test_merkle.py",
        f"{_LEDGER}/test_tiles.py",
    ),
    "mechanism/ledger/note.py": (f"{_LEDGER}/test_refusals_of_parts.py", f"{_LEDGER}/test_note.py"),
    "mechanism/ledger/replay/__init__.py": (*HISTORIES, f"{_LEDGER}/test_terms_in_parts.py"),
    "mechanism/ledger/replay/comparing.py": (f"{_LEDGER}/test_comparing.py", *HISTORIES),
    "mechanism/ledger/replay/audits.py": HISTORIES,
    "mechanism/ledger/replay/forms.py": (*HISTORIES, "tests/conformance/test_conformance.py"),
    "mechanism/ledger/replay/layouts.py": (f"{_LEDGER}/test_layouts.py", *HISTORIES),
    "mechanism/ledger/replay/keys.py": (*HISTORIES, f"{_LEDGER}/test_log_keys.py"),
    "mechanism/ledger/replay/money.py": (*HISTORIES, f"{_LEDGER}/test_dispute.py"),
    "mechanism/ledger/replay/outcomes.py": (*HISTORIES, f"{_LEDGER}/test_openings.py"),
    "mechanism/ledger/replay/payouts.py": HISTORIES,
    "mechanism/ledger/replay/rounds.py": HISTORIES,
    "mechanism/ledger/replay/statements.py": (*HISTORIES, f"{_LEDGER}/test_draw_shares.py"),
    "mechanism/ledger/replay/states.py": (*HISTORIES, f"{_LEDGER}/test_terms_in_parts.py"),
    "mechanism/ledger/replay/world.py": (*HISTORIES, f"{_LEDGER}/test_terms_in_parts.py"),
    "mechanism/ledger/tiles.py": (f"{_LEDGER}/test_tiles.py",),
    "mechanism/ledger/tlog_proof.py": (f"{_LEDGER}/test_note.py", f"{_LEDGER}/test_verify.py"),
    "mechanism/ledger/verify.py": (
        f"{_LEDGER}/test_verify.py",
        f"{_LEDGER}/test_log_keys.py",
        f"{_LEDGER}/test_replay.py",
    ),
    "mechanism/ledger/witness.py": (f"{_LEDGER}/test_refusals_of_parts.py", f"{_LEDGER}/test_witness.py"),
    "fedpeer/protocol/codec.py": ("tests/fedpeer/protocol/test_codec.py",),
    "fedpeer/protocol/frames.py": ("tests/fedpeer/protocol/test_frames.py",),
    "coordinator/receiving.py": (
        "tests/coordinator/test_uploads.py",
        "tests/coordinator/test_upload_fairness.py",
    ),
    "coordinator/upload_places.py": ("tests/coordinator/test_upload_fairness.py",),
    "coordinator/commits.py": ("tests/coordinator/test_commits.py",),
    "coordinator/transaction.py": ("tests/coordinator/test_transaction.py",),
    "coordinator/payouts.py": ("tests/coordinator/test_payouts.py",),
    "coordinator/admission.py": ("tests/coordinator/test_admission.py",),
    "participant/journal.py": (
        "tests/participant/test_journal_records.py",
        "tests/participant/test_journal.py",
        "tests/participant/test_full_disk.py",
        "tests/participant/test_mistakes.py",
    ),
    "participant/steps.py": (
        "tests/participant/test_model_transfer.py",
        "tests/participant/test_steps_under_faults.py",
        "tests/participant/test_full_disk.py",
    ),
}

#: What a verifier runs, and so whose guards are tried one at a time.
VERIFIER = tuple(
    file
    for file in TARGETS
    if file.startswith("mechanism/ledger/")
    or file.removeprefix("mechanism/")
    in (
        "affine.py", "degree_map.py", "dispute.py", "evidence.py", "lifecycle.py", "peers.py", "records.py",
        "settlement.py", "statements.py", "terms.py", "trees.py", "unmeasured.py",
    )
)  # fmt: skip
