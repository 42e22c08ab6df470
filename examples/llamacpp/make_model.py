"""A random Llama as a GGUF file, for llama.cpp's real server: no download, the same bytes for the same arguments.

The vocabulary is one token per character, so a prompt has about as many tokens as characters. The rows of control and
byte tokens in the output head are zero: the model never ends by itself and never emits half a character, so every
answer has exactly the length that was asked for. With --broken-utf8 it emits nothing but half characters, and llama.cpp
breaks off its streams after HTTP 200.

The defaults give 24 MB, of which prefill takes time that can be measured on any processor. Needs numpy and gguf.
"""

import argparse
from pathlib import Path

import gguf
import numpy as np

CONTROL = ("<unk>", "<s>", "</s>")
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
CHARACTERS = "▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;!?'\"()[]{}<>|_-/\n"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_model(path: Path, *, width: int, layers: int, heads: int, context: int, broken_utf8: bool = False) -> None:
    """Write the model with 16-bit weights. `width` must be a multiple of `heads`."""
    draws = np.random.default_rng(1)
    vocabulary = [*CONTROL, *BYTES, *CHARACTERS]
    special = len(CONTROL) + len(BYTES)
    feed_forward = 2 * width

    model = gguf.GGUFWriter(str(path), "llama")
    model.add_name("firsttoken-random-llama")
    model.add_context_length(context)
    model.add_embedding_length(width)
    model.add_block_count(layers)
    model.add_feed_forward_length(feed_forward)
    model.add_head_count(heads)
    model.add_head_count_kv(heads)
    model.add_layer_norm_rms_eps(1e-5)
    model.add_rope_dimension_count(width // heads)
    model.add_vocab_size(len(vocabulary))
    model.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    model.add_tokenizer_model("llama")
    model.add_token_list([token.encode() for token in vocabulary])
    model.add_token_scores([0.0] * special + [-1.0] * len(CHARACTERS))
    model.add_token_types(
        [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
        + [gguf.TokenType.BYTE] * len(BYTES)
        + [gguf.TokenType.NORMAL] * len(CHARACTERS)
    )
    model.add_bos_token_id(1)
    model.add_eos_token_id(2)
    model.add_unk_token_id(0)
    model.add_chat_template(CHAT_TEMPLATE)

    def weights(name: str, rows: int, columns: int) -> None:
        model.add_tensor(name, (draws.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float16))

    def ones(name: str) -> None:
        model.add_tensor(name, np.ones(width, dtype=np.float32))

    weights("token_embd.weight", len(vocabulary), width)
    ones("output_norm.weight")
    head = (4 * draws.standard_normal((len(vocabulary), width)) / np.sqrt(width)).astype(np.float16)
    if broken_utf8:
        head[: special - 128] = head[special:] = 0  # what is left are the bytes that never stand alone
    else:
        head[:special] = 0
    model.add_tensor("output.weight", head)
    for layer in range(layers):
        ones(f"blk.{layer}.attn_norm.weight")
        ones(f"blk.{layer}.ffn_norm.weight")
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            weights(f"blk.{layer}.{part}.weight", width, width)
        weights(f"blk.{layer}.ffn_gate.weight", feed_forward, width)
        weights(f"blk.{layer}.ffn_up.weight", feed_forward, width)
        weights(f"blk.{layer}.ffn_down.weight", width, feed_forward)

    model.write_header_to_file()
    model.write_kv_data_to_file()
    model.write_tensors_to_file()
    model.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a random Llama as GGUF.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--width", type=int, default=384, help="a multiple of --heads [384]")
    parser.add_argument("--layers", type=int, default=8, help="[8]")
    parser.add_argument("--heads", type=int, default=6, help="[6]")
    parser.add_argument("--context", type=int, default=8192, help="tokens that it was made for [8192]")
    parser.add_argument("--broken-utf8", action="store_true", help="emit half characters only")
    given = parser.parse_args()
    write_model(
        given.out,
        width=given.width,
        layers=given.layers,
        heads=given.heads,
        context=given.context,
        broken_utf8=given.broken_utf8,
    )


if __name__ == "__main__":
    main()
