"""`plan`: what an experiment costs and what it can decide, before the first boot.

1. `noise`     how much identical boots differ: measured on an earlier run's A/A copy, stated, or assumed
2. `design`    boots, hours, arms, looks and guards of the experiment, as numbers
3. `trial`     what one measure or one guard can show by itself: exact, by the noncentral t
4. `chances`   the chance of each verdict, by seeded draws through the real `verdict.decide`
5. `warnings`  what a person should know before the first boot, in sentences
6. `text`      the plan for a terminal, and as the document of `--json`

`cli` holds the command.
"""
