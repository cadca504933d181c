"""An OpenAI-compatible server over the simulated model, and that model's tokenizer as a folder."""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any

from tools.scripted_upstream import Script, ScriptedUpstream

from parrot_engine.backends.base import BackendError
from parrot_engine.backends.sim.sampler import Sampler
from parrot_engine.sampling import Guide, Sampling
from parrot_engine.text.byte_tokens import CONTROL


class SimUpstream(ScriptedUpstream):
    """Takes prompts as token ids and names the ids of what it says, as vLLM does."""

    def __init__(self, window_tokens: int) -> None:
        super().__init__(model="sim", owner="vllm", window_tokens=window_tokens)

    def script_for(self, request: dict[str, Any]) -> Script:
        sampling = _sampling(request)
        try:
            sampler = Sampler(request["prompt"], sampling, seed=0)
        except BackendError as error:
            return [{"status": 400, "body": {"error": {"message": str(error)}}}]
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        script: Script = []
        for _ in range(sampling.max_tokens):
            token, logprobs = sampler.draw()
            ended = sampler.ends(token)
            text = "" if ended or token > 255 else decoder.decode(bytes((token,)))
            chunk: dict[str, Any] = {
                "text": text,
                "token_ids": [token],
                "finish_reason": "stop" if ended else None,
            }
            if logprobs is not None:
                chunk["logprobs"] = {
                    "tokens": [f"token_id:{token}"],
                    "token_logprobs": [logprobs.logprob],
                    "top_logprobs": [{f"token_id:{other}": value for other, value in logprobs.top}],
                }
            script.append(chunk)
            if ended:
                return script
        script[-1]["finish_reason"] = "length"
        return script


def byte_tokenizer_folder(folder: Path) -> Path:
    """Writes a tokenizer.json with the simulated model's token ids."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    spec = {
        "model": {"type": "BPE", "vocab": _byte_level_alphabet(), "merges": []},
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "added_tokens": [
            {"id": index, "content": marker, "special": True, "normalized": False}
            | {"single_word": False, "lstrip": False, "rstrip": False}
            for marker, index in CONTROL.items()
        ],
    }
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    return folder


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the bytes."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + place): byte for place, byte in enumerate(others)
    }


def _sampling(request: dict[str, Any]) -> Sampling:
    same = ("max_tokens", "min_tokens", "temperature", "top_k", "min_p", "seed", "ignore_eos", "logprobs")
    penalties = ("presence_penalty", "frequency_penalty", "repetition_penalty")
    guides = [_guide(*item) for item in (request.get("structured_outputs") or {}).items()]
    return Sampling(
        **{name: request[name] for name in (*same, *penalties) if name in request},
        stop_token_ids=tuple(request.get("stop_token_ids", ())),
        logit_bias={int(token): bias for token, bias in request.get("logit_bias", {}).items()},
        guide=guides[0] if guides else None,
    )


def _guide(kind: str, spec: Any) -> Guide:
    return Guide("choice", choices=tuple(spec)) if kind == "choice" else Guide("regex", str(spec))
