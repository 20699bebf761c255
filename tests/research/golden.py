"""What every provider is sent for one and the same question: the table of ``test_golden``, and how to make it anew.

python -m tests.research.golden > tests/research/golden.json
"""

from __future__ import annotations

import json
import os
import warnings
from typing import Any

import msgspec

from llmbroker.errors import LLMBrokerError
from llmbroker.research import call_llm_tools, llm_config, llm_tool
from llmbroker.transports.replay import Answer, Replay
from llmbroker.wire import HTTPRequest

MODELS = {
    "openai": "gpt-4o-mini",
    "groq": "openai/gpt-oss-20b",
    "together": "meta-llama/Llama-3.3-70B-Instruct-Turbo",
    "deepseek": "deepseek-chat",
    "xai": "grok-3-mini",
    "alibaba": "qwen-plus",
    "zhipu": "glm-4.5",
    "moonshot": "kimi-k2-0711-preview",
    "xiaomi": "mimo-v2-flash",
    "ollama": "qwen3:8b",
    "anthropic": "claude-sonnet-4-5",
    "gemini": "gemini-2.5-flash",
    "openrouter": "openai/gpt-4o-mini",
    "mistral": "mistral-small-latest",
}
PARAMS: dict[str, Any] = {
    "temperature": 0.2,
    "top_p": 0.9,
    "top_k": 40,
    "max_tokens": 256,
    "seed": 7,
    "frequency_penalty": 0.1,
    "presence_penalty": 0.2,
    "repetition_penalty": 1.1,
    "stop": ["END"],
}
WEATHER = llm_tool(
    lambda city: f"22C and clear in {city}",
    name="get_weather",
    description="Current weather for a city.",
    parameters={"city": {"type": "string"}},
)
MESSAGES = [("system", "Be terse."), ("user", "What is the weather in Tunis?")]


def first_request(provider: str) -> HTTPRequest:
    """Return what a provider is sent first; the key is ``key-of-<provider>``."""
    names = [name for name in os.environ if name.endswith(("_API_KEY", "_KEY", "_HOST"))]
    kept = {name: os.environ.pop(name) for name in names}
    os.environ[f"{provider.upper()}_API_KEY"] = f"key-of-{provider}"
    port = Replay().on(None, Answer(status=400, body={"error": {"message": "stop here"}}), times=None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = llm_config(provider, MODELS[provider], **PARAMS)
        call_llm_tools(config, MESSAGES, tools=WEATHER, io=port)
    except LLMBrokerError:
        pass
    finally:
        del os.environ[f"{provider.upper()}_API_KEY"]
        os.environ.update(kept)
    return port.requests[0]


def shown(request: HTTPRequest) -> dict[str, Any]:
    """Return a request as plain JSON."""
    return {
        "url": request.url,
        "headers": {name: value for name, value in sorted(request.headers.items()) if name != "user-agent"},
        "body": msgspec.json.decode(request.body),
    }


if __name__ == "__main__":
    print(json.dumps({name: shown(first_request(name)) for name in MODELS}, indent=1, ensure_ascii=False))
