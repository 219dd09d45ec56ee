"""The data pipeline: brokers' logs as tables, in three layers, and what it finds back to the brokers.

bronze    messages as they came          one dataset a file, with its grain and schema beside it
silver    readings, typed; what cannot be read goes to quarantine with the reason
gold      windows, devices, traffic, jobs, anomalies
"""
