"""Our part of the process that serves HTTP: reads, checks and packs what requests carry; and our endpoints.

Two steps, since a streamed answer has sent its status before SGLang tokenises the request: ``admit_*`` run in
front of the endpoints, refuse malformed hints with HTTP 400 and leave what they read on the request;
`pack_into` runs where all endpoints meet, `TokenizerManager.generate_request`. Imports SGLang's HTTP server:
use it there only.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections import Counter
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from sglang.srt.entrypoints.http_server import get_global_state
from sglang.srt.managers.io_struct import DumperControlReqInput, GenerateReqInput
from sglang.srt.utils.auth import AuthLevel, auth_level

from sglang_agentcache.complete import PATH as COMPLETE_PATH
from sglang_agentcache.disagg.channel import PATH as ENDED_PATH
from sglang_agentcache.disagg.channel import SECRET_HEADER
from sglang_agentcache.disagg.messages import ENDED, MAX_BATCH_BYTES, parse_batch
from sglang_agentcache.disagg.settings import SECRET, SECRET_FLAG, secret
from sglang_agentcache.predictor.store import ArtefactError
from sglang_agentcache.serving.carriers import Carried, ResponseChains, attach, find, payloads
from sglang_agentcache.serving.hints import COMPLETE, KEY, Completion, HintError, Hints, parse, parse_text
from sglang_agentcache.serving.reload import RELOAD, Artefact, requested_path
from sglang_agentcache.serving.tools import declared_tools

_INACTIVE = "agentcache is not active in this server: start it with --radix-cache-backend agentcache"

_chains = ResponseChains()


def admit_generate(obj: GenerateReqInput, request: Request) -> None:
    """Check the explicit payloads of a ``/generate`` request; leave what else it carries on ``request``."""
    declared = Hints()
    with _Refusing():
        for where, payload in payloads(obj.sampling_params, obj.kv_hints):
            parse(payload, where)
        labels = obj.custom_labels if isinstance(obj.custom_labels, dict) else {}
        if KEY in labels:
            # SGLang would take it for a label of its metrics.
            obj.custom_labels = {name: value for name, value in labels.items() if name != KEY} or None
            declared = parse_text(labels[KEY], f"custom_labels.{KEY}")
    session_params = obj.session_params if isinstance(obj.session_params, dict) else {}
    found, source = find(obj.session_id or session_params.get("id"), request.headers, {})
    request.state.agentcache = Carried(declared, found, source)


async def admit_openai(request: Request, response_id: str | None = None) -> None:
    """The same for a request of the OpenAI or Anthropic API; ``response_id`` is that of its answer, if any.

    The body is read as the client sent it, since SGLang's request classes drop most fields of interest.
    """
    body = await request.json()
    body = body if isinstance(body, dict) else {}
    declared = Hints()
    custom_params, metadata = body.get("custom_params"), body.get("metadata")
    with _Refusing():
        if isinstance(metadata, dict) and metadata.get(KEY) is not None:
            declared = parse_text(metadata[KEY], f"metadata.{KEY}")
        if isinstance(custom_params, dict) and custom_params.get(KEY) is not None:
            declared = parse(custom_params[KEY], f"custom_params.{KEY}").over(declared)
    found, source = find(body.get("session_id"), request.headers, body)
    if response_id is not None and not found:
        found, source = _chains.follow(body.get("previous_response_id"), response_id), _chains.source
    request.state.agentcache = Carried(declared, found, source, declared_tools(body))


def pack_into(obj: GenerateReqInput, request: object) -> None:
    """Pack what was carried into ``obj.sampling_params``.

    Requests of the Engine and of gRPC have not been admitted: what is malformed in them is dropped here,
    because it would not survive the way to the scheduler (see `hints.pack`).
    """
    carried = getattr(request.state, "agentcache", Carried()) if isinstance(request, Request) else Carried()
    obj.sampling_params = attach(obj.sampling_params, carried, _prompts(obj))


def _prompts(obj: GenerateReqInput) -> int:
    if isinstance(obj.text, list):
        return len(obj.text)
    if isinstance(obj.input_ids, list) and obj.input_ids and isinstance(obj.input_ids[0], list):
        return len(obj.input_ids)
    return 1


@auth_level(AuthLevel.ADMIN_OPTIONAL)
async def complete(request: Request) -> dict[str, Any]:
    """Release what only this trajectory holds, on every data-parallel rank; tokens are sums over them."""
    body = await _json(request)
    with _Refusing():
        completion = Completion.parse(body)
    answers = await _ask(completion_message(completion))
    return {
        "trajectory_id": completion.trajectory_id,
        "known": any(answer["known"] for answer in answers),
        "released_tokens": sum(answer["released_tokens"] for answer in answers),
        "deferred_tokens": sum(answer["deferred_tokens"] for answer in answers),
    }


@auth_level(AuthLevel.ADMIN_OPTIONAL)
async def reload_predictor(request: Request) -> dict[str, Any]:
    """Replace the predictor on every rank by the artefact in a directory of this machine, or on none."""
    body = await _json(request)
    with _Refusing():
        path = requested_path(body)
    try:
        artefact = await asyncio.to_thread(Artefact.read, path)
    except ArtefactError as refused:
        raise HTTPException(400, f"path: {refused}") from None
    answers = await _ask(DumperControlReqInput(method=RELOAD, body=artefact.pack()))
    for answer in answers:
        if "refused" in answer:
            raise HTTPException(400, answer["refused"])
    return {"path": str(path), "artefact": answers[0]["artefact"]}


@auth_level(AuthLevel.NORMAL)
async def ended(request: Request) -> dict[str, Any]:
    """A decode worker tells how requests ended that began here (`disagg.messages`); on every rank.

    The shared secret is asked for besides the server's API key, if it has one.
    """
    shared = secret()
    if shared is None:
        raise HTTPException(403, f"this server takes no messages: start it with {SECRET_FLAG} ({SECRET})")
    # Headers are Latin-1, and compare_digest takes no other text than ASCII.
    if not hmac.compare_digest(request.headers.get(SECRET_HEADER, "").encode(), shared.encode()):
        raise HTTPException(401, f"{SECRET_HEADER}: not the secret of this server")
    body = await _bounded_json(request, MAX_BATCH_BYTES)
    with _Refusing():
        parse_batch(body)
    answers = await _ask(DumperControlReqInput(method=ENDED, body=body))
    outcomes: Counter[str] = Counter()
    for answer in answers:
        outcomes.update(answer["outcomes"])
    return {"outcomes": dict(outcomes)}


async def _bounded_json(request: Request, max_bytes: int) -> Any:
    """The body; HTTP 413 if it is longer, as soon as that shows."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > max_bytes:
            raise HTTPException(413, f"body: at most {max_bytes} bytes are allowed")
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise HTTPException(400, "body: must be JSON") from None


