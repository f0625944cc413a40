"""Constructs an engine's parts and connects them."""

from engine.admission.admission import Admission
from engine.admission.cache_size import CacheSize
from engine.admission.requests import Requests
from engine.checkpoint.model_config import ModelConfig
from engine.config import EngineConfig
from engine.executor import Executor
from engine.grammars.kept import Grammars
from engine.output.output_processor import OutputProcessor
from engine.records.recorder import Recorder
from engine.recovery.recovery import Recovery
from engine.scheduling.waiting.waiting_queue import WaitingQueue
from engine.text.tokenizer import Tokenizer


class Parts:
    """All but the scheduler, whose cache is known when the workers have started."""

    def __init__(
        self, config: EngineConfig, model_config: ModelConfig, tokenizer: Tokenizer, executor: Executor
    ) -> None:
        self.config = config
        self.model_config = model_config
        self.tokenizer = tokenizer
        self.executor = executor
        self.cache_size = CacheSize(config, model_config)
        self.processor = OutputProcessor(tokenizer, model_config.vocab_size)
        self.recorder = Recorder()
        self.waiting = WaitingQueue()
        self.recovery = Recovery(executor, self.waiting, self.recorder, config.max_restarts)
        grammars = Grammars(tokenizer, model_config.vocab_size, model_config.eos_token_ids)
        self.admission = Admission(config, self.processor, grammars)
        self.requests = Requests(self.admission, self.processor, self.recorder, self.recovery.suspects)

    @classmethod
    def load(cls, config: EngineConfig, executor: Executor) -> "Parts":
        """With what the model's folder says of model and tokenizer; raises InvalidConfig."""
        return cls(config, ModelConfig.load(config.model), Tokenizer(config.tokenizer or config.model), executor)
