"""The schema of the SQLite store as numbered steps. A step that was released is never changed; a change is a new step.

Every table is ours by its prefix; the version table is ``llmbroker_schema``. Tables of an application in the same file are
neither read nor touched. Times are whole microseconds since 1970, UTC.
"""

from __future__ import annotations

_FIRST = (
    """
    CREATE TABLE llmbroker_calls (
        seq INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        ts INTEGER NOT NULL,
        llm_name TEXT NOT NULL,
        status TEXT NOT NULL,
        group_id TEXT,
        attempt INTEGER NOT NULL,
        retry_of TEXT,
        scope TEXT,
        operation TEXT,
        trace_id TEXT,
        provider TEXT,
        dialect TEXT,
        model TEXT,
        model_answered TEXT,
        stream INTEGER NOT NULL,
        step INTEGER,
        http_status INTEGER,
        error_class TEXT,
        error_detail TEXT,
        finish_reason TEXT,
        input_tokens INTEGER,
        output_tokens INTEGER,
        cached_input_tokens INTEGER,
        cache_write_tokens INTEGER,
        reasoning_tokens INTEGER,
        total_tokens INTEGER,
        first_event_ms REAL,
        latency_ms REAL,
        cost REAL,
        currency TEXT,
        key_source TEXT
    )
    """,
    "CREATE INDEX llmbroker_calls_trace ON llmbroker_calls (trace_id) WHERE trace_id IS NOT NULL",
    "CREATE INDEX llmbroker_calls_scope ON llmbroker_calls (scope) WHERE scope IS NOT NULL",
    # A group bears the id of its first attempt, so only the attempts after it pay for an index entry.
    "CREATE INDEX llmbroker_calls_group ON llmbroker_calls (group_id) WHERE attempt > 1",
    """
    CREATE TABLE llmbroker_ratings (
        seq INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        call_id TEXT NOT NULL,
        score REAL NOT NULL,
        ts INTEGER NOT NULL,
        scope TEXT
    )
    """,
    "CREATE INDEX llmbroker_ratings_call ON llmbroker_ratings (call_id, ts)",
    "CREATE TABLE llmbroker_bodies (call_id TEXT PRIMARY KEY, request TEXT, response TEXT) WITHOUT ROWID",
    "CREATE TABLE llmbroker_disabled (name TEXT PRIMARY KEY, disabled INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE llmbroker_models (position INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, config TEXT NOT NULL)",
    """
    CREATE TABLE llmbroker_secrets (
        ref TEXT NOT NULL, scope TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (ref, scope)
    ) WITHOUT ROWID
    """,
    "CREATE TABLE llmbroker_state (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
)

_RUNS = (
    """
    CREATE TABLE llmbroker_runs (
        id TEXT PRIMARY KEY, status TEXT NOT NULL, began REAL NOT NULL, changed REAL NOT NULL, owner TEXT NOT NULL, result BLOB
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE llmbroker_run_notes (
        run_id TEXT NOT NULL, seq INTEGER NOT NULL, kind TEXT NOT NULL, call_id TEXT NOT NULL, value BLOB NOT NULL,
        PRIMARY KEY (run_id, seq)
    ) WITHOUT ROWID
    """,
)

_LIMITS = (
    "CREATE TABLE llmbroker_limits (position INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, config TEXT NOT NULL)",
    """
    CREATE TABLE llmbroker_accounts (
        name TEXT NOT NULL, subject TEXT NOT NULL, start INTEGER NOT NULL, ends INTEGER,
        spent_calls INTEGER NOT NULL, spent_tokens INTEGER NOT NULL, spent_cost INTEGER NOT NULL,
        held_calls INTEGER NOT NULL, held_tokens INTEGER NOT NULL, held_cost INTEGER NOT NULL, unpriced INTEGER NOT NULL,
        PRIMARY KEY (name, subject, start)
    ) WITHOUT ROWID
    """,
    # state 0: an attempt is under way; 1: it was given up for dead and its amounts given back; 2: it was counted elsewhere.
    """
    CREATE TABLE llmbroker_holds (
        id TEXT PRIMARY KEY, expires INTEGER NOT NULL, state INTEGER NOT NULL, value TEXT NOT NULL
    ) WITHOUT ROWID
    """,
    "CREATE INDEX llmbroker_holds_expires ON llmbroker_holds (expires)",
)

_TIDINGS = (
    "CREATE TABLE llmbroker_notes (name TEXT PRIMARY KEY, stamp INTEGER NOT NULL, ts INTEGER NOT NULL, value BLOB NOT NULL)",
    "CREATE INDEX llmbroker_notes_stamp ON llmbroker_notes (stamp)",
    """
    CREATE TABLE llmbroker_sent (
        name TEXT NOT NULL, second INTEGER NOT NULL, sender TEXT NOT NULL, stamp INTEGER NOT NULL, number INTEGER NOT NULL,
        size REAL NOT NULL, PRIMARY KEY (name, second, sender)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX llmbroker_sent_stamp ON llmbroker_sent (stamp)",
    "DELETE FROM llmbroker_state WHERE substr(name, 1, 5) = 'rest:'",
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (_FIRST, _RUNS, _LIMITS, _TIDINGS)
"""Step n brings version n - 1 to version n."""

VERSION_TABLE = "CREATE TABLE IF NOT EXISTS llmbroker_schema (version INTEGER NOT NULL)"
