"""A machine with GPUs may have torch and Triton and little else: what it lacks of what the engine
imports is in `stand_ins`.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "stand_ins"))  # behind all that is installed
