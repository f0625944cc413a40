"""Put one question to the OpenAI endpoint at argv[1] and print the answer as it streams in. Run on
a machine of the lab.
"""

import sys

from openai import OpenAI

client = OpenAI(base_url=sys.argv[1], api_key="none", timeout=60)
[model, *_] = [model.id for model in client.models.list()]
chunks = client.chat.completions.create(
    model=model, messages=[{"role": "user", "content": sys.argv[2]}], temperature=0, stream=True
)
for chunk in chunks:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
