"""`squadron generate`: answers to prompts, without a server."""

import argparse
import sys

from cluster.commands.options import add_model, merged_options
from cluster.llm import LLM
from engine.sampling_params import SamplingParams


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_run)
    group = parser.add_argument_group("request")
    group.add_argument(
        "--prompt",
        action="append",
        required=True,
        metavar="TEXT",
        help="a prompt to answer; may be given several times",
    )
    group.add_argument("--raw", action="store_true", help="continue the text itself, without a chat template")
    group.add_argument("--max-tokens", type=int, default=256, metavar="N", help="most tokens per answer (default: 256)")
    group.add_argument("--temperature", type=float, default=0.0, metavar="X", help="0 is greedy (default: 0)")
    add_model(parser)


def _run(options: argparse.Namespace) -> None:
    params = SamplingParams(temperature=options.temperature, max_tokens=options.max_tokens)
    with LLM(**merged_options(options)) as llm:
        if options.raw:
            outputs = llm.generate(options.prompt, params, use_tqdm=sys.stderr.isatty())
        else:
            chats = [[{"role": "user", "content": prompt}] for prompt in options.prompt]
            outputs = llm.chat(chats, params, use_tqdm=sys.stderr.isatty())
    for output in outputs:
        if output.error is None:
            print(output.outputs[0].text)
        else:
            print(f"squadron generate: {output.error}", file=sys.stderr)
    if any(output.error is not None for output in outputs):
        sys.exit(1)
