"""How commands end, besides 0; see `fedpeer.__main__`. Some commands have further codes of their own."""

#: What the user can put right: input, configuration, files.
WRONG = 2

#: Refused, or not to be had now: by the other side, or by who holds the lease on the database.
REFUSED = 3

#: Another process takes part under the same identity.
TAKEN_OVER = 5
