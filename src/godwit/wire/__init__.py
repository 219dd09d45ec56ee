"""Bytes to values and back: packets, frames, batches and control messages. docs/PROTOCOL.md is the specification."""
