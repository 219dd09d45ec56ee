"""Run the shipped transport, broker and client over simulated networks, in virtual time, with independent checkers."""
