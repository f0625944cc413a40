"""A gateway's monitoring for operators: figures, spans, log lines."""
