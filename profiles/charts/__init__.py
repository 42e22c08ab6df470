"""The concurrency report as pictures: `LoadView` to Vega-Lite specifications, and those to SVG text.

1. `style`     the colours, and how a specification becomes an SVG that says in words what it shows
2. `shares`    what share of wall time, busy time and arrivals lies at each c, and where to measure
3. `course`    N(t) over the whole time, gaps left out
4. `weekly`    mean in flight by hour of day and weekday
5. `classes`   at which c the arrivals of each class come

Every number is computed before it is drawn: the specifications transform nothing, and a chart has at most a few hundred
marks. They are plain data, so that nothing but vl-convert is imported to draw them; the tests hold them against the
schema of Vega-Lite.
"""
