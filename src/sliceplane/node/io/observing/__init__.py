"""The shell of the observer of another node proxy; ``node.observing`` has its cores."""
