"""The functional guard: an arm may not break what clients rely on, however fast it is.

1. `answers`   what the probes of a run brought, by boot, and which answers are right
2. `drift`     length and identity of the answers: what another rounding may rightly change
3. `guard`     each trait judged against the baseline's own two copies
"""
