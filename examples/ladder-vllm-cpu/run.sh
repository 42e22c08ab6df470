#!/bin/sh
# The whole ladder: engine, model, recording, replay, report. Each step is made once; remove work/ to begin anew.
# It may be stopped (Ctrl-C) and called again on another evening: the replay goes on at the next boot.
# FIRSTTOKEN_PYTHON is the interpreter that has firsttoken; the default is this checkout's.
set -eu
cd "$(dirname "$0")"
python=${FIRSTTOKEN_PYTHON:-$(cd ../.. && pwd)/.venv/bin/python}
if [ ! -x "$python" ]; then ../../.ci/setup run; fi
export FIRSTTOKEN_PYTHON="$python"
vllm_python=${FIRSTTOKEN_VLLM_VENV:-work/venv}/bin/python
firsttoken() { "$python" -m firsttoken "$@"; }

./environment.sh
[ -d work/smollm2 ] || "$vllm_python" make_model.py work/smollm2
# The engine's own histogram is written when the recording is whole.
[ -f work/engine-ttft.json ] || { rm -rf work/capture work/profile; "$vllm_python" record_traffic.py; }
firsttoken concurrency work/capture
[ -d work/profile ] || firsttoken profile build work/capture -o work/profile --classes classes.toml
resume=
[ -d work/run ] && resume=--resume
# It ends with 1 where an arm did not boot, and one of ours does not: the journal tells whether the run is done.
firsttoken replay experiment.toml -o work/run $resume || [ $? -eq 1 ]
grep -q '"event":"run_done"' work/run/events.jsonl
"$python" check.py
firsttoken report work/run --markdown --no-html >work/report.md || [ $? -ge 3 ]
firsttoken report work/run
