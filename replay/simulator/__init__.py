"""The embedded engine: a real process that behaves like a small vLLM server and says that it is a simulation.

The way of a request through it, with the module that owns each step:

1. `cli`       the command `firsttoken engine`, its flags named as vLLM names them; `options` those of the simulation
2. `lifecycle` bind, boot, listen, serve, stop: the process from its first line to its exit code
3. `bootlines` what the boot prints, in vLLM's words, so that the same patterns match
4. `wire`      HTTP/1.1: bytes in, requests out; a connection that notices when its client has gone
5. `chat`      OpenAI chat and completions: the body that is read, the chunks that are written, in the `shape` asked for
6. `text`      what the model answers, how long, and how predictable it is; all of it follows from the prompt alone;
               `composed` is what is more than text: tool calls, JSON of a schema, reasoning, stop sequences
7. `cache`     which head of a prompt is already computed
8. `steps`     the machine: which tokens share a step and what the step costs; pure, in any time you like
9. `server`    the iteration loop in real time, and the endpoints
10. `flights`  a request on its way: the fault it asked for, and the ground truth about it
11. `replies`  the bytes of its answer, each stamped where it is handed to the kernel
12. `metrics`  the counters as Prometheus text, in vLLM's names

It misbehaves on request and never by chance. `faults` lists how. `supervisor` restarts it, `leftovers` are the
processes it does not take along, `flood` fills its log, `compile_cache` makes its first boot cold, `jit` compiles while
serving.

`traffic` is the small production that the demo records: three users with thinking time.

A token is a word: prompts and answers are split at white space, and no tokenizer is loaded. No arm has a constant of
its own: two arms differ by the flags that enter the cost model of `steps`, and by nothing else.
"""
