"""xDS as a running thing: sockets and who asks (``transport``), and the server behind them."""
