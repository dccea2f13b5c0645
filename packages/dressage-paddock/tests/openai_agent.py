"""An agent program that runs inside the sandbox: the official client, and one tool."""

import json
import os
import subprocess
import sys

from openai import OpenAI

client = OpenAI(max_retries=0)
tool = {
    "type": "function",
    "function": {
        "name": "shell",
        "description": "Run a shell command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}
messages = [{"role": "user", "content": sys.stdin.read()}]
while True:
    reply = client.chat.completions.create(
        model=os.environ["DRESSAGE_MODEL"], messages=messages, tools=[tool]
    ).choices[0]
    messages.append(reply.message.model_dump(exclude_none=True))
    if not reply.message.tool_calls:
        print(reply.message.content)
        break
    for call in reply.message.tool_calls:
        command = json.loads(call.function.arguments)["command"]
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": done.stdout + done.stderr})
