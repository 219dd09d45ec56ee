"""Decoders: payload formats of devices and gateways, one module each, and the selection of the decoder of a message."""
