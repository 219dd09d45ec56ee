"""The client's side of a broker, sans-IO: publishers, subscriptions, requests, reconnect."""
