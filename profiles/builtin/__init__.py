"""Built-in profiles: load for people who have not recorded theirs yet. Generated, seeded, and labelled synthetic.

1. `draws`      seeded draws, the same everywhere
2. `lengths`    tokens of a text, estimated from its characters: no tokenizer is loaded
3. `questions`, `hungarian`, `programs`, `records`, `passages`   the texts: templates and vocabularies of our own
4. `workloads`  the six workloads and the two mixes: who writes them, how long they are
5. `generate`   a name and a seed to a table of requests with their bodies
6. `cli`        the command `profile builtin`

The texts make sense, since what a draft model guesses depends on them: an extraction copies from its record, an answer
stands in one of the passages, a program runs.
"""
