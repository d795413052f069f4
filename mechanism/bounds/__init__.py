"""Bounds on what heterogeneity costs: divergence, generalization gap, convergence.

Each function states its assumptions, checks what can be checked, and returns a number. The forms named
`paper_*` are those of Pang et al. 2025, kept beside the corrected ones; they are not bounds
(docs/mechanism.md, section 6).
"""
