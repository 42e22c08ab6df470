"""How often a verdict is right: the judge on boots of known effect, drawn instead of measured.

1. `noise`      what varies, and by how much: boots, classes, drift, requests
2. `drawn`      an experiment of known effects as the frame that `analysis.load` would have made of a run
3. `calibrate`  thousands of them through `analysis.judge`, counted: `python -m benchmarks.verdict.calibrate`
4. `procedures` what others do with the same numbers: Welch, permutations, Fieller
5. `demo_runs`  the demo's ladder again and again, with real processes: `python -m benchmarks.verdict.demo_runs`
6. `speed`      the report of a run with 100,000 outcomes: `python -m benchmarks.verdict.speed`
"""
