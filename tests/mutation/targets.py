"""What is mutated, each file with the tests that should notice: the quick ones first, none that takes minutes."""

EVIDENCE_UNITS = ("tests/mechanism/test_evidence.py", "tests/mechanism/ledger/test_dispute.py")

LEDGER = (
    "tests/mechanism/ledger",
    "tests/fedpeer/audit/test_ledger_tampering.py",
    "tests/fedpeer/audit/test_ledger_cli.py",
)

ROUNDS = (
    "tests/integration/test_round.py",
    "tests/integration/test_refusals.py",
    "tests/integration/test_resume.py",
)

TARGETS: dict[str, tuple[str, ...]] = {
    "mechanism/settlement.py": (
        "tests/mechanism/test_settlement_amounts.py",
        "tests/mechanism/test_settlement.py",
        "tests/mechanism/test_enclosure.py",
        "tests/mechanism/ledger/test_dispute.py",
    ),
    "mechanism/enclosure.py": ("tests/mechanism/test_enclosure.py", "tests/mechanism/test_settlement.py"),
    "mechanism/peers.py": ("tests/mechanism/test_peers.py", "tests/mechanism/test_settlement.py"),
    "mechanism/evidence.py": EVIDENCE_UNITS,
    "mechanism/trees.py": ("tests/mechanism/test_trees.py", *EVIDENCE_UNITS),
    "mechanism/statements.py": ("tests/mechanism/test_statements.py", "tests/fedpeer/protocol/test_codec.py"),
    "mechanism/dispute.py": ("tests/mechanism/ledger/test_dispute.py",),
    "mechanism/ledger/accounts.py": LEDGER,
    "mechanism/ledger/entries.py": LEDGER,
    "mechanism/ledger/entry.py": LEDGER,
    "mechanism/ledger/forms.py": LEDGER,
    "mechanism/ledger/journal.py": LEDGER,
    "mechanism/ledger/merkle.py": LEDGER,
    "mechanism/ledger/note.py": LEDGER,
    "mechanism/ledger/replay.py": LEDGER,
    "mechanism/ledger/tiles.py": LEDGER,
    "mechanism/ledger/tlog_proof.py": LEDGER,
    "mechanism/ledger/verify.py": LEDGER,
    "mechanism/ledger/witness.py": LEDGER,
    "fedpeer/protocol/codec.py": (
        "tests/fedpeer/protocol/test_codec_fields.py",
        "tests/fedpeer/protocol/test_codec.py",
    ),
    "fedpeer/protocol/frames.py": ("tests/fedpeer/protocol/test_frames.py",),
    "coordinator/uploads.py": (
        "tests/coordinator/test_upload_fairness.py",
        "tests/coordinator/test_uploads.py",
    ),
    "coordinator/transactions.py": (
        "tests/coordinator/test_transactions.py",
        *ROUNDS,
        "tests/integration/test_dispute.py",
    ),
    "coordinator/admission.py": (
        "tests/integration/test_refusals.py",
        "tests/integration/test_fuzz.py",
        "tests/integration/test_idle_connections.py",
    ),
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
