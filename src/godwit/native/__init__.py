"""The native protocol on the broker's side: control messages, publish and subscriber channels over the transport."""
