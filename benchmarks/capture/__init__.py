"""What the recorder costs the traffic, against no proxy, nginx and a stock mitmdump.

1. `shapes`: what an answer looks like, byte for byte. The engine sends it, the client checks it.
2. `engine`: a mock engine, its own process.
3. `jobs` and `client`: a closed-loop client, its own process; one job in, one batch of instants out.
4. `variants`: what stands between the two, and how it is started and stopped. It runs `stream_all` and `pass_only`.
5. `measure`: CPU and memory of a process and its children.
6. `scenarios`: which jobs are played, and how many rounds.
7. `run`: plays the rounds and writes every batch to a raw file (`raw`); `helpers` holds engine and client.
8. `estimates`, `claims`, `table`: from the raw file to figures, to what must hold, to Markdown.
"""
