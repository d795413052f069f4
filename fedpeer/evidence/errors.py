"""What evidence refuses: a set-up with which nothing could be measured. A bad submission is a verdict, no error."""


class EvidenceError(ValueError):
    """D_c, recipe or number of shadows with which no degree can be measured; the message says what to change."""
