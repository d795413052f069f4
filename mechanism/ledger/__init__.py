"""The ledger: a Merkle tree of canonical entries, double-entry accounts, and what an outsider rechecks of both.

Pure like the rest of `mechanism`: it reads and writes through a store that is handed in (`store.LedgerStore`).

    merkle      RFC 6962 tree, RFC 9162 proofs
    tiles       the tree's inner nodes as C2SP tlog-tiles, and proofs from them
    note        C2SP signed notes, checkpoints, verification keys, cosignatures
    tlog_proof  a receipt that verifies offline (C2SP tlog-proof)
    witness     what a witness signs, and what it refuses
    accounts    double entry with reservations, in integer micro-credits
    entries     the form of an entry; events of a task as entries
    appending   append and post, as one step of the store's transaction
    replay      everything that a finished ledger claims, recomputed
"""
