"""MQTT 3.1, 3.1.1 and 5.0: a second protocol on the ports of the broker core, sans-IO."""
