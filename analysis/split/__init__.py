"""The workload split: what separate engine instances per class would be worth on the recorded mix.

1. `blocks`    one measure of an arm against the baseline, as arrays of class × block
2. `held_out`  which arm each class gets, chosen in the other blocks and valued in the one left out
3. `line`      the share of some classes in the mix from which on one arm gains for all
4. `worth`     both put together, for an arm and for the best of all arms
5. `limits`    what these numbers cannot know
6. `shown`     the split for verdict.json and for a terminal
"""
