"""Exit codes, and which error has which."""

from __future__ import annotations

from llmbroker.errors import (
    AuthError,
    BillingError,
    ConfigurationError,
    InvalidRequestError,
    LLMBrokerError,
    LLMTimeoutError,
    MissingKeyError,
    NoLLMAvailableError,
    StreamInterruptedError,
    ToolLoopLimitError,
    UnknownCallError,
    UnknownModelError,
)

MEANINGS = {
    0: "the answer is complete",
    1: "the provider or the pool failed",
    2: "wrong usage, or a setting that cannot be used",
    3: "no usable key",
    4: "a budget or limit was reached",
    5: "an answer came, but it is incomplete or invalid; it was printed as far as it came",
    130: "interrupted; the journal has the row",
    141: "the reader of the output went away",
}
FAILED, USAGE, NO_KEY, LIMIT, INCOMPLETE, INTERRUPTED, PIPE_CLOSED = 1, 2, 3, 4, 5, 130, 141


class NoKeyError(Exception):
    """The whole message for a person without a key; it is printed as it is."""


def code_of(error: LLMBrokerError) -> int:
    """Return the exit code of an error."""
    if isinstance(error, NoLLMAvailableError):
        return {"no_keys": NO_KEY, "empty_pool": NO_KEY, "limit": LIMIT}.get(error.reason, FAILED)
    if isinstance(error, (MissingKeyError, AuthError)):
        return NO_KEY
    if isinstance(error, (ToolLoopLimitError, BillingError)):
        return LIMIT
    if isinstance(error, StreamInterruptedError) or (isinstance(error, LLMTimeoutError) and error.text):
        return INCOMPLETE
    if isinstance(error, (InvalidRequestError, ConfigurationError, UnknownModelError, UnknownCallError)):
        return USAGE
    return FAILED
