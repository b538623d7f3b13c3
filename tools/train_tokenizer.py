"""Train the demo's tokenizer on the demo's text; with --check, compare instead of writing."""

from __future__ import annotations

import argparse
import json
import lzma

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from rlk.demo import text


def train() -> str:
    """Return the JSON of a byte-level BPE tokenizer with exactly text.VOCABULARY entries."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=text.VOCABULARY,
        min_frequency=1,
        special_tokens=[text.PAD, text.END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text.shipped()], trainer)
    assert tokenizer.get_vocab_size() == text.VOCABULARY
    return tokenizer.to_str()


def main() -> None:
    """Write the trained tokenizer beside the text, or say whether the shipped one is the same."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the shipped file, write nothing")
    trained = train()
    if parser.parse_args().check:
        shipped = lzma.decompress(text.TOKENIZER.read_bytes()).decode("utf-8")
        same = json.loads(shipped) == json.loads(trained)
        raise SystemExit(0 if same else "the shipped tokenizer is not what training gives")
    text.TOKENIZER.write_bytes(lzma.compress(trained.encode("utf-8"), preset=9 | lzma.PRESET_EXTREME))
    print(f"{text.TOKENIZER}: {text.VOCABULARY} entries, {text.TOKENIZER.stat().st_size} bytes")


if __name__ == "__main__":
    main()
