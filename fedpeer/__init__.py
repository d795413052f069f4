"""The command line: composes the commands of the coordinator, the participant and the mechanism."""
