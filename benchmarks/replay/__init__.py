"""How truly clients measure: ours, a raw socket, plain httpx and the peer tools, against an engine that knows.

1. `schedule`: when an answer's chunks are due, and what they hold. `engine` plays it and stamps each send: the truth.
2. `clients`: closed loops of our own, each kind a process of its own: `ours` (the replay's slot), `floor` (a raw
   socket), `plain` (httpx as people write it). `jobs` is what it is asked and what it says.
3. `peers`: the tools, installed by hand; `tools` starts each and reads its own per-request figures. `serve_script` and
   `tokenizer` run inside their environments. `command` starts the real `firsttoken replay`.
4. `pairs`: what a client has seen beside the truth, request by request.
5. `processes`: real-time priority, memory and CPU of a tree of processes, the machine in words.
6. `run`: plays the rounds and writes every batch to a raw file (`raw`).
7. `figures`, `claims`, `table`: from the raw file to figures, to what must hold, to Markdown.
"""
