"""A model in this process, streamed: no key, no network after the first run. A path of any .gguf file is a model too."""

import sys

import llmbroker

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct"

with llmbroker.DirectClient(provider="local", model=model) as client:
    stream = client.stream("What is the capital of France?", params={"max_tokens": 40})
    for piece in stream:
        print(piece, end="", flush=True)
    print()
    print(stream.reply.finish_reason, stream.reply.usage.total_tokens, "tokens")
