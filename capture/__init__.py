"""The recorder: a mitmproxy in front of the engine that writes down when each request came and what became of it.

Two processes. The proxy carries traffic and takes instants; its scribe does everything that may be slow or fail.
Between them is a pipe that the proxy never waits for. What is in the pipe survives a kill of the proxy.

    clients ⇄ proxy ⇄ engine
                ╚══ frames ══▶ scribe ──▶ CAPTURE/, live line, metrics

In the order of a recording:

 1. `cli`, `settings`      `firsttoken record`: checks what a person can get wrong, then starts the proxy
 2. `proxy`, `options`     the lean mitmproxy master: reverse mode, TLS, a clean stop
 3. `connection`, `http1`  one client connection, without what mitmproxy makes expensive and with what it cannot pass on
 4. `session`              the proxy's side: starts the scribe, beats once a second, replaces a scribe that died
 5. `recorder`, `stay`     mitmproxy's hooks to frames; `relay` is what a response passes through, `terminal` knows the
                          last piece of a stream by its bytes
 6. `frames`, `outbox`     the form of the frames, and the end of the pipe that never waits
 7. `scribe`               the other process: frames to lines
 8. `redact`               what may be kept of a request; `headers`, `digests` and `block_key` are its parts
 9. `window`, `journal`    one window of recording: manifest, durable append, what happens on a full disk
10. `shelf`, `segments`    closed segments are compressed, and deleted when they have outlived their time
11. `live`, `levels`       running counts, with the exact time at each concurrency
12. `status`               the live line and the summary; `metrics_page` serves the same to Prometheus
13. `check`, `purge`       `firsttoken capture check|purge`; `evidence` and `walk` read even a damaged one

`addon` loads the recorder into a stock `mitmdump -s`. The form of the files is `profiles.captures`.

The rule of this package: traffic is production, a record is only a record. Nothing here may delay, change or break what
passes through, and nothing of a prompt, a key or a header reaches the disk unless a person asked for it.
"""
