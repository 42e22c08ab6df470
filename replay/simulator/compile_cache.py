"""The compile cache on disk: cold the first time, warm after it, as torch.compile's is.

The key is made of the flags that change what is compiled. An arm that changes one of them is cold once, an arm that
does not is warm: with neither a wipe nor a boot beforehand the second arm would boot faster for no merit of its own.
"""

import hashlib
from pathlib import Path
from typing import Final

from profiles.files import make_folder, write_whole
from replay.simulator.steps import Settings

# A cold boot takes this many times a warm one: what a GB10 needs for 43 s of compiling and 53 s of first kernels.
COLD_TIMES: Final = 3
_SIZE: Final = 64 * 1024


def cached_graph(folder: Path, settings: Settings) -> Path:
    """Where the compiled graph of these settings lies, or would lie."""
    key = repr((settings.max_num_batched_tokens, settings.draft_tokens, settings.max_model_len))
    name = hashlib.sha256(key.encode()).hexdigest()[:12]
    return folder / "torch_compile_cache" / name / "rank_0_0" / "model"


def keep_graph(path: Path) -> None:
    """Leave a compiled graph behind for the next boot."""
    make_folder(path.parent)
    write_whole(path, bytes(_SIZE))
