"""The kinds that keep Pods running from a template; ``workload`` has what they share."""
