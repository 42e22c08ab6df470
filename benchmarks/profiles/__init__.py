"""What a profile of many requests costs: time and peak memory of its build and its sweep, as the requests grow.

1. `make`   a capture of any number of requests, as a recorder would have written it, without bodies
2. `steps`  each thing that is measured, as a process of its own: ours, the floor of scanning the same files, pandas
3. `run`    plays the steps side by side at each size and prints the table: `python -m benchmarks.profiles.run`
"""
