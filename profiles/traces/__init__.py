"""Traces of others: public formats in, and out again. `firsttoken profile import` and `export`.

A tour, in the order in which a file becomes a profile:

1. `formats`     the tables: name of a format → its reader or writer, unit, and what is in it
2. `rows`        lines of a file in pieces, each with its number; what is dropped and why (`Tally`)
3. `instants`    text to nanoseconds, exactly: decimals of any unit, dates with any fraction
4. one module per format: `mooncake`, `azure`, `burstgpt`, `timed_trace`, `openai_batch`, `har`, `mitm`, `intervals`,
   `own_table`. Each has one `read(path, asked) -> Imported`, which reads one file and writes nothing;
   `exchanges` is what `har` and `mitm` share, `json_trace` what `mooncake` and `timed_trace` share
5. `timeline`    instants of a file to a profile's: order, zero, window, unit check; `steps` finds and spreads batches
6. `imported`    what a reader is asked (`Asked`) and what it gives (`Imported`); `join` puts several files together
7. `structure`   block ids to shared prefixes; `bodies` does what is to be done with prompts
8. `export`      a profile as a trace of others: `export_tokens` (lengths, block ids), `export_bodies`, `export_table`
9. `cli`         the commands `import` and `export`

To add a format: write a module with a `read`, and give it a line in `formats.IMPORTS`. The reader takes its lines from
`rows`, hands every row that it cannot use to its `Tally` (with the line number and a reason in few words), makes a
table with `at_ns` in the clock of the file, and lets `timeline.arrange` do the rest. It says in `notes` what it took
for granted: unit, zone, order, and which fields the format lacks. It never guesses silently and never stops in the
middle of a file.
"""
