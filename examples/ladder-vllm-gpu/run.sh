#!/bin/sh
# The whole ladder on a machine with a GPU: model, recording, replay, report. Each step is made once; remove work/ to
# begin anew. It may be stopped (Ctrl-C) and called again: the replay goes on at the next boot.
#
#   VLLM_VENV=/path/to/venv ./run.sh
#
# VLLM_VENV is an environment with vllm, and with gguf and accelerate, which unpack the model. FIRSTTOKEN_PYTHON is the
# interpreter that has firsttoken; the default is this checkout's.
set -eu
cd "$(dirname "$0")"
: "${VLLM_VENV:?run.sh: set VLLM_VENV to the environment that has vllm}"
python=${FIRSTTOKEN_PYTHON:-$(cd ../.. && pwd)/.venv/bin/python}
if [ ! -x "$python" ]; then ../../.ci/setup run; fi
firsttoken() { "$python" -m firsttoken "$@"; }

mkdir -p work
# What vLLM and its compilers keep goes into work/cache, whose size each boot writes down.
cat >work/vllm.new <<END
#!/bin/sh
cache="$(pwd)/work/cache"
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_USE_FLASHINFER_SAMPLER=0
export VLLM_CACHE_ROOT="\$cache/vllm" TRITON_CACHE_DIR="\$cache/triton" TORCHINDUCTOR_CACHE_DIR="\$cache/inductor"
exec "$VLLM_VENV/bin/vllm" "\$@"
END
chmod +x work/vllm.new
mv work/vllm.new work/vllm

[ -d work/smollm2 ] || "$VLLM_VENV/bin/python" ../ladder-vllm-cpu/make_model.py work/smollm2
[ -d work/profile ] || { rm -rf work/capture; "$python" record_traffic.py; }
[ -d work/profile ] || firsttoken profile build work/capture -o work/profile
if [ -d work/run ]; then
    firsttoken replay experiment.toml -o work/run --resume || [ $? -eq 1 ]    # one arm fails, as it should
else
    firsttoken replay experiment.toml -o work/run || [ $? -eq 1 ]
fi
firsttoken report work/run --markdown --no-html >work/report.md || [ $? -ge 3 ]
firsttoken report work/run
