"""What ends the pipeline's work with a sentence for a person, and no traceback."""

from __future__ import annotations


class PipelineError(Exception):
    """What happened, to what, and what to do about it."""
