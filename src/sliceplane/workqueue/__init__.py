"""The queue that controllers take their keys from: queue, dirty and processing sets, delays, rate limits.

Promises: a key is processed by one worker at a time; a key added meanwhile is processed again;
equal input gives equal order.
Never: sleeps or reads a clock (time is an argument).
"""
