"""The recorder: a mitmproxy in front of the engine that writes down when each request came and what became of it.

In the order of a recording:

1. `cli`       `firsttoken record`: checks what a person can get wrong, then starts the proxy
2. `proxy`     the lean mitmproxy master: reverse mode, four addons, a clean stop on SIGINT and SIGTERM
3. `session`   one window of recording: opens the journal, beats once a second, keeps the manifest, closes
4. `recorder`  mitmproxy's hooks to journal lines: forward first, then book, but book before the last piece is released
5. `journal`   durable append to CAPTURE/segment-NNNNNN.jsonl; a full disk costs records, never traffic

`addon` loads 3 to 5 into a stock `mitmdump -s`. The form of the files is `profiles.captures`.

The rule of this package: traffic is production, a record is only a record. Nothing here may delay, change or break what
passes through, and nothing of a prompt, a key or a header reaches the disk unless a person asked for it.
"""
