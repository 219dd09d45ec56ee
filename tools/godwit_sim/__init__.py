"""Seeded worlds in virtual time: the real transport over invented networks, watched by independent checkers."""
