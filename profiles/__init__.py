"""The nouns and the file formats of firsttoken. The other three packages import this one and nothing else.

The modules, in the order of the pipeline:

1. **What a request is.** `records` what it did: instants, counts, outcome. `sse` bytes of a stream in, events out;
   `dialects` what an event means; `stream` one body read as it arrives, with `encodings` and `repeats`; `answers` the
   answer as a client sends it back. `requests` what was asked for, without its text; `prompts` reads all dialects;
   `languages` tells the language, `credentials` knows what looks like a key
2. **Captures in.** `captures` the form of CAPTURE/; `capture_folder` its directory; `scan` captures to columns, a piece
   at a time; `skew` clocks that were not in step
3. **A profile.** `build` CAPTURE/ to PROFILE/; `table` its columns; `write` writes it, whoever found the requests;
   `profile_folder` whole or not at all;
   `profile` its form, and reads it back; `origin` where it comes from
4. **Concurrency.** `concurrency` what it is, and its rules; `sweep` the same over arrays; `calendar` by hour, weekday;
   `confidence` what the observed time supports; `service_time` for traces without ends. `view` computes the
   report once, and `histogram`, `load_report`, `page`, `charts` draw it; `caveats` its limits in sentences
5. **What load it is.** `character` the records, `characterise` fills them with `arrivals`, `lengths`, `days`; `show` is
   the text. `drift` whether a load has changed, `diff` the text of that
6. **Classes and sessions.** `classes.toml` the rules; `class_rules` and `class_conditions` read them, `rule_columns`
   makes expressions of them, `classify` applies them, `unseen` says what they could not see. `session_names` ids that
   are stated, `session_memory` what can be continued, `sessions` the evidence
7. **Without text.** `digests` keyed ids of prompts; `structure` turns them into columns and lets them go; `prefixes`
   who shares how much; `segments` the shape of prompts; `measurable` what cannot be answered so. `synthesise` rebuilds
   prompts of `words` in `shapes`, with the `ratios` of characters per token
8. **Traces of others.** `traces` in and out, one module per format
9. **Made loads.** `builtin` generates requests; `shape` cuts, thins, grows and mixes, with `shape_links` and
   `shape_bodies`
10. **Experiments and runs.** `experiment` experiment.toml, its form in `experiment_file`, its refusals in
   `experiment_checks`, lines by `toml_lines`; `planned` what each boot plays and whether the profile carries it;
   `starter` writes one from a profile, with the numbers of `starter_numbers` and an engine of `starter_engines`;
   `validate` reads any artefact wholly; `runs` the layout of RUN/ that `replay` writes and `analysis` reads

`files`, `units`, `errors` and `version` serve all of them. `cli` holds the group `profile`. Modules that end in `_cli`
are commands, which `lazy_group` imports only when they are used.
"""
