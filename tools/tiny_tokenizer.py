"""Makes the tokenizer of the tiny Gemma 4: samples/tiny/tokenizer.json. Run it only to change the vocabulary.

A byte-fallback BPE as Gemma's (spaces become U+2581, no other pre-processing inside a word), with
Gemma 4's special tokens as single tokens and 1,024 entries. Trained on prose and on the FAQ that
ship with the project; what ships is the result, so that every machine has the same tokens.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SAMPLES = Path(__file__).parent.parent / "workloads/tunewright_workloads/samples"
SIZE = 1024
SPECIAL = (
    "<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>",
    "<|tool_response>", "<tool_response|>", '<|"|>', "<|think|>", "<|channel>", "<channel|>", "<|turn>",
    "<turn|>", "<|image>", "<|image|>", "<image|>", "<|audio>", "<|audio|>", "<audio|>", "<|video|>",
)  # fmt: skip
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))


def corpus() -> list[str]:
    """The texts that are trained on, one a paragraph or message."""
    texts = (SAMPLES / "tiny/corpus.txt").read_text(encoding="utf-8").split("\n\n")
    for line in (SAMPLES / "faq.jsonl").read_text(encoding="utf-8").splitlines():
        texts += [message["content"] for message in json.loads(line)["messages"]]
    return [text.strip() for text in texts if text.strip()]


def train(texts: list[str]) -> Tokenizer:
    """A tokenizer of SIZE entries: special tokens, the 256 bytes, ASCII, then merges."""
    learner = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.pre_tokenizer = pre_tokenizers.Split(Regex("▁|\\n|[0-9]"), "merged_with_next")
    ascii_ = [chr(code) for code in range(33, 127)]
    learner.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=SIZE, special_tokens=[*SPECIAL, *BYTES], show_progress=False, min_frequency=2,
            initial_alphabet=[*ascii_, "▁", "\n"], limit_alphabet=len(ascii_) + 2,
        ),
    )  # fmt: skip
    state = json.loads(learner.to_str())
    # The trainer knows bytes only as special tokens; in use they are ordinary entries of the model.
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] in SPECIAL]
    for token in state["added_tokens"]:
        token["normalized"] = False
    result = Tokenizer.from_str(json.dumps(state))
    result.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    result.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B:1", special_tokens=[("<bos>", SPECIAL.index("<bos>"))]
    )
    return result


def main() -> None:
    tokenizer = train(corpus())
    if tokenizer.get_vocab_size() != SIZE:
        raise SystemExit(f"the corpus is too small: {tokenizer.get_vocab_size()} entries instead of {SIZE}")
    target = SAMPLES / "tiny/tokenizer.json"
    state = json.loads(tokenizer.to_str())
    target.write_text(json.dumps(state, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
