"""The vendors: one row each, 8 to 14 lines. What a row cannot say is a word in ``quirks`` that the dialect's functions know.

A row's keys are looked for under ``<ID>_API_KEY``, ``<ID>_KEY`` and the vendor's usual names. Its ``errors`` map the vendor's
own codes, read on the page that ``errors_source`` names; words that mean the same everywhere stand in ``refusal``. An empty
code is the status alone.

Quirks of Chat Completions: ``content-not-null`` (an assistant turn with calls needs a string), ``ids-of-nine`` (call ids are
nine letters or digits), ``ids-of-forty`` (at most 40 characters), ``required-is-any``, ``document-url`` (files as
``document_url``), ``reasoning-field-reasoning`` (reasoning goes back as ``reasoning``), ``reasoning-required`` (a turn with
calls needs the field), ``call-extra`` (opaque keys on calls are taken from any history), ``leaked-calls`` (look for calls in
the text), ``takes-NAME`` (it takes a parameter of that name, which elsewhere is another vendor's word).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from llmbroker.errors import (
    AuthError,
    BadRequestError,
    BillingError,
    ContentFilterError,
    ContextWindowError,
    ModelNotFoundError,
    PermissionDeniedError,
    ProviderError,
    RateLimitError,
    ServerError,
)
from llmbroker.providers import anthropic, gemini, ollama, openai_chat, openai_responses
from llmbroker.providers.base import Dialect, Provider

CHAT, RESPONSES, MESSAGES = openai_chat.DIALECT, openai_responses.DIALECT, anthropic.DIALECT

TEXT = frozenset({"tools", "tool_choice", "parallel_tools", "json_object", "stream", "stream_usage", "reasoning"})
SCHEMA = TEXT | {"json_schema"}
FULL = SCHEMA | {"images"}
EVERY = FULL | {"audio", "files"}
_SAMPLING = frozenset({"top_k", "repetition_penalty"})
_MAX_TOKENS = {"max_completion_tokens": "max_tokens"}
Errors = Mapping[tuple[int | None, str], type[ProviderError]]


_ZHIPU_ERRORS: Errors = {
    **{(None, code): AuthError for code in ("1000", "1001", "1002", "1003", "1004", "1112")},
    (None, "1113"): BillingError,
    (None, "1211"): ModelNotFoundError,
    (None, "1261"): ContextWindowError,
    (None, "1301"): ContentFilterError,
    **{(None, code): RateLimitError for code in ("1302", "1303", "1304", "1305", "1308")},
}


_GOOGLE_ERRORS: Errors = {
    (None, "PERMISSION_DENIED"): PermissionDeniedError,
    (None, "UNAUTHENTICATED"): AuthError,
    (None, "RESOURCE_EXHAUSTED"): RateLimitError,
    (None, "DEADLINE_EXCEEDED"): ServerError,
}


def _row(name: str, title: str, base_url: str | None, *, keys: tuple[str, ...] = (), **fields: Any) -> Provider:
    upper = name.upper()
    fields.setdefault("dialect", CHAT)
    return Provider(id=name, title=title, base_url=base_url, key_names=(f"{upper}_API_KEY", f"{upper}_KEY", *keys), **fields)


ROWS: tuple[Provider, ...] = (
    _row(
        "openai",
        "OpenAI",
        "https://api.openai.com/v1",
        rename={"max_tokens": "max_completion_tokens"},
        drop=_SAMPLING,
        features=EVERY,
        quirks=frozenset({"ids-of-forty"}),
        dialects={"openai-responses": (RESPONSES, "https://api.openai.com/v1")},
        errors_source="https://platform.openai.com/docs/guides/error-codes",
        docs="https://platform.openai.com/docs/models",
        keys_url="https://platform.openai.com/api-keys",
    ),
    _row(
        "anthropic",
        "Anthropic",
        "https://api.anthropic.com/v1",
        keys=("CLAUDE_API_KEY",),
        dialect=MESSAGES,
        auth="x-api-key",
        headers={"anthropic-version": "2023-06-01"},
        features=(FULL | {"files", "cache_marks"}) - {"json_object"},
        reasoning="always",
        errors={
            (None, "billing_error"): BillingError,
            (None, "permission_error"): PermissionDeniedError,
            (None, "not_found_error"): ModelNotFoundError,
            (None, "request_too_large"): BadRequestError,
            (None, "timeout_error"): ServerError,
            (None, "api_error"): ServerError,
        },
        errors_source="https://docs.anthropic.com/en/api/errors",
        docs="https://docs.anthropic.com/en/docs/about-claude/models",
        keys_url="https://console.anthropic.com/settings/keys",
        dialects={"openai-chat": (CHAT, "https://api.anthropic.com/v1")},
    ),
    _row(
        "gemini",
        "Google Gemini",
        "https://generativelanguage.googleapis.com/v1beta",
        keys=("GOOGLE_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY"),
        dialect=gemini.DIALECT,
        auth="x-goog-api-key",
        drop=frozenset({"repetition_penalty"}),
        features=EVERY,
        reasoning="always",
        errors={**_GOOGLE_ERRORS, (None, "FAILED_PRECONDITION"): BillingError},
        errors_source="https://ai.google.dev/gemini-api/docs/troubleshooting",
        docs="https://ai.google.dev/gemini-api/docs/models",
        keys_url="https://aistudio.google.com/apikey",
        dialects={"openai-chat": (CHAT, "https://generativelanguage.googleapis.com/v1beta/openai")},
    ),
    _row(
        "groq",
        "Groq",
        "https://api.groq.com/openai/v1",
        drop=_SAMPLING,
        features=FULL,
        reasoning="loop",
        quirks=frozenset({"reasoning-field-reasoning"}),
        # A 413 with the code of a rate limit: this one request is over the tokens of a minute, waiting is no help.
        errors={(413, "rate_limit_exceeded"): ContextWindowError, (413, "tokens"): ContextWindowError},
        errors_source="https://console.groq.com/docs/errors",
        docs="https://console.groq.com/docs/models",
        keys_url="https://console.groq.com/keys",
        dialects={"openai-responses": (RESPONSES, "https://api.groq.com/openai/v1")},
    ),
    _row(
        "together",
        "Together AI",
        "https://api.together.xyz/v1",
        keys=("TOGETHERAI_API_KEY",),
        rename=_MAX_TOKENS,
        features=FULL,
        errors={(403, ""): ContextWindowError},
        errors_source="https://docs.together.ai/docs/error-codes",
        docs="https://docs.together.ai/docs/serverless-models",
        keys_url="https://api.together.ai/settings/api-keys",
    ),
    _row(
        "deepseek",
        "DeepSeek",
        "https://api.deepseek.com",
        rename=_MAX_TOKENS,
        drop=_SAMPLING,
        features=TEXT,
        reasoning="loop",
        quirks=frozenset({"reasoning-required"}),
        errors_source="https://api-docs.deepseek.com/quick_start/error_codes",
        docs="https://api-docs.deepseek.com/quick_start/pricing",
        keys_url="https://platform.deepseek.com/api_keys",
        dialects={
            "anthropic": (MESSAGES, "https://api.deepseek.com/anthropic/v1"),
            "openai-responses": (RESPONSES, "https://api.deepseek.com"),
        },
    ),
    _row(
        "xai",
        "xAI",
        "https://api.x.ai/v1",
        keys=("GROK_API_KEY",),
        drop=_SAMPLING,
        features=FULL,
        errors_source="https://docs.x.ai/docs/key-information/debugging",
        docs="https://docs.x.ai/docs/models",
        keys_url="https://console.x.ai",
        dialects={"openai-responses": (RESPONSES, "https://api.x.ai/v1")},
    ),
    _row(
        "alibaba",
        "Alibaba Cloud Model Studio",
        "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
        keys=("DASHSCOPE_API_KEY", "QWEN_API_KEY"),
        rename=_MAX_TOKENS,
        drop=frozenset({"repetition_penalty"}),
        quirks=frozenset({"takes-thinking_budget"}),
        features=(TEXT | {"images", "audio"}),
        errors={
            (None, "Arrearage"): BillingError,
            (None, "AccessDenied.Unpurchased"): BillingError,
            (None, "insufficient_quota"): RateLimitError,
            (None, "Throttling"): RateLimitError,
            (None, "Throttling.RateQuota"): RateLimitError,
            (None, "Throttling.AllocationQuota"): RateLimitError,
            (None, "Throttling.BurstRate"): RateLimitError,
            (None, "limit_requests"): RateLimitError,
            (None, "InvalidParameter"): BadRequestError,
        },
        errors_source="https://www.alibabacloud.com/help/en/model-studio/error-code",
        docs="https://www.alibabacloud.com/help/en/model-studio/models",
        keys_url="https://modelstudio.console.alibabacloud.com",
    ),
    _row(
        "zhipu",
        "Zhipu AI",
        "https://open.bigmodel.cn/api/paas/v4",
        keys=("ZHIPUAI_API_KEY", "BIGMODEL_API_KEY", "GLM_API_KEY", "ZAI_API_KEY", "ZAI_KEY"),
        bases={"ZAI_API_KEY": "https://api.z.ai/api/paas/v4", "ZAI_KEY": "https://api.z.ai/api/paas/v4"},
        rename=_MAX_TOKENS,
        drop=frozenset({"frequency_penalty", "presence_penalty", "repetition_penalty"}),
        features=TEXT | {"images"},
        reasoning="loop",
        errors=_ZHIPU_ERRORS,
        errors_source="https://docs.bigmodel.cn/cn/faq/api-code",
        docs="https://docs.bigmodel.cn/cn/guide/start/model-overview",
        keys_url="https://open.bigmodel.cn/usercenter/apikeys",
        dialects={"anthropic": (MESSAGES, "https://open.bigmodel.cn/api/anthropic/v1")},
    ),
    _row(
        "zai",
        "Z.ai",
        "https://api.z.ai/api/paas/v4",
        rename=_MAX_TOKENS,
        drop=frozenset({"frequency_penalty", "presence_penalty", "repetition_penalty"}),
        features=TEXT | {"images"},
        reasoning="loop",
        errors=_ZHIPU_ERRORS,
        errors_source="https://docs.z.ai/api-reference/api-code",
        docs="https://docs.z.ai/guides/overview/pricing",
        keys_url="https://z.ai/manage-apikey/apikey-list",
        dialects={"anthropic": (MESSAGES, "https://api.z.ai/api/anthropic/v1")},
    ),
    _row(
        "moonshot",
        "Moonshot AI",
        "https://api.moonshot.ai/v1",
        keys=("KIMI_API_KEY",),
        rename=_MAX_TOKENS,
        drop=_SAMPLING,
        features=TEXT | {"images"},
        reasoning="always",
        quirks=frozenset({"reasoning-required"}),
        errors={
            (None, "exceeded_current_quota_error"): BillingError,
            (None, "permission_denied_error"): PermissionDeniedError,
            (None, "resource_not_found_error"): ModelNotFoundError,
            (None, "content_filter"): ContentFilterError,
        },
        errors_source="https://platform.moonshot.ai/docs/api/chat#error-information",
        docs="https://platform.moonshot.ai/docs/introduction",
        keys_url="https://platform.moonshot.ai/console/api-keys",
        dialects={"anthropic": (MESSAGES, "https://api.moonshot.ai/anthropic/v1")},
    ),
    _row(
        "xiaomi",
        "Xiaomi MiMo",
        "https://api.xiaomimimo.com/v1",
        keys=("MIMO_API_KEY",),
        auth="api-key",
        rename={"max_tokens": "max_completion_tokens"},
        drop=_SAMPLING,
        features=TEXT,
        reasoning="always",
        quirks=frozenset({"content-not-null"}),
        docs="https://platform.xiaomimimo.com/#/docs",
        keys_url="https://platform.xiaomimimo.com/#/console/api-keys",
        dialects={"anthropic": (MESSAGES, "https://api.xiaomimimo.com/anthropic/v1")},
    ),
    _row(
        "ollama",
        "Ollama",
        "http://localhost:11434",
        dialect=ollama.DIALECT,
        needs_key=False,
        features=(FULL | {"stream_usage"}) - {"tool_choice", "parallel_tools"},
        quirks=frozenset({"leaked-calls"}),
        reasoning="loop",
        base_names=("OLLAMA_HOST",),
        docs="https://ollama.com/search",
        keys_url="https://ollama.com/settings/keys",
        dialects={
            "openai-chat": (CHAT, "http://localhost:11434/v1"),
            "openai-responses": (RESPONSES, "http://localhost:11434/v1"),
        },
    ),
    _row(
        "openrouter",
        "OpenRouter",
        "https://openrouter.ai/api/v1",
        rename=_MAX_TOKENS,
        features=EVERY | {"cache_marks"},
        quirks=frozenset({"call-extra"}),
        # 403: the input was flagged by moderation
        errors={(403, ""): ContentFilterError},
        errors_source="https://openrouter.ai/docs/api/reference/errors-and-debugging",
        docs="https://openrouter.ai/models",
        keys_url="https://openrouter.ai/settings/keys",
        dialects={
            "openai-responses": (RESPONSES, "https://openrouter.ai/api/v1"),
            "anthropic": (MESSAGES, "https://openrouter.ai/api/v1"),
        },
    ),
    _row(
        "mistral",
        "Mistral AI",
        "https://api.mistral.ai/v1",
        rename={**_MAX_TOKENS, "seed": "random_seed"},
        drop=_SAMPLING,
        features=(EVERY - {"stream_usage"}),
        quirks=frozenset({"ids-of-nine", "required-is-any", "document-url"}),
        errors={(None, "1500"): ModelNotFoundError, (None, "1300"): RateLimitError, (None, "3505"): RateLimitError},
        errors_source="https://docs.mistral.ai/api",
        docs="https://docs.mistral.ai/getting-started/models",
        keys_url="https://console.mistral.ai/api-keys",
    ),
    _row(
        "cerebras",
        "Cerebras",
        "https://api.cerebras.ai/v1",
        rename={"max_tokens": "max_completion_tokens"},
        drop=_SAMPLING | {"frequency_penalty", "presence_penalty", "logit_bias"},
        features=SCHEMA,
        reasoning="loop",
        quirks=frozenset({"reasoning-field-reasoning"}),
        errors_source="https://inference-docs.cerebras.ai/support/error",
        docs="https://inference-docs.cerebras.ai/models/overview",
        keys_url="https://cloud.cerebras.ai",
    ),
    _row(
        "fireworks",
        "Fireworks AI",
        "https://api.fireworks.ai/inference/v1",
        rename=_MAX_TOKENS,
        features=FULL,
        errors_source="https://docs.fireworks.ai/guides/inference-error-codes",
        docs="https://fireworks.ai/models",
        keys_url="https://app.fireworks.ai/settings/users/api-keys",
    ),
    _row(
        "perplexity",
        "Perplexity",
        "https://api.perplexity.ai",
        keys=("PPLX_API_KEY",),
        rename=_MAX_TOKENS,
        drop=frozenset({"repetition_penalty"}),
        features=frozenset({"json_schema", "images", "files", "stream", "reasoning"}),
        errors_source="https://docs.perplexity.ai/guides/perplexity-sdk-error-handling",
        docs="https://docs.perplexity.ai/getting-started/models",
        keys_url="https://www.perplexity.ai/account/api/keys",
    ),
    _row(
        "nvidia",
        "NVIDIA NIM",
        "https://integrate.api.nvidia.com/v1",
        rename=_MAX_TOKENS,
        features=FULL,
        docs="https://build.nvidia.com/models",
        keys_url="https://build.nvidia.com/settings/api-keys",
    ),
    _row(
        "huggingface",
        "Hugging Face",
        "https://router.huggingface.co/v1",
        keys=("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
        rename=_MAX_TOKENS,
        features=FULL,
        docs="https://huggingface.co/docs/inference-providers",
        keys_url="https://huggingface.co/settings/tokens",
    ),
    _row(
        "cohere",
        "Cohere",
        "https://api.cohere.ai/compatibility/v1",
        keys=("CO_API_KEY",),
        rename=_MAX_TOKENS,
        drop=_SAMPLING | {"parallel_tool_calls", "logit_bias"},
        features=(SCHEMA - {"parallel_tools"}) | {"images"},
        errors_source="https://docs.cohere.com/reference/errors",
        docs="https://docs.cohere.com/docs/compatibility-api",
        keys_url="https://dashboard.cohere.com/api-keys",
    ),
    _row(
        "azure",
        "Azure OpenAI",
        None,
        keys=("AZURE_OPENAI_API_KEY",),
        auth="api-key",
        drop=_SAMPLING,
        features=EVERY,
        quirks=frozenset({"ids-of-forty"}),
        base_names=("AZURE_OPENAI_ENDPOINT",),
        path="/openai/v1",
        errors={(None, "DeploymentNotFound"): ModelNotFoundError, (None, "OperationNotSupported"): BadRequestError},
        errors_source="https://learn.microsoft.com/azure/ai-foundry/openai/reference",
        docs="https://learn.microsoft.com/azure/ai-foundry/openai/concepts/models",
        keys_url="https://portal.azure.com",
    ),
    _row(
        "vertex",
        "Google Vertex AI",
        None,  # https://LOCATION-aiplatform.googleapis.com/v1/projects/PROJECT/locations/LOCATION/publishers/google
        keys=("VERTEX_ACCESS_TOKEN",),
        dialect=gemini.DIALECT,
        drop=frozenset({"repetition_penalty"}),
        features=EVERY,
        reasoning="always",
        errors=_GOOGLE_ERRORS,
        errors_source="https://cloud.google.com/vertex-ai/generative-ai/docs/model-reference/api-errors",
        docs="https://cloud.google.com/vertex-ai/generative-ai/docs/models",
        keys_url="https://console.cloud.google.com/apis/credentials",
    ),
    _row(
        "voyage",
        "Voyage AI",
        "https://api.voyageai.com/v1",
        features=frozenset({"embeddings_only"}),
        errors_source="https://docs.voyageai.com/docs/error-codes",
        docs="https://docs.voyageai.com/docs/embeddings",
        keys_url="https://dashboard.voyageai.com/organization/api-keys",
    ),
)
"""Every vendor whose dialects are above; rows with a file of their own are added by ``table``."""

HOSTS: Mapping[str, str] = {
    "api.moonshot.cn": "moonshot",
    "api.together.ai": "together",
    "dashscope.aliyuncs.com": "alibaba",
    "ollama.com": "ollama",
    ".cognitiveservices.azure.com": "azure",
    ".openai.azure.com": "azure",
    ".services.ai.azure.com": "azure",
}
"""Further hosts of a vendor; a name with a leading dot stands for every host that ends so."""

COMPATIBLE = Provider(
    id="openai-compatible",
    title="an OpenAI-compatible server",
    dialect=CHAT,
    base_url=None,
    needs_key=False,
    features=EVERY,
    quirks=frozenset({"leaked-calls"}),
)
"""Any server that speaks Chat Completions and is no vendor of the table."""

FACES: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("gemini", "openai-chat"): {"auth": "bearer", "quirks": frozenset({"call-extra"}), "features": FULL},
    ("anthropic", "openai-chat"): {"auth": "bearer", "features": FULL - {"json_object"}},
    ("deepseek", "anthropic"): {"auth": "x-api-key"},
    ("zhipu", "anthropic"): {"auth": "x-api-key"},
    ("zai", "anthropic"): {"auth": "x-api-key"},
    ("moonshot", "anthropic"): {"auth": "x-api-key"},
    ("vertex", "anthropic"): {"quirks": frozenset({"raw-predict"})},
    ("ollama", "openai-chat"): {"quirks": frozenset({"leaked-calls", "reasoning-field-reasoning"}), "reasoning": "loop"},
    ("ollama", "openai-responses"): {"quirks": frozenset({"leaked-calls"})},
}
"""What a vendor's further dialects need otherwise than its usual one: (vendor, dialect) to fields of the row."""


def face(provider: Provider, dialect: Dialect) -> Provider:
    """Return a vendor's row as it is for one of its further dialects: renames, drops and quirks belong to the usual one."""
    if dialect.name == provider.dialect.name:
        return provider
    fields: dict[str, Any] = {"rename": {}, "drop": frozenset(), "quirks": frozenset(), "headers": {}}
    if dialect.name == "anthropic":
        fields["headers"] = {"anthropic-version": "2023-06-01"}
    fields.update(FACES.get((provider.id, dialect.name), {}))
    return msgspec.structs.replace(provider, **fields)
