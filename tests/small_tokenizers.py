"""Tokenizers of a few hundred tokens, built in memory, for tests that must run without downloads."""

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

LINES = ["the quick brown fox jumps", "über naïve café", "你好，世界", "emoji 🦙🦙 here", "a literal \ufffd mark"]


def byte_level() -> tokenizers.Tokenizer:
    """Return a byte-level BPE like GPT-2's, with a special token and two ordinary added ones, one with spaces in it."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator(LINES, trainer)
    inner.add_special_tokens(["<|end|>"])
    inner.add_tokens([AddedToken("<tool>"), AddedToken("two é words")])
    return inner


def byte_fallback() -> tokenizers.Tokenizer:
    """Return a BPE like Llama 2's (SentencePiece): a space mark, byte tokens, a leading space that decoding strips."""
    pieces = [
        "<unk>",
        "<s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "▁▁",
        *"abcdeé\ufffd",
        "ab",
        "▁a",
        "▁ab",
    ]
    vocabulary = {piece: id for id, piece in enumerate(pieces)}
    merges = [("▁", "▁"), ("a", "b"), ("▁", "a"), ("▁", "ab")]
    inner = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.add_special_tokens(["<unk>", "<s>"])
    return inner


def byte_fallback_merges() -> tokenizers.Tokenizer:
    """Return a BPE like Gemma 4's: the same without a leading space; runs of line feeds; merges against their ids."""
    pieces = ["<pad>", "<bos>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "bc", "ab", *"abcé"]
    pieces += ["▁▁", "▁ab", *("\n" * count for count in range(1, 5))]
    merges = [("\n", "\n"), ("\n\n", "\n\n"), ("\n\n", "\n"), ("▁", "▁"), ("a", "b"), ("b", "c"), ("▁", "ab")]
    vocabulary = {piece: id for id, piece in enumerate(pieces)}
    inner = tokenizers.Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, fuse_unk=True))
    inner.normalizer = normalizers.Replace(" ", "▁")
    inner.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    inner.add_special_tokens(["<pad>", "<bos>", "<turn|>"])
    inner.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    return inner


def large_byte_level() -> tokenizers.Tokenizer:
    """Return one like `byte_level` of 40,000 tokens: every two of 34 characters, and every three of them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    few = alphabet[33:67]
    pairs = [(first, second) for first in few for second in few]
    merges = [*pairs, *((first + second, third) for first, second in pairs for third in few)]
    tokens = [*alphabet, *(first + second for first, second in merges)]
    inner = tokenizers.Tokenizer(models.BPE({token: id for id, token in enumerate(tokens)}, merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<|end|>"])
    return inner
