"""Reliable records over datagrams, sans-IO: time and bytes in, bytes and events out."""
