"""A tool loop over the pool: the best free model whose key is in the environment, else the embedded model, answers.

Run it with any key set (``llmbroker env`` lists them), or with none after ``pip install xllamacpp``.
"""

import llmbroker


def get_weather(city: str) -> str:
    return f"It is 20°C in {city}"


tools = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Current weather in a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]

with llmbroker.Broker() as broker:
    reply = llmbroker.run_tool_loop(
        broker,
        [{"role": "user", "content": "What is the weather in Paris?"}],
        tools=tools,
        dispatch={"get_weather": get_weather},
        operation="weather",
    )
    print(reply.text, "— by", reply.llm_name)
    for row in reply.tool_history:
        print(row["name"], row["arguments"], "->", row["result"])
