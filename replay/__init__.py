"""From PROFILE/ and experiment.toml to RUN/: cold boots of each arm, the recorded traffic, every instant kept.

1. `schedule`    which requests each window sends, the same in all arms; what a closed loop does next (pure)
2. `bodies`      the recorded JSON with the declared overrides, everything else byte for byte (pure)
3. `client`      one request over one connection, its instants stamped at the read (`wire`)
4. `player`      a window: slots of the client against the schedule, with the loop's own lag
5. `metrics`     /metrics before and after, as counter deltas
6. `bootlog`     known lines of an engine's log, by a table of patterns
7. `engine`      a process from its first byte to the proof that it is gone
8. `boot`        one cold boot: port free, spawn, a real token, warm-up, windows, stop
9. `experiment`  blocks of arms in random order, resume, replacement of spoilt boots
10. `rundir`     RUN/ on disk, append-only
11. `progress`   what a person sees meanwhile
12. `simulator`  the embedded engine, a real process whose ground truth is known

`clock` is the only module here that reads a clock. `cli` holds `replay`.
"""
