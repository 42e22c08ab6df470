"""From PROFILE/ and experiment.toml to RUN/: cold boots of each arm, the recorded traffic, every instant kept.

What is asked, pure and fixed before the first boot:

1. `schedule`     which requests each window sends, the same in all arms; `timeline` paces them as they were recorded,
                  whole or in `pieces`
2. `bodies`       the recorded JSON with the declared overrides, everything else byte for byte (`splice`)
3. `load`         the windows with their bodies, made once
4. `plan`         the run before its first boot, and its manifest

How truly it is asked:

5. `client`       slots that send one request at a time (`flight`), stamped at the read (`wire`, `connection`, `answer`)
6. `player`       a window: slots of the client against the schedule (`slots`), with the loop's own lag (`loop_lag`)
7. `doubt`        what says that a result cannot be trusted; `selftest` measures it on this machine

Whom it is asked:

8. `engines`      the launchers: process, docker, podman, command, external; `launch_plan`, what one is started with in
                  its `environment`; `tie` and `guard`, who stops it when we are killed
9. `readiness`    a real token from the wanted model on our own process
10. `isolation`   passes share nothing in the prefix cache (`prefix_proof` judges)
11. `warmup`      every shape that is measured, as long as a pilot boot found
12. `session`     the life of an engine, `window_facts` of its windows, its `liveness` between them; `boot` what comes
                  before and after it; `watch` what ends it early
13. `bootlog`     known lines of an engine's log, by a table (`log_table`); what two boots print alike
                  (`log_signature`), what was selected (`log_facts`), and why it ended (`log_end`)
14. `metrics`     /metrics before and after, as counter deltas
15. `functional`  a small fixed prompt set behind the load, never timed; `said` reads the answers

What surrounds it:

16. `telemetry`   clocks, power, memory and load once a second (`gpus`, `host`)
17. `surroundings` what is no arm's fault; `discards` applies the rule to it; `caches` one policy for all arms; `memory`

The run:

18. `experiment`  blocks of arms in random order, replacement of spoilt boots, looks; `standing` what is still to boot,
                  `resume` a run that was stopped, or whose rule was amended
19. `rundir`      RUN/ on disk, append-only and synced
20. `progress`    what a person sees meanwhile
21. `simulator`   the embedded engine, a real process whose ground truth is known

`clock` is the only module here that reads a clock. `cli` holds `replay`, `selftest_cli` holds `selftest`, and `doctor`
looks at the machine before a run.
"""