async def _ask(message: DumperControlReqInput) -> list[dict[str, Any]]:
    """The answer of each data-parallel rank; HTTP 503 unless all of them have our cache."""
    replies = await get_global_state().tokenizer_manager.dumper_control(message)
    answers = [reply.response[0] for reply in replies if reply.success and reply.response]
    if len(answers) < len(replies) or not answers:
        raise HTTPException(503, _INACTIVE)
    return answers


async def _json(request: Request) -> Any:
    try:
        return await request.json()
    except (ValueError, RecursionError):
        raise HTTPException(400, "body: must be JSON") from None


def completion_message(completion: Completion) -> DumperControlReqInput:
    """Return the message that `AgentScheduler.handle_dumper_control` reads back with `Completion.parse`."""
    body = {
        "trajectory_id": completion.trajectory_id,
        "extra_key": completion.extra_key,
        "cache_salt": completion.cache_salt,
    }
    return DumperControlReqInput(method=COMPLETE, body=body)


def mount(app: FastAPI) -> None:
    """Add our endpoints to ``app``, once.

    Each is a route of its own: with FastAPI 0.165 an included router hides its endpoints from SGLang's API
    key middleware, which reads the auth level off the matched route, and then takes the wrong key.
    """
    if not any(getattr(route, "endpoint", None) is complete for route in app.routes):
        app.add_api_route(COMPLETE_PATH, complete, methods=["POST"])
        app.add_api_route("/agentcache/predictor", reload_predictor, methods=["POST"])
        app.add_api_route(ENDED_PATH, ended, methods=["POST"])


class _Refusing:
    """Turns a `HintError` into HTTP 400; SGLang's exception handlers put it into each API's own envelope."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, HintError):
            raise HTTPException(400, str(error)) from None
