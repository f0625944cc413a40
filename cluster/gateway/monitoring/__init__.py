"""What a gateway tells operators: figures, spans, log lines."""
