"""The report as pictures: findings in, Vega-Lite specifications out.

1. `panel`        a specification with its heading and the sentence that it says, and what all panels share
2. `forest`       the change of each arm on one measure: the mix, its classes and the A/A copy, with the decision lines
3. `ecdf`         TTFT of every boot as a distribution, and the mean over the boots
4. `blocks`       the difference of each block: drift, and boots of two kinds
5. `concurrency`  how many arrivals meet each c, and which c the run measured
6. `acceptance`   acceptance length of the baseline against the change of TPOT, a point per class
7. `crossover`    change of TTFT and decode rate over the levels of a sweep, a row per class
8. `timeline`     every boot in its place: booting, measuring, discarded

Colours and fonts are those of `profiles.charts.style`. A panel is narrow enough for a phone; a page lays several beside
each other. Changes are in per cent. Blue is a gain, orange a loss, grey is open, and each has a shape of its own too.
"""
