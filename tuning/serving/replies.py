"""The two interfaces' formats: what a request's body is, and what a reply says. Pure.

Fields were read in the wheels of SGLang 0.5.9 and 0.5.23: meta_info of /generate (managers/tokenizer_manager.py), and
the chunks of /v1/chat/completions (entrypoints/openai/serving_chat.py). What a server may have made up is checked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lanewise.errors import InputError
from tuning.serving.prompts import Prompt
from tuning.serving.served import Api, Load
from tuning.workload import short

_PATHS = {Api.GENERATE: "/generate", Api.CHAT: "/v1/chat/completions"}
_HISTOGRAMS = ("spec_correct_drafts_histogram", "spec_accept_histogram")
"""0.5.23's name, and 0.5.9's."""
_MOST_COUNT = 1 << 40
_MOST_POSITIONS = 1024
_MOST_MESSAGE = 300


class UnreadableError(Exception):
    """A reply is not what such a server says; the message tells in what."""


class AbortedError(UnreadableError):
    """The server says that it gave the request up, or what is wrong with it."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a whole reply says; as in `records.Request`."""

    prompt_tokens: int
    completion_tokens: int
    verify_passes: int | None
    accepted: tuple[int, ...]
    finish: str
    output: str


def path_of(api: Api) -> str:
    """Where requests of that kind go."""
    return _PATHS[api]


def body_of(prompt: Prompt, load: Load) -> bytes:
    """The request of one prompt; greedy.

    Raises:
        InputError: token ids cannot be sent through the chat interface.
    """
    if load.api is Api.GENERATE:
        sampling = {"temperature": 0, "max_new_tokens": load.max_tokens, "ignore_eos": load.ignore_eos}
        what = {"input_ids": prompt.tokens} if prompt.tokens else {"text": prompt.text}
        return json.dumps({**what, "sampling_params": sampling, "stream": load.stream}).encode()
    if prompt.tokens:
        raise InputError(
            f"prompt {prompt.id} is token ids, and the interface is {load.api}",
            expected="prompts of text: a chat template is applied to words",
            todo="name other prompts, or use the native interface",
        )
    body: dict[str, Any] = {
        "model": load.model,
        "messages": [{"role": "user", "content": prompt.text}],
        "max_tokens": load.max_tokens,
        "temperature": 0,
        "ignore_eos": load.ignore_eos,
        "return_spec_tokens_details": True,  # SGLang from 0.5.19; unknown fields are passed over
        "stream": load.stream,
    }
    if load.stream:
        body["stream_options"] = {"include_usage": True}
    return json.dumps(body).encode()


def tells_tokens(api: Api, event: bytes) -> bool:
    """Whether an event of a stream brings tokens; a chat has others too, for the role, the end and the counts.

    Raises:
        UnreadableError: it is not JSON.
    """
    if api is Api.GENERATE:
        return True
    choices = _document(event).get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return False
    delta = choices[0].get("delta")
    return isinstance(delta, dict) and any(delta.get(key) for key in ("content", "reasoning_content", "tool_calls"))


def read_reply(api: Api, events: Sequence[bytes]) -> Reply:
    """A complete reply.

    Args:
        api: the interface that it is from.
        events: the one document of a reply that is no stream, the last event of a native stream, or all of a chat's.

    Raises:
        AbortedError: the server gave the request up.
        UnreadableError: it is not such a reply, or has no exact counts.
    """
    documents = [_document(event) for event in events]
    for document in documents:
        if document.get("error"):
            raise AbortedError(f"the server says: {_said(document)}")
    if not documents:
        raise UnreadableError("a stream without any event")
    return _native(documents[-1]) if api is Api.GENERATE else _chat(documents)


def message_of(body: bytes) -> str:
    """What an error's body says, in one short line."""
    try:
        return _said(_document(body))
    except UnreadableError:
        return short(" ".join(body[:_MOST_MESSAGE].decode("utf-8", "replace").split()))


def _said(document: dict[str, Any]) -> str:
    error = document.get("error", document.get("message", document.get("detail", document)))
    message = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(message)[:_MOST_MESSAGE].split()) if isinstance(message, str) else short(message)


def _native(document: dict[str, Any]) -> Reply:
    meta = document.get("meta_info")
    if not isinstance(meta, dict):
        raise UnreadableError(f"meta_info is {short(meta)}")
    reason = meta.get("finish_reason")
    tokens = _count(meta, "completion_tokens")
    ids = document.get("output_ids")
    return Reply(
        prompt_tokens=_count(meta, "prompt_tokens"),
        completion_tokens=tokens,
        verify_passes=_passes(meta),
        accepted=_histogram(meta),
        finish=_finish(reason.get("type") if isinstance(reason, dict) else reason, reason),
        output=_identity(ids if isinstance(ids, list) and len(ids) == tokens else document.get("text")),
    )


def _chat(documents: Sequence[dict[str, Any]]) -> Reply:
    finish, texts, usage, details = None, [], None, {}
    for document in documents:
        usage = document.get("usage") or usage
        extension = document.get("sglext")
        if isinstance(extension, dict) and isinstance(extension.get("spec_tokens_details"), dict):
            details = extension["spec_tokens_details"]
        for choice in _dictionaries(document.get("choices")):
            finish = choice.get("finish_reason") or finish
            said = choice.get("delta") or choice.get("message")
            if isinstance(said, dict):
                texts += [part for key in ("reasoning_content", "content") if isinstance(part := said.get(key), str)]
    if not isinstance(usage, dict):
        raise UnreadableError("no usage, so no exact count of tokens")
    return Reply(
        prompt_tokens=_count(usage, "prompt_tokens"),
        completion_tokens=_count(usage, "completion_tokens"),
        verify_passes=_passes(details),
        accepted=_histogram(details),
        finish=_finish(finish, finish),
        output=_identity("".join(texts)),
    )


def _document(event: bytes) -> dict[str, Any]:
    try:
        document = json.loads(event)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"not JSON: {short(event[:_MOST_MESSAGE])}") from error
    if not isinstance(document, dict):
        raise UnreadableError(f"not a mapping: {short(document)}")
    return document


def _dictionaries(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _count(document: dict[str, Any], key: str) -> int:
    value = document.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MOST_COUNT:
        raise UnreadableError(f"{key} is {short(value)}")
    return value


def _passes(document: dict[str, Any]) -> int | None:
    """Verify passes, where the server counts them."""
    return _count(document, "spec_verify_ct") or None if "spec_verify_ct" in document else None


def _histogram(document: dict[str, Any]) -> tuple[int, ...]:
    """How often 0, 1, 2, ... drafts were accepted."""
    values: object = next((document[name] for name in _HISTOGRAMS if document.get(name)), [])
    if not isinstance(values, list) or len(values) > _MOST_POSITIONS:
        raise UnreadableError(f"the histogram of accepted drafts is {short(values)}")
    return tuple(_count({"accepted drafts": value}, "accepted drafts") for value in values)


def _finish(kind: object, reason: object) -> str:
    if kind == "abort":
        raise AbortedError(f"aborted: {_said(reason) if isinstance(reason, dict) else 'the server does not say why'}")
    if not isinstance(kind, str) or not kind:
        raise UnreadableError(f"finish_reason is {short(reason)}")
    return kind[:_MOST_MESSAGE]


def _identity(output: object) -> str:
    """Hash of tokens or text; "" where the reply holds neither as a whole."""
    if isinstance(output, str):
        return hashlib.sha256(output.encode("utf-8", "surrogatepass")).hexdigest()
    return hashlib.sha256(json.dumps(output).encode()).hexdigest() if isinstance(output, list) else ""
