"""What both ends of the wire agree on: limits, signed statements, model files, certificates, errors.

Imports neither torch nor scipy, and nothing of the coordinator or the participant.
"""
