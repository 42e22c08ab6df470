#!/bin/sh
# The whole ladder: engine, model, recording, replay, report. Each step is made once; remove work/ to begin anew.
# FIRSTTOKEN_PYTHON is the interpreter that has firsttoken; the default is this checkout's.
set -eu
cd "$(dirname "$0")"
python=${FIRSTTOKEN_PYTHON:-$(cd ../.. && pwd)/.venv/bin/python}
if [ ! -x "$python" ]; then ../../.ci/setup run; fi
firsttoken() { "$python" -m firsttoken "$@"; }

./environment.sh
[ -f work/small.gguf ] || work/venv/bin/python make_model.py work/small.gguf
[ -d work/capture ] || "$python" record_traffic.py
firsttoken concurrency work/capture
[ -d work/profile ] || firsttoken profile build work/capture -o work/profile
if [ -d work/run ]; then
    firsttoken replay experiment.toml -o work/run --resume
else
    firsttoken replay experiment.toml -o work/run
fi
firsttoken report work/run --markdown --no-html >work/report.md || [ $? -ge 3 ]
firsttoken report work/run
