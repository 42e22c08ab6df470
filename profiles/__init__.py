"""The nouns and the file formats of firsttoken. The other three packages import this one and nothing else.

The pipeline, in order, with the module that owns each step's form:

1. `records`     what a request did: instants, counts, outcome (`Exchange` recorded, `Outcome` replayed)
2. `sse`         bytes of a stream in, events out; no I/O
3. `dialects`    which event is a token, what is usage, what is an error, what ends the stream
4. `stream`      one response body read as it arrives: first byte, first token, usage, outcome; `encodings` undoes gzip
                and its kind, `repeats` passes over events that are alike
5. `requests`    what a request asked for, as lengths and parameters, without its text; `prompts` reads all dialects,
                `credentials` knows what looks like a key
6. `captures`    CAPTURE/ segments to exchanges and windows; `capture_folder` its directory and manifest
7. `concurrency` exact time-weighted concurrency of half-open intervals
8. `classify`    workload class of a request, by ordered rules
9. `build`       CAPTURE/ to PROFILE/ (`profile` reads it back)
10. `experiment` experiment.toml as typed data, with the checks that need no run
11. `runs`       the layout of RUN/ that `replay` writes and `analysis` reads

`files`, `units` and `errors` serve all of them. `cli` holds `concurrency` and `profile`, `histogram` draws the former.
"""
