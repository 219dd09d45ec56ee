"""The tests. A package, so that `tests` is found here and not in site-packages, where gmqtt puts one of that name."""
