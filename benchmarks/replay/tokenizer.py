"""Makes a tiny tokenizer: `python tokenizer.py FOLDER`, with a peer's Python. Those tools do not start without one.

It knows the bytes and " hi", the word that the engine says, as one token.
"""

import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers  # type: ignore[import-not-found]
from transformers import PreTrainedTokenizerFast  # type: ignore[import-not-found]

TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"


def main() -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["<end>", *letters, "hi", "Ġhi"]
    merges = [("h", "i"), ("Ġ", "hi")]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    ready = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<end>", eos_token="<end>", pad_token="<end>", unk_token="<end>"
    )
    ready.chat_template = TEMPLATE
    ready.save_pretrained(sys.argv[1])
    assert len(ready(" hi hi")["input_ids"]) == 2


if __name__ == "__main__":
    main()
