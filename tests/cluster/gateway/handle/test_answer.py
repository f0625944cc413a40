"""What a caller gets of an output, or of an error."""

from cluster.gateway.handle.answer import answer, failed
from engine.errors import InvalidRequest
from engine.outputs import CompletionOutput, Logprob, RequestOutput


def test_an_output_as_plain_values() -> None:
    logprobs = [{5: Logprob(-0.5, 1, b"x"), 6: Logprob(-1.5, 2, b"y")}]
    choice = CompletionOutput(0, "x", [5], 3, finish_reason="stop", stop_reason=5, logprobs=logprobs)
    assert answer(RequestOutput("r", 0, [1, 2], [choice], True, fingerprint="fp")) == {
        "request_id": "r",
        "prompt_token_ids": [1, 2],
        "outputs": [
            {
                "index": 0,
                "text": "x",
                "token_ids": [5],
                "first_index": 3,
                "finish_reason": "stop",
                "stop_reason": 5,
                "logprobs": [{5: [-0.5, 1, "x"], 6: [-1.5, 2, "y"]}],
            }
        ],
        "finished": True,
        "error": None,
        "system_fingerprint": "fp",
        "weights_version": None,
    }


def test_errors_are_as_over_http() -> None:
    error = InvalidRequest("n=0 is too small", param="n", code="integer_below_min_value")
    told = failed("r", error)
    assert (told["request_id"], told["outputs"], told["finished"]) == ("r", [], True)
    assert told["error"] == {
        "message": "n=0 is too small",
        "type": "invalid_request_error",
        "param": "n",
        "code": "integer_below_min_value",
    }
    output = RequestOutput("r", 0, [], [], True, error="a step failed")
    assert answer(output)["error"] == {
        "message": "a step failed",
        "type": "server_error",
        "param": None,
        "code": "request_failed",
    }
