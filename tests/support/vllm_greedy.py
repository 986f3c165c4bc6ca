"""Run by vLLM's own Python: greedy tokens and log-probabilities of prompts, of a model or of base + adapter.

python vllm_greedy.py REQUEST.json ANSWER.json
"""

import json
import sys


def main() -> None:
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    with open(sys.argv[1]) as file:  # noqa: PTH123
        request = json.load(file)
    engine = LLM(
        request["model"], dtype="float32", max_model_len=256, max_num_seqs=4, enforce_eager=True,
        hf_overrides=request.get("overrides") or {}, enable_lora=bool(request.get("adapter")), max_lora_rank=8,
    )  # fmt: skip
    lora = LoRARequest("adapter", 1, request["adapter"]) if request.get("adapter") else None
    answers = engine.generate(
        [{"prompt_token_ids": p} for p in request["prompts"]],
        SamplingParams(temperature=0, max_tokens=request["tokens"], logprobs=0, ignore_eos=True),
        lora_request=lora,
    )
    found = []
    for answer in answers:
        out = answer.outputs[0]
        found.append(
            {
                "tokens": list(out.token_ids),
                "logprobs": [p[t].logprob for p, t in zip(out.logprobs, out.token_ids, strict=True)],
            }
        )
    with open(sys.argv[2], "w") as file:  # noqa: PTH123
        json.dump(found, file)


if __name__ == "__main__":
    main()
