"""The data pipeline: brokers' logs as Delta tables in three layers, and alerts back to the brokers.

bronze    the messages as they were received
silver    typed readings; messages that cannot be parsed go to quarantine with the reason
gold      windows, devices, traffic, job statistics, anomalies

Each table has one file in `datasets`, with its grain, its columns and the conditions for `godwit pipeline check`.
"""
