"""The types of requests and answers, for the API's description."""

from cluster.api.dialects.messages_api import answer as messages_api
from cluster.api.dialects.messages_api.fields import MessagesPrompt, MessagesRequest
from cluster.api.dialects.responses_api import answer as responses_api
from cluster.api.dialects.responses_api.fields import ResponsesRequest
from cluster.api.dialects.tokens import DetokenizeRequest, TokenizeRequest
from cluster.api.responses.protocol import Detokenized, Tokenized

REQUESTS = (MessagesRequest, MessagesPrompt, ResponsesRequest, TokenizeRequest, DetokenizeRequest)
EVENTS = {"MessageEvent": messages_api.Event, "ResponseEvent": responses_api.ResponseEvent}
ANSWERS = (
    *(responses_api.ResponseAnswer, responses_api.ResponseDeleted, responses_api.InputTokens),
    *(messages_api.MessageAnswer, messages_api.TokenCount),
    *(Tokenized, Detokenized),
    *EVENTS.values(),
)
