"""From a run to a verdict. Reads RUN/, writes verdict.json and report.html, decides nothing that the rule does not say.

What was measured:

1. `load`       RUN/ to one tidy frame: a row per measured request, facts only
2. `measures`   TTFT and TPOT as expressions on that frame
3. `contrasts`  pairs of an arm and its reference, and their differences block by block; `measured` those by which a
                listed measure is judged
4. `bench`      what all arms share: the frame, the rule, and the `course` of the run

What can be said of it:

5. `stats`      the block t, zones, exact binomial bounds, required blocks; numbers in, numbers out. `pooling` one
                spread for all arms, `sequences` the interval that may be looked at any time
6. `guards`     what an arm must not make worse; `functional/` what it must not break
7. `boot_log`   new fallback lines, kernels compiled in a window, sizes of the KV cache; `selection`: arms that change
                nothing
8. `cached`, `parity`   cached tokens and output lengths have to agree, or the arm does other work
9. `faults`     what stands against an arm beside its numbers; `endings`: how its boots ended, in words
10. `aa`, `order`, `bench_check`, `doubt`   the baseline against itself, drift, another load, our own lateness
11. `looks`     arms that were decided early, and rules that were amended

The verdict:

12. `verdict`   the order of the rule: pure, first hit wins, all reasons listed
13. `settle`    how many blocks and hours would decide what is open
14. `judge`     puts 1 to 13 together into a `Report` (`findings`)

What only describes:

15. `split/`    what separate engines per class would be worth; `sensitivity` to the weights of the arrivals
16. `acceptance` of drafts per class and window, and `acceptance_gain`: whether the gain follows it
17. `sweep`, `crossover`   the change over low concurrency, and where it turns; `throughput`, `batch_caps`, `notes`

The forms of a report:

18. `table`     a terminal: `heading`, `operating_point`, `arm_points`, `described`, `outcome`, `next_steps`; `lines`
                folds it
19. `document`  verdict.json, `document_shown` its describing part; `contract` and `contract_arm` its published form
20. `page/`     one HTML page; `markdown` a pull request; `relative` whatever may be published, its text by `scrub`

Before a run, `plan/` says what a design can decide. `cli` holds `report`.
"""
