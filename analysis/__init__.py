"""From a run to a verdict. Reads RUN/, writes verdict.json, decides nothing that the rule does not say.

The way of a verdict, in order:

1. `load`       RUN/ to one tidy frame: a row per measured request, facts only
2. `measures`   TTFT and TPOT as expressions on that frame
3. `contrasts`  pairs of an arm and its reference, and their differences block by block
4. `stats`      the block t, zones, exact binomial bounds, required blocks; numbers in, numbers out
5. `guards`     what an arm must not make worse
6. `boot_log`   new fallback lines, kernels compiled in a window, sizes of the KV cache; `selection`: arms that
                change nothing
7. `acceptance` mean acceptance length, rates and positions, per class and window
8. `course`     how far the run came, what was discarded, whether it is valid; `bench` holds what all arms share
9. `bench_check` whether the baseline met the recorded load; `doubt`: our own lateness, windows that the client would
                shape
10. `faults`    what stands against an arm beside its numbers; `cached`: whether its cached tokens agree; `endings`: how
                its boots ended, in words
11. `settle`    how many blocks and hours would decide what is open
12. `verdict`   the order of the rule: pure, first hit wins, all reasons listed
13. `judge`     puts 1 to 12 together into a `Report` (`findings`), with what only describes: `sweep`, `throughput`,
                `batch_caps`, `notes`
14. `document`  the report as verdict.json, `document_shown` its describing part
15. `table`     the same for a terminal: `heading` with `operating_point`, the arms, `described`; `lines` folds it

`cli` holds `report`.
"""
