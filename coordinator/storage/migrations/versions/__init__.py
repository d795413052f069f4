"""The schema's revisions, in order."""
