"""Captures of the native protocol: files, their content packet by packet, drawings, and Wireshark's dissector."""
