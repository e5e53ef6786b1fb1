"""Services, what stands behind them, and the kinds that route or filter their traffic."""
