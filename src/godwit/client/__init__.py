"""The client side of a broker, sans-IO: publishers, subscriptions, jobs, work, requests and reconnects."""
