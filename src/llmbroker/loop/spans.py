"""OpenTelemetry spans by the conventions for generative AI, where its API is installed and a tracer was set up; else nothing.

Three kinds: ``invoke_agent`` for the loop, ``chat`` for each model call, ``execute_tool`` for each tool. Texts and arguments
are not recorded: they may hold what belongs to nobody's trace.
"""

from __future__ import annotations

import sys
from typing import Any


def tracer() -> Any:
    """Return who makes the spans of one loop, or None: nothing is imported that the program has not imported itself."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    provider = api.get_tracer_provider()
    if type(provider).__name__ in ("ProxyTracerProvider", "NoOpTracerProvider"):
        return None
    return Spans(api, provider.get_tracer("llmbroker"))


class Spans:
    """The spans of one loop."""

    def __init__(self, api: Any, made: Any) -> None:
        self._api = api
        self._tracer = made
        self._root: Any = None

    def begin(self, run: Any) -> None:
        """Begin the loop's span, a child of the span that is current where the loop was called."""
        name = _model(run.caller)
        self._root = self._tracer.start_span("invoke_agent", attributes={"gen_ai.operation.name": "invoke_agent", **name})

    def end(self, run: Any, error: BaseException | None) -> None:
        """End the loop's span."""
        tally = run.tally
        _set(self._root, {"gen_ai.usage.input_tokens": tally.sent, "gen_ai.usage.output_tokens": tally.rec})
        self._close(self._root, error)

    def model(self, run: Any) -> _Span:
        """Begin the span of a model call."""
        attributes = {"gen_ai.operation.name": "chat", "llmbroker.step": run.step, **_model(run.caller)}
        return _Span(self, self._tracer.start_span("chat", context=self._inside(), attributes=attributes))

    def tool(self, plan: Any) -> _Span:
        """Begin the span of a tool call."""
        attributes = {
            "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": plan.call.name, "gen_ai.tool.call.id": plan.call.id,
            "gen_ai.tool.type": "function",
        }  # fmt: skip
        return _Span(
            self, self._tracer.start_span(f"execute_tool {plan.call.name}", context=self._inside(), attributes=attributes)
        )

    def _inside(self) -> Any:
        return self._api.set_span_in_context(self._root) if self._root is not None else None

    def _close(self, span: Any, error: BaseException | None) -> None:
        if error is not None:
            _set(span, {"error.type": type(error).__name__})
            span.set_status(self._api.StatusCode.ERROR)
        span.end()


class _Span:
    """One span that is open."""

    def __init__(self, spans: Spans, span: Any) -> None:
        self._spans = spans
        self._span = span

    def end(self, plan: Any) -> None:
        """End the span of a tool call."""
        if plan.error is not None:
            _set(self._span, {"error.type": "tool_error"})
            self._span.set_status(self._spans._api.StatusCode.ERROR)
        self._span.end()

    def replied(self, reply: Any) -> None:
        """End the span of a model call that was answered."""
        usage = getattr(reply, "usage", None)
        finish = getattr(reply, "finish_reason", None)
        _set(
            self._span,
            {
                "gen_ai.response.model": getattr(reply, "model", None),
                "gen_ai.response.id": getattr(reply, "id", None),
                "gen_ai.response.finish_reasons": (str(finish),) if finish else None,
                "gen_ai.usage.input_tokens": getattr(usage, "input_tokens", None),
                "gen_ai.usage.output_tokens": getattr(usage, "output_tokens", None),
            },
        )
        self._span.end()

    def failed(self, error: BaseException) -> None:
        """End the span of a model call that failed."""
        self._spans._close(self._span, error)


def _model(caller: Any) -> dict[str, Any]:
    deployment = getattr(caller, "_deployment", None)
    if deployment is None:
        return {}
    return {"gen_ai.request.model": deployment.model, "gen_ai.provider.name": deployment.provider.id}


def _set(span: Any, attributes: dict[str, Any]) -> None:
    span.set_attributes({key: value for key, value in attributes.items() if value is not None})
