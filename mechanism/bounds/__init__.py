"""Bounds on what heterogeneity costs: divergence and convergence; the gap that is paid on is `mechanism.gap_bound`.

Each function states its assumptions, checks what can be checked, and returns a number.
"""
